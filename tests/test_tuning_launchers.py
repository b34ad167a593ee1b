"""Launchers: SLURM against a stand-in scheduler, a site's own file, and what is refused."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from engine_helpers import processes_of, tiny, wait_until
from test_tuning_runs import uncapped

import paci_lab
import tuning
from paci_lab import InputError
from tuning.launchers import Launcher, open_launcher
from tuning.launchers.slurm import Slurm

SCHEDULER = '''#!{python}
"""Stands in for sbatch, squeue, scancel, srun and scontrol: a job is a process group of this machine, and so is each
of its nodes."""
import os, signal, subprocess, sys

name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
pending = os.path.join(os.path.dirname(__file__), "pending")
if name == "sbatch":
    script = arguments[-1]
    if "--partition=none" in open(script).read():
        sys.exit("sbatch: error: invalid partition specified: none")
    log = next(l for l in open(script) if l.startswith("#SBATCH --output=")).split("=", 1)[1].strip()
    nodes = next(l for l in open(script) if l.startswith("#SBATCH --nodes=")).split("=", 1)[1].strip()
    environment = {{**os.environ, "SLURM_JOB_ID": "9473", "SLURM_NNODES": nodes, "SLURM_JOB_NODELIST": "node[1-2]"}}
    job = subprocess.Popen(
        ["bash", script], stdout=open(log, "w"), stderr=subprocess.STDOUT, start_new_session=True, env=environment
    )
    print(f"{{job.pid}};cluster")
elif name == "srun":
    tasks = [subprocess.Popen(arguments) for _ in range(int(os.environ["SLURM_NNODES"]))]
    sys.exit(max(abs(task.wait()) for task in tasks))
elif name == "scontrol":
    assert arguments == ["show", "hostnames", "node[1-2]"]
    print("127.0.0.1\\nnode2")
elif name == "squeue":
    if os.path.exists(pending):
        print("PENDING")
        sys.exit(0)
    job = int(next(a for a in arguments if a.startswith("--jobs=")).split("=")[1])
    try:
        state = open(f"/proc/{{job}}/stat").read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print("" if state == "Z" else "RUNNING")
else:
    os.killpg(int(arguments[0]), signal.SIGTERM)
'''


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """A PATH on which the commands of SLURM are stand-ins."""
    folder = tmp_path / "slurm-bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "srun", "scontrol"):
        (folder / name).write_text(SCHEDULER.format(python=sys.executable))
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def spec(**changes):
    return tiny(**{"stages": 2, "partition": [3, 3], "updates": 4, **changes})


def test_slurm_submits_watches_and_finds_the_result(scheduler, tmp_path):
    run_dir = tmp_path / "trials" / "paci-0000"
    job = Slurm(poll_s=0.2).start(spec(), run_dir)
    assert job.id.isdigit() and job.state() in ("waiting", "running")
    wait_until(lambda: job.state() == "ended", what="the end of the job")
    assert paci_lab.open_run(run_dir).result()["updates"] == 4


def test_slurm_stop_ends_the_ranks(scheduler, tmp_path):
    run_dir = tmp_path / "trials" / "paci-0000"
    job = Slurm(poll_s=0.1).start(spec(updates=400, pace_forward_ms=20.0), run_dir)
    wait_until(lambda: (run_dir / "metrics.jsonl").exists(), what="the start of its ranks")
    job.stop()
    assert job.state() == "ended"
    wait_until(lambda: not processes_of(run_dir), what="the end of its ranks")


def test_slurm_tells_a_job_in_the_queue_from_one_that_runs(scheduler, tmp_path):
    (scheduler / "pending").touch()
    job = Slurm(poll_s=0.0).start(spec(updates=400, pace_forward_ms=20.0), tmp_path / "trials" / "a")
    assert [job.state() for _ in range(3)] == ["waiting"] * 3
    (scheduler / "pending").unlink()
    wait_until(lambda: job.state() == "running", what="its turn")
    job.stop()


def test_slurm_takes_silence_of_the_scheduler_for_nothing(scheduler, tmp_path):
    job = Slurm(poll_s=0.0).start(spec(updates=400, pace_forward_ms=20.0), tmp_path / "trials" / "a")
    working = (scheduler / "squeue").read_text()
    wait_until(lambda: job.state() == "running", what="its turn")
    (scheduler / "squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert job.state() == "running"
    (scheduler / "squeue").write_text(working)
    job.stop()


def test_slurm_script_asks_for_what_was_given(tmp_path):
    script = Slurm(
        partition="gpu", gpus=4, time_limit="01:00:00", sbatch=["--account=vision"], setup=["module load cuda"]
    ).script(spec(threads=3), tmp_path / "trials" / "paci-0000", tmp_path / "trials" / "jobs")
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --time=01:00:00",
        "#SBATCH --account=vision",
        "#SBATCH --cpus-per-task=6",
        "#SBATCH --nodes=1",
        "module load cuda",
    ):
        assert line in script.splitlines()
    assert script.splitlines()[-1].startswith(f"exec srun {sys.executable} -m paci_lab.cli train ")


def test_slurm_on_several_nodes_asks_for_them_and_meets_on_the_first(tmp_path):
    lines = Slurm(nodes=2, gpus=2).script(spec(stages=4, partition=[1, 1, 2, 2]), tmp_path / "t", tmp_path).splitlines()
    for line in ("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--gpus-per-node=2"):
        assert f"#SBATCH {line}" in lines
    assert lines[-2] == (
        'PACI_MEET=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 10000))'
    )
    assert lines[-1] == (
        f"exec srun {sys.executable} -m torch.distributed.run --nnodes 2 --rdzv-backend c10d "
        '--rdzv-endpoint "$PACI_MEET" --rdzv-id "$SLURM_JOB_ID" --nproc-per-node 2 '
        f"-m paci_lab.train {tmp_path}/t.toml --run-dir {tmp_path}/t"
    )


def test_slurm_refuses_nodes_that_cannot_share_the_ranks(scheduler, tmp_path):
    with pytest.raises(InputError, match="a divisor of 2"):
        Slurm(nodes=3).start(spec(), tmp_path / "trials" / "a")


@pytest.mark.slow
def test_a_trial_on_two_nodes_of_slurm(scheduler, tmp_path):
    run_dir = tmp_path / "trials" / "paci-0000"
    job = Slurm(nodes=2, poll_s=0.2).start(spec(), run_dir)
    wait_until(lambda: job.state() == "ended", what="the end of the job")
    log = (tmp_path / "trials" / "jobs" / "paci-0000.log").read_text()
    assert (run_dir / "result.json").exists(), log
    assert paci_lab.open_run(run_dir).result()["updates"] == 4
    job = Slurm(nodes=2, poll_s=0.2).start(spec(updates=400, pace_forward_ms=20.0), tmp_path / "trials" / "paci-0001")
    wait_until(lambda: (tmp_path / "trials" / "paci-0001" / "metrics.jsonl").exists(), what="the start of its ranks")
    job.stop()
    wait_until(lambda: not processes_of(tmp_path / "trials" / "paci-0001"), what="the end of its ranks")


def test_what_sbatch_refuses_is_one_message(scheduler, tmp_path):
    with pytest.raises(InputError, match="invalid partition specified"):
        Slurm(partition="none").start(spec(), tmp_path / "trials" / "a")


def test_slurm_without_slurm_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="login node"):
        Slurm().start(spec(), tmp_path / "trials" / "a")


@pytest.mark.slow
def test_a_whole_study_over_slurm(scheduler, tmp_path):
    base = spec(updates=None, microbatches=60, evaluate_every=6, learning_rate=5e-3, learning_rate_schedule="constant")
    settings = tuning.Settings(
        base=base,
        space=tuning.Space(windows=(2,), flush_windows=(3,)),
        seeds=1,
        confirm_seeds=1,
        launcher="slurm",
        launcher_options={"poll_s": 0.2},
    )
    study = uncapped(tmp_path / "s", settings)
    assert study.run()["confirmed"]
    assert {t.status for t in study.trials()} == {"reached"}


def test_a_launcher_from_a_file_and_the_built_in_ones_keep_the_protocol():
    site = f"{Path(__file__).with_name('tuning_landscape.py')}:Landscape"
    for name in ("local", "slurm", "torchrun", site):
        assert isinstance(open_launcher(name, {}), Launcher)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pigeons", {}),
        ("local", {"gpus": 4}),
        ("torchrun", {"nodes": 2}),
        ("torchrun", {"nodes": 0}),
        ("slurm", {"nodes": "two"}),
        ("no_such.py:Class", {}),
        (f"{Path(__file__)}:Path", {}),
    ],
)
def test_an_unknown_launcher_or_option_is_refused_before_a_study_is_made(tmp_path, name, options):
    with pytest.raises(InputError) as refusal:
        tuning.Study.create(tmp_path / "s", tuning.Settings(base=spec(), launcher=name, launcher_options=options))
    assert refusal.value.what.startswith("launcher")
    assert not (tmp_path / "s").exists()
