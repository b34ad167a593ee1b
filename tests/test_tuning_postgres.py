"""Several controllers over a real PostgreSQL, started for the test from the system's own packages."""

from __future__ import annotations

import getpass
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from engine_helpers import PATIENCE_S, free_port
from test_tuning_search import LAUNCHER, settings

import tuning
from paci_lab import InputError

BINARIES = [*sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin"))), *os.environ["PATH"].split(":")]
INITDB = next((f"{folder}/initdb" for folder in reversed(BINARIES) if os.access(f"{folder}/initdb", os.X_OK)), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(INITDB is None, reason="no PostgreSQL: install the package postgresql"),
    pytest.mark.skipif(importlib.util.find_spec("psycopg") is None, reason="no driver: install psycopg[binary]"),
]


@pytest.fixture(scope="module")
def server():
    """URL of a database of a server that lives as long as the tests; PostgreSQL does not run as root."""
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="paci-postgres-"))
    if root:
        shutil.chown(folder, "postgres")
    port = free_port()
    user = "postgres" if root else getpass.getuser()

    def call(*command: str) -> None:
        runuser = shutil.which("runuser", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        as_user = [runuser, "-u", "postgres", "--"] if root else []
        subprocess.run([*as_user, *command], check=True, cwd=folder, stdout=subprocess.DEVNULL)

    data, pg_ctl = str(folder / "data"), str(Path(INITDB).with_name("pg_ctl"))
    call(INITDB, "-D", data, "-A", "trust", "-U", user, "-N")
    call(
        pg_ctl,
        "-D",
        data,
        "-w",
        "-l",
        str(folder / "log"),
        "-o",
        f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off",
        "start",
    )
    try:
        yield f"postgresql+psycopg://{user}@127.0.0.1:{port}/postgres"
    finally:
        call(pg_ctl, "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


def test_controllers_share_a_study_over_postgres(server, tmp_path):
    log = tmp_path / "log"
    made = tuning.Study.create(
        tmp_path / "s", settings(storage=server, launcher=LAUNCHER, launcher_options={"log": str(log)}, confirm_seeds=1)
    )
    code = f"import tuning; tuning.Study.open({str(made.folder)!r}).run(share_machine=True)"
    controllers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [controller.wait(PATIENCE_S) for controller in controllers] == [0, 0, 0]
    lines = [line.split() for line in log.read_text().splitlines()]
    runs = [(words[2], words[4]) for words in lines if words[1] != "baseline"]
    assert len(runs) == len(set(runs))
    assert made.recommendation()["point"] == "paci-4"
    assert not (tmp_path / "s" / "study.journal").exists()


def test_a_wrong_password_or_server_is_one_message_without_the_password(server, tmp_path):
    made = tuning.Study.create(tmp_path / "s", settings(storage="postgresql+psycopg://me:secret@127.0.0.1:1/x"))
    with pytest.raises(InputError) as refusal:
        made.run()
    assert refusal.value.what == "storage" and "secret" not in str(refusal.value) and "resume" in str(refusal.value)
