"""Every command of docs/cluster.md, run as it stands there: on CPU, with a small model and a stand-in for SLURM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from engine_helpers import PATIENCE_S, assert_run_is_replay, free_port

import paci_lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a dozen processes that import torch, one after another

ROOT = Path(__file__).parent.parent

SMALLER = {
    "stages = 8": "stages = 2",
    "window = 8": "window = 2",
    "partition = [2, 2, 2, 2, 2, 2, 1, 1]": "partition = [3, 3]",
    "updates = 1000": "updates = 6",
    "gpt:blocks=12,width=768,heads=12,context=1024": "gpt:blocks=4,width=16,heads=1,context=16",
    "microbatch_size = 4": "microbatch_size = 1",
    "evaluate_every = 800": "evaluate_every = 6",
    "validation_batches = 8": "validation_batches = 1",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "--nproc-per-node 4": "--nproc-per-node 1",
    "node1:29400": f"127.0.0.1:{free_port()}",
    "--checkpoint-every 100": "--checkpoint-every 2",
    "--updates 2000": "--updates 8",
}
"""What the page writes for GPUs, and what a machine without them can do in seconds."""

COMMANDS = {
    "paci-lab": f'exec {sys.executable} -m paci_lab.cli "$@"',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    "scontrol": "printf '127.0.0.1\\nelsewhere\\n'",
    "srun": '"$@" & first=$!; "$@"; code=$?; wait $first && exit $code',
    "sbatch": """
export SLURM_JOB_ID=9432 SLURM_JOB_NODELIST='node[1-2]'
log=$(sed -n 's/^#SBATCH --output=//p' "$1" | sed "s/%j/$SLURM_JOB_ID/")
echo "Submitted batch job $SLURM_JOB_ID"
exec bash "$1" > "$log" 2>&1
""",
}
"""Commands that the page takes for granted; those of SLURM stand in for a cluster of two nodes on this machine."""


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with the commands in reach."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # on CPU alone are the numbers the same to the last bit
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def blocks() -> list[tuple[str, str]]:
    """(language, text) of the page's code blocks, made smaller."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8"), re.M | re.S)
    for large, small in SMALLER.items():
        assert any(large in text for _, text in found), large
        found = [(language, text.replace(large, small)) for language, text in found]
    return [(language, text.replace("--rdzv-id mine", f"--rdzv-id {uuid.uuid4().hex}")) for language, text in found]


def shell(text: str) -> None:
    done = subprocess.run(["bash", "-ec", text], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"


def test_the_commands_of_the_page_run_and_all_give_the_same_run(machine):
    (kind, spec), one, eight, first, second, script, submit, *rest = blocks()
    commands = (one, eight, first, second, script, submit, *rest)
    assert kind == "toml" and {language for language, _ in commands} == {"bash"}
    (machine / "spec.toml").write_text(spec)
    shell(one[1])
    assert (machine / "runs" / "one" / "gantt.html").exists()
    shell(eight[1])
    meeting = re.search(r"--rdzv-id (\w+)", first[1])[1]
    other = subprocess.Popen(["bash", "-ec", re.sub(r"--rdzv-id \w+", f"--rdzv-id {meeting}", second[1])])
    shell(first[1])
    assert other.wait(PATIENCE_S) == 0
    (machine / "job.sh").write_text(script[1])
    shell(submit[1])
    assert (machine / "job-9432.log").exists()
    for _, text in rest:
        shell(text)
    assert paci_lab.open_run(machine / "runs" / "longer").result()["updates"] == 2
    assert (machine / "weights.safetensors").exists()
    assert paci_lab.open_run(machine / "runs" / "replicas").result()["ranks"] == 4
    exact = assert_run_is_replay(paci_lab.open_run(machine / "runs" / "one"))
    for name in ("eight", "two", "job-9432"):
        run = paci_lab.open_run(machine / "runs" / name)
        assert run.result()["updates"] == 6 and run.dir.losses() == exact.losses
