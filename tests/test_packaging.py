"""Set-up: the files that name versions agree, the built package is complete, and `make setup` survives real folders."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from engine_helpers import PATIENCE_S
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
DATA = {".css", ".js", ".toml"}


def read_constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pinned() -> dict[str, Version]:
    return {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in read_constraints()}


def makefile_variable(name: str) -> str:
    match = re.search(rf"^{name}\s*[:?]?=\s*(.*?)\s*$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert match, f"the Makefile sets no {name}"
    return match.group(1)


def packages() -> list[Path]:
    top = [ROOT / "paci_lab", ROOT / "tuning"]
    return [d for t in top for d in [t, *t.rglob("*")] if d.is_dir() and any(d.glob("*.py"))]


DECLARED = [
    *((f"base: {line}", Requirement(line)) for line in PROJECT["project"]["dependencies"]),
    *((f"{extra}: {line}", Requirement(line)) for extra, lines in EXTRAS.items() for line in lines),
    *((f"build: {line}", Requirement(line)) for line in PROJECT["build-system"]["requires"]),
]


def test_every_constraint_is_one_exact_public_version():
    names = [canonicalize_name(r.name) for r in read_constraints()]
    assert len(names) == len(set(names)), f"pinned twice: {sorted({n for n in names if names.count(n) > 1})}"
    for requirement in read_constraints():
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        # A suffix such as +cpu exists for one build only: no other machine could install it.
        assert Version(specifier.version).local is None, requirement
    assert pinned()["torch"] == Version("2.13.0")


@pytest.mark.parametrize("requirement", [r for _, r in DECLARED], ids=[name for name, _ in DECLARED])
def test_declared_ranges_admit_the_pinned_version(requirement):
    version = pinned()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), f"{requirement} does not admit the pinned {version}"
    assert requirement.specifier, f"{requirement.name} is declared without a range"


def test_installed_versions_need_nothing_that_is_not_pinned():
    """Walks the installed metadata from the project's own dependencies: a new transitive package must be pinned."""
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec

    # Extras that `make setup` leaves out unless asked are walked where they are installed.
    left_out = ("hf:", *(() if find_spec("transformers") else ("frameworks:",)))
    pins, seen = pinned(), set()
    queue = [
        (r, "paci-lab")
        for name, r in DECLARED
        if not name.startswith(left_out) and (r.marker is None or r.marker.evaluate())
    ]
    while queue:
        requirement, parent = queue.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name}, which {parent} needs, is not installed: this is not an environment of `make setup`")
        # CUDA builds of torch bring their own exact pins of packages that exist for one platform only.
        if parent == "torch" and (name.startswith(("nvidia-", "cuda-")) or name == "triton"):
            continue
        assert name in pins, f"{name}, which {parent} needs, is not pinned in constraints.txt"
        for line in installed.requires or []:
            child = Requirement(line)
            wanted = child.marker is None or any(
                child.marker.evaluate({"extra": extra}) for extra in requirement.extras or {""}
            )
            if wanted:
                queue.append((child, name))


def test_environment_yml_installs_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["project"]["name"]
    (python,) = [d for d in environment["dependencies"] if isinstance(d, str) and d.startswith("python")]
    minimum = makefile_variable("MIN_PYTHON")
    assert python == f"python={minimum}"
    assert "pip" in environment["dependencies"]
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    assert pip == ["-c constraints.txt", f"-e .[{makefile_variable('EXTRAS')}]"]
    assert set(makefile_variable("EXTRAS").split(",")) <= set(EXTRAS)


def test_makefile_asks_for_the_python_the_package_requires():
    minimum = makefile_variable("MIN_PYTHON")
    assert PROJECT["project"]["requires-python"] == f">={minimum}"
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + minimum.replace(".", "")
    assert SpecifierSet(f">={minimum}").contains(Version(sys.version.split()[0]), prereleases=True)


def test_every_folder_of_modules_is_a_package():
    assert packages(), "no packages found"
    missing = [str(d.relative_to(ROOT)) for d in packages() if not (d / "__init__.py").exists()]
    assert not missing, f"left out of the installed package, for want of an __init__.py: {missing}"


