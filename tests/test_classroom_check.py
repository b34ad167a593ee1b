"""Checks of exercises, with real processes: whatever a learner's function does, a sentence comes back."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from engine_helpers import session_processes, wait_until

from paci_lab import InputError
from paci_lab.classroom import check, client, recorded
from paci_lab.classroom.checking import judge
from paci_lab.classroom.exercise import find
from paci_lab.classroom.source import NotTaken, gather

ENOUGH = "02-enough"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def server():
    yield
    client.stop()
    assert not servers()


def servers() -> list[int]:
    """Check servers and their children."""
    return session_processes("paci_lab.classroom.server")


# -- answers ----------------------------------------------------------------------------------------------------------
FACTOR = 1


def bubble(stages, m):
    return FACTOR * (stages - 1) / (m + stages - 1)


def enough(stages, most):
    m = 1
    while bubble(stages, m) > most:
        m += 1
    return m


def share_of_work(stages, most):
    m = 1
    while (stages - 1) / m > most:
        m += 1
    return m


def unwritten(stages, most):
    """Says what it will do."""
    ...


def test_a_right_answer_passes_and_is_kept():
    feedback = check(ENOUGH, enough)
    assert feedback.passed and "solved" in str(feedback)
    kept = recorded.done()[ENOUGH]
    # What was checked stands on its own: the constant and the function that it uses are there too.
    assert kept.passed and "FACTOR = 1" in kept.source and kept.source.index("def bubble") < kept.source.index("def en")
    assert judge(find(ENOUGH), kept.source, kept.name).passed
    assert len(os.listdir(f"/proc/{client._server.pid}/task")) == 1  # it forks, so it must not have a second thread


def test_a_wrong_answer_is_told_with_the_smallest_case_and_why():
    feedback = check(ENOUGH, share_of_work)
    assert feedback.state == "failed" and not recorded.done()[ENOUGH].passed
    assert "With 2 stages and a bubble of 50 %: it gives 2; right is 1." in feedback.sentence
    assert "share of the whole time" in feedback.sentence


def test_what_is_not_written_yet_is_no_mistake():
    assert check(ENOUGH, unwritten).state == "open" and not recorded.done()


def test_an_order_that_differs_is_drawn_over_the_reference():
    def order(stage, stages, m):
        return [f"{kind}{k}" for kind in "FB" for k in range(m)]

    feedback = check("02-order", order)
    words = "on stage 0, entry 1 of its list is 'F1'; right is 'B0'. Entries are counted from 0."
    assert f"With 1 stage and m = 2: {words}" in feedback.sentence
    # On one stage the two charts would look the same: the first case that shows a difference is drawn.
    assert "With 2 stages and m = 2" in feedback.figure.layout.title.text
    assert [note.text for note in feedback.figure.layout.annotations if "yours" in (note.text or "")]


def test_the_notebook_is_not_disturbed():
    state = torch.random.get_rng_state()
    check("02-order", random_order)
    assert torch.equal(torch.random.get_rng_state(), state)


def random_order(stage, stages, m):
    return torch.rand(3)


def test_an_exercise_that_is_not_there_is_refused():
    for name in ("02-nothing", "xx", "77-a", None):
        with pytest.raises(InputError, match="02-enough"):
            check(name, enough)


# -- functions that misbehave -----------------------------------------------------------------------------------------
MISBEHAVES = {
    "a = 1 / 0": "raises ZeroDivisionError: division by zero, in the line: a = 1 / 0",
    "import os; os._exit(0)": "ended its process",
    "import sys; sys.exit('bye')": "leaves Python with sys.exit",
    "import os; os.kill(os.getpid(), 9)": "was killed (signal 9)",
    "import os; os.killpg(0, 9)": "was killed (signal 9)",
    "import os\n    for n in range(3, 99): os.close(n) if os.path.exists(f'/proc/self/fd/{n}') else None": "ended its",
    "return f(stages, most)": "raises RecursionError",
    "return float('nan')": "gives nan, and not a whole number",
    "return 'one'": "gives 'one'",
    "return object()": "gives object <object object",
    "return list(range(10**6))": "too large or cannot be read",
    "a = []; a.append(a); return a": "too large or cannot be read",
    "import torch; return torch.zeros(3, 3)": "gives tensor (3, 3)",
    "a = []\n    while True: a.append(bytearray(1 << 28))": "needs more than 1 GB",
    "import torch; return torch.zeros(10**11)": "needs more than 1 GB",
    "for k in range(100_000): print('x' * 50)\n    return 1": "right is 9",
    "import paci_lab.classroom.values as v; v.encode = None; return 1": "right is 9",
    "import os; os.write(5, b'[' * 100_000); return 1": "With",
    "import sys; sys.stdout = None; return 1": "right is 9",
    "open('large', 'wb').truncate(65 << 20)": "raises OSError: [Errno 27] File too large, in the line: open(",
    "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()": "raises Odd, in the line: raise type",
    "raise ValueError(chr(0xD800))": r"raises ValueError: \ud800, in",
    "return 1.0": "gives 1.0, which is a float, and right is a whole number. Use // in place of /, or int().",
}


@pytest.mark.parametrize("body", MISBEHAVES)
def test_a_function_that_misbehaves_gets_a_sentence(body):
    feedback = judge(find(ENOUGH), f"def f(stages, most):\n    {body}\n", "f")
    assert feedback.state == "failed" and MISBEHAVES[body] in feedback.sentence
    assert len(feedback.printed) < 5000
    assert check(ENOUGH, enough).passed  # and the next one is checked as ever


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("while True: pass", "was stopped after"),
        ("import time; time.sleep(1000)", "was stopped after 6 s by the clock"),
    ],
)
def test_a_function_that_does_not_end_is_stopped(body, says):
    feedback = judge(dataclasses.replace(find(ENOUGH), seconds=3), f"def f(stages, most):\n    {body}\n", "f")
    assert says in feedback.sentence


def test_what_a_function_starts_ends_with_it(tmp_path):
    written = tmp_path / "pid"
    body = (
        f"p = subprocess.Popen(['sleep', '500'], start_new_session=True); open({str(written)!r}, 'w').write(str(p.pid))"
    )
    judge(find(ENOUGH), f"import subprocess\ndef f(stages, most):\n    {body}\n    return 1\n", "f")
    with pytest.raises(ProcessLookupError):
        os.kill(int(written.read_text()), 0)


def test_what_is_no_python_is_told():
    for source in ("def f(:", "(" * 500, "\n" * 10 + "   x"):
        assert "not Python" in judge(find(ENOUGH), source, "f").sentence
    for source in ("f = 1\0", "-" * 45_000 + "1", "x" + "+x" * 20_000, "f = '\ud800'"):
        assert not judge(find(ENOUGH), source, "f").passed
    assert "not Python: UnicodeEncodeError" in judge(find(ENOUGH), "f = '\ud800'", "f").sentence
    assert "raises KeyError: 'f'" in judge(find(ENOUGH), "g = 1", "f").sentence


MODEL = object()


def test_what_cannot_be_taken_along_is_told_by_name():
    def uses(stages, most):
        return MODEL

    assert "uses MODEL, which is made outside" in check(ENOUGH, uses).sentence
    assert "this is int" in check(ENOUGH, 3).sentence
    assert "written with def" in check(ENOUGH, lambda stages, most: 1).sentence
    assert not recorded.done()


def test_attributes_and_locals_are_not_taken_for_outside_names():
    def f(x, size=FACTOR):
        MODEL = x.MODEL
        return MODEL + size

    assert "MODEL =" not in gather(f).split("def f")[0] and "FACTOR = 1" in gather(f)
    with pytest.raises(NotTaken):
        gather(len)


def test_half_a_character_in_a_function_is_told(monkeypatch):
    monkeypatch.setattr("inspect.getsource", lambda function: "def enough(stages, most):\n    return '\ud800'\n")
    assert r"enough holds '\ud800', which is half a character" in check(ENOUGH, enough).sentence


@pytest.mark.parametrize("number", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.slow)])
def test_a_function_that_ends_the_process_above_it_is_told_and_run_once(tmp_path, monkeypatch, number):
    assert check(ENOUGH, enough).passed
    monkeypatch.setattr(client, "PATIENCE_S", 10)
    written = tmp_path / "pids"
    source = (
        "import os, signal, subprocess, time\n"
        "def f(stages, most):\n"
        "    p = subprocess.Popen(['sleep', '500'], start_new_session=True)\n"
        f"    print(p.pid, file=open({str(written)!r}, 'a'), flush=True)\n"
        f"    open({str(tmp_path / 'folder')!r}, 'w').write(os.getcwd())\n"
        f"    os.kill(os.getppid(), signal.{number})\n"
        "    time.sleep(500)\n"
    )
    feedback = judge(dataclasses.replace(find(ENOUGH), seconds=10), source, "f")
    assert feedback.state == "failed" and "ended the process that checks it" in feedback.sentence
    (pid,), (folder,) = (lines.split() for lines in (written.read_text(), (tmp_path / "folder").read_text()))
    assert not Path(folder).exists()
    # Whose child it is now depends on the machine; one that nobody has waited for yet is dead as well.
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())
    assert check(ENOUGH, enough).passed


# -- the server -------------------------------------------------------------------------------------------------------
def test_a_server_that_was_killed_is_started_again():
    assert check(ENOUGH, enough).passed
    os.kill(client._server.pid, signal.SIGKILL)
    assert check(ENOUGH, enough).passed


def test_an_interrupt_of_the_notebook_ends_the_check_and_nothing_else():
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        judge(dataclasses.replace(find(ENOUGH), seconds=60), "def f(stages, most):\n    while True: pass\n", "f")
    wait_until(lambda: not servers())
    assert check(ENOUGH, enough).passed


def test_checks_from_several_threads_wait_for_each_other():
    found = []
    threads = [threading.Thread(target=lambda: found.append(check(ENOUGH, enough).passed)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


# -- what is kept -----------------------------------------------------------------------------------------------------
def test_progress_survives_spoiled_lines_and_never_goes_back(tmp_path):
    recorded.keep(ENOUGH, True, "def f(): pass", "f")
    with open(recorded.FILE, "a") as file:
        file.write('[1\n"x"\n{"exercise": 3}\n\xff\n{"exercise": "02-order", "passed": tr')
    recorded.keep("02-order", False, "def g(): pass", "g")
    recorded.keep(ENOUGH, False, "def f(): 1", "f")
    odd = {"passed": True, "source": "def h():\n    return 'a\u2028b\u2029c\x85d'", "name": "h"}
    with open(recorded.FILE, "a", encoding="utf-8") as file:  # as earlier versions wrote it
        file.write(json.dumps({"exercise": "05-a", **odd}, ensure_ascii=False) + "\n")
    recorded.keep("06-a", True, odd["source"] + "\ud800", "h")
    assert [recorded.done().pop(name).source for name in ("05-a", "06-a")] == [odd["source"], odd["source"] + "\ud800"]
    assert {name: done.passed for name, done in recorded.done().items()} == {
        ENOUGH: True,
        "02-order": False,
        "05-a": True,
        "06-a": True,
    }


def test_notebooks_side_by_side_lose_nothing(tmp_path):
    code = (
        "import sys; from paci_lab.classroom import recorded\n"
        "for n in range(15): recorded.keep(f'{sys.argv[1]}-{n}', True, 's' * 9000, 'f')"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, f"0{k}"]) for k in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(recorded.done()) == 45


def test_a_folder_that_cannot_be_written_keeps_nothing_and_says_the_result(monkeypatch):
    monkeypatch.setattr(recorded, "FILE", "no/such/folder.jsonl")
    assert check(ENOUGH, enough).passed


# -- the end, last because it stops the server that the tests above share ----------------------------------------------
@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["in a check", "idle"])
def test_a_kernel_that_is_killed_leaves_nobody_behind(busy):
    client.stop()
    body = "while True: pass" if busy else "return 1"
    code = (
        "import dataclasses; from paci_lab.classroom.checking import judge\n"
        "from paci_lab.classroom.exercise import find\n"
        "exercise = dataclasses.replace(find('02-enough'), seconds=60)\n"
        f"judge(exercise, 'def f(stages, most):\\n    {body}', 'f')\n"
        "print('done', flush=True); import time; time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as kernel:
        try:
            if busy:
                wait_until(lambda: len(servers()) == 2)  # the server and its child
            else:
                assert kernel.stdout.readline() == b"done\n"
                assert len(servers()) == 1
        finally:
            kernel.kill()
    wait_until(lambda: not servers())