def copy_tree(target: Path) -> Path:
    """A copy as a clone would give it: what git knows or would add, and nothing that .gitignore names."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: " + listed.stderr.strip())
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def test_wheel_holds_every_module_and_data_file(tmp_path):
    pytest.importorskip("setuptools", minversion="77.0.3")
    tree = copy_tree(tmp_path / "tree")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, tree]
    subprocess.run(command, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [archive.read(n).decode() for n in names if n.endswith("entry_points.txt")]
    files = [f for top in ("paci_lab", "tuning") for f in (tree / top).rglob("*") if f.suffix in {".py", *DATA}]
    assert files
    assert {str(f.relative_to(tree)) for f in files} <= names
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/", "notebooks/"))]
    for script, target in PROJECT["project"]["scripts"].items():
        assert f"{script} = {target}" in entry_points


def test_leftover_check_sees_a_rank_and_nothing_else(leftovers):
    if not Path("/proc/self/environ").exists():
        pytest.skip("no /proc on this system")
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    foreign = os.environ | {"PACI_LAB_TEST_SESSION": "another"}
    rank = subprocess.Popen([*sleep, "paci_lab.runtime.worker"], stdout=subprocess.PIPE)
    others = [
        subprocess.Popen(sleep, stdout=subprocess.PIPE),
        subprocess.Popen([*sleep, "paci_lab.runtime.worker"], stdout=subprocess.PIPE, env=foreign),
    ]
    try:
        for process in (rank, *others):
            process.stdout.readline()  # only now is its command line the one it keeps
        found = leftovers()
        assert "paci_lab.runtime.worker" in found[rank.pid]
        assert not {process.pid for process in others} & set(found)
    finally:
        for process in (rank, *others):
            process.kill()
            process.communicate()
    assert rank.pid not in leftovers()


class Tree:
    """A clone in a folder whose name has spaces, driven by make with an empty home directory."""

    def __init__(self, base: Path) -> None:
        self.path = copy_tree(base / "with space" / "paci lab")
        (base / "home").mkdir()
        cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True)
        # Only the download cache is shared: without it every run of this test would fetch torch again.
        self.environ = os.environ | {"HOME": str(base / "home"), "PIP_CACHE_DIR": cache.stdout.strip()}
        for name in ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS", "EXTRAS", "PYTHON"):
            self.environ.pop(name, None)

    def command(self, *arguments: str) -> list[str]:
        # The interpreter is named: which pythonX.Y commands exist, and what they find without HOME, differs by machine.
        return ["make", *arguments, f"PYTHON={getattr(sys, '_base_executable', sys.executable)}"]

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.path, env=self.environ, capture_output=True, text=True, timeout=1500
        )


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_setup_names_what_is_missing(tmp_path):
    tree = Tree(tmp_path)
    commands = tmp_path / "commands"
    commands.mkdir()

    def pretend(name: str, text: str) -> None:
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)

    def refusal(*arguments: str) -> str:
        environ = tree.environ | {"PATH": f"{commands}:/usr/bin:/bin"}
        result = subprocess.run(
            ["make", "setup", *arguments], cwd=tree.path, env=environ, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 2, result.stdout
        assert not (tree.path / ".venv").exists()
        return result.stderr

    minimum = makefile_variable("MIN_PYTHON")
    needed = f"Python {minimum} or newer is needed; found:"
    assert f"{needed} {tmp_path}/none does not run" in refusal(f"PYTHON={tmp_path}/none")
    pretend("old", "case $2 in *print*) echo 3.9;; *) exit 1;; esac")
    assert f"{needed} old (is 3.9)" in refusal("PYTHON=old")
    # What a version manager leaves behind: commands that exist and only print an error.
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        pretend(name, "echo 'command not found' >&2; exit 127")
    assert f"{needed} none" in refusal()
    # And Debian's python3 without python3-venv, the last one tried.
    pretend("python3", "case $2 in *print*) echo 3.12;; *ensurepip*) exit 1;; esac")
    assert "python3 cannot make a virtual environment" in refusal()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_setup_from_nothing(tmp_path):
    tree = Tree(tmp_path)
    venv = tree.path / ".venv"

    # Interrupted while pip is writing packages ...
    first = subprocess.Popen(
        tree.command("setup"), cwd=tree.path, env=tree.environ, start_new_session=True, stdout=subprocess.DEVNULL
    )
    while first.poll() is None and not list(venv.glob("lib/python*/site-packages/numpy")):
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait(PATIENCE_S) != 0
    assert not list(venv.glob(".ready-*"))

    # ... the next call finishes, with the pinned versions and a package that is importable from anywhere.
    result = tree.make("setup")
    assert result.returncode == 0, result.stderr
    python = venv / "bin" / "python"
    subprocess.run([python, "-m", "pip", "check"], check=True, timeout=120)
    freeze = subprocess.run([python, "-m", "pip", "freeze", "--exclude-editable"], capture_output=True, text=True)
    installed = dict(line.split("==") for line in freeze.stdout.split() if "==" in line)
    pins = {name: str(version) for name, version in pinned().items()}
    assert len(installed) > 50
    different = {n: v for n, v in installed.items() if pins.get(canonicalize_name(n), v) != v.split("+")[0]}
    assert not different
    where = subprocess.run(
        [python, "-c", "import paci_lab; print(paci_lab.__path__[0])"], cwd="/", capture_output=True, text=True
    )
    assert where.stdout.strip() == str(tree.path / "paci_lab"), where.stderr
    assert (venv / "bin" / "paci-lab").exists()

    # Unchanged: nothing to do. Changed, here with an older time as a checkout may leave it: done again.
    assert "setup:" not in tree.make("setup").stdout
    constraints = tree.path / "constraints.txt"
    constraints.write_text(constraints.read_text() + "# changed\n")
    os.utime(constraints, (0, 0))
    again = tree.make("setup")
    assert again.returncode == 0 and "setup: ready" in again.stdout and "new .venv" not in again.stdout
    assert "setup:" not in tree.make("setup").stdout
    shutil.rmtree(venv)
