"""The schedule-design game without a browser: moves, levels, score, help, shared texts, the file, and real ranks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import pytest
from engine_helpers import assert_run_is_replay, run_to_end

from paci_lab import InputError, ScheduleError, open_run, simulate, validate
from paci_lab.game import (
    Board,
    board_of,
    board_spec,
    compared,
    level_named,
    levels,
    predicted,
    schedule_name,
    score,
    show_solution,
    take_step,
    text_of,
)
from paci_lab.game.assist import Help, next_step
from paci_lab.game.progress import FILE, Progress
from paci_lab.game.run import repeated
from paci_lab.game.shown import outcome
from paci_lab.schedules import Op, build_schedule, schedule_classes

LEVELS = levels()
IDS = [level.id for level in LEVELS]


def played(level, seed: int, moves: int = 40) -> Board:
    """A board after so many legal moves drawn by chance, or as many as there are."""
    board, draw = Board(level), random.Random(seed)
    for _ in range(moves):
        legal = board.legal()
        if not legal:
            break
        assert board.place(draw.choice(legal)) is None
    return board


# -- moves ------------------------------------------------------------------------------------------------------------
def test_moves_and_what_the_rules_say():
    board = Board("1f1b")
    assert board.place("0F0") is None
    assert board.trace.makespan_ns == 1e6

    # A refusal has the words of `validate`, and changes nothing.
    before = board.lines
    for op, code, reason in (
        ("0B0", "deadlock", "no rank can go on: 0B0 waits for 1B0"),
        ("1B0", "order", "it comes before 1F0 on its own stage"),
        ("0F0", "repeated", "it runs a second time"),
        ("0U0", "window", "update 0 must follow the backwards of its window"),
    ):
        refusal = board.place(op)
        assert refusal.code == code and reason in refusal.reason and refusal.op == refusal.asked == Op.parse(op)
        assert op in str(refusal) and reason in str(refusal)
        assert board.lines == before and not board.complete
    for op in ("1F0", "2F0"):
        assert board.place(op) is None
    assert board.place("2F1").code == "deadlock"
    refusal = board.remove("1F0")  # names the operation that needs it
    assert (refusal.asked, refusal.op, refusal.out) == (Op(1, "F", 0), Op(2, "F", 0), True)
    for op in ("0F1", "1F1"):
        assert board.place(op) is None
    refusal = board.place("2F1")  # one micro-batch only may be held there
    assert refusal.code == "in-flight" and "more than its limit of 1" in refusal.reason

    # In the middle, and from one place to another.
    assert board.place("2B0") is None and board.place("1B0", at=1) is None
    assert [str(op) for op in board.lines[1]] == ["1F0", "1B0", "1F1"]
    assert board.move("1B0", at=3) is None
    assert [str(op) for op in board.lines[1]] == ["1F0", "1F1", "1B0"]
    assert board.move("1B0", at=0).code == "order"
    assert board.move("1F1", at=0).code == "message order"  # stage 0 sends 0 first


def test_undo_and_redo():
    board = Board("pair")
    assert not board.undo() and not board.redo()
    for op in ("0F0", "0F1", "1F0"):
        board.place(op)
    board.place("1B1")  # refused: no move
    lines = board.lines
    assert board.undo() and board.undo() and board.lines == ((Op(0, "F", 0),), ())
    assert board.redo() and board.redo() and board.lines == lines and not board.can_redo
    board.undo()
    board.place("1F0")
    assert not board.redo()  # a new move has replaced it
    show_solution(board)
    assert board.complete and board.undo() and board.lines == lines


@pytest.mark.parametrize("op", ["9F0", "0F2", "0I0", "0U1", "words", ""])
def test_what_is_no_operation_of_the_level(op):
    with pytest.raises(InputError, match="operation"):
        Board("pair").place(op)


def test_a_board_is_its_simulation():
    """Every operation starts as early as its rank and its input allow, which is reckoned here anew."""
    for number, level in enumerate(LEVELS):
        board = played(level, seed=number)
        took = {"F": level.forward, "B": level.backward, "I": level.backward / 2, "W": level.backward / 2, "U": 0}
        ends: dict[tuple[int, str, int], float] = {}
        found = {}
        while len(found) < sum(map(len, board.lines)):
            for line in board.lines:
                free = 0.0
                for op in line:
                    source = {"F": (op.stage - 1, "F"), "B": (op.stage + 1, "B"), "I": (op.stage + 1, "B")}.get(op.kind)
                    outside = source and 0 <= source[0] < level.stages
                    if outside and (*source, op.microbatch) not in ends:
                        break
                    start = max(free, ends[*source, op.microbatch] if outside else 0)
                    free = start + took[op.kind]
                    ends[op.stage, "B" if op.kind == "I" else op.kind, op.microbatch] = free
                    found[op] = (start * 1e6, free * 1e6)
        work = board.trace.of_kind(*level.kinds)
        assert {Op(e.stage, e.op, e.microbatch): (e.start_ns, e.end_ns) for e in work} == found


# -- levels -----------------------------------------------------------------------------------------------------------
def test_levels_lead_from_two_stages_to_a_bounded_gap():
    assert 7 <= len(LEVELS) <= 10 and len(set(IDS)) == len(IDS)
    assert LEVELS[0].stages == 2 and any(level.split for level in LEVELS) and any(level.stashed for level in LEVELS)
    assert max(LEVELS[-1].gap_bound) == 1 and LEVELS[-1].par.copies == 1
    known = {number for cls in schedule_classes().values() for number in (sys.modules[cls.__module__].__doc__,)}
    for level in LEVELS:
        for _name, number in level.papers:
            assert any(number in text for text in known), f"{number} is in none of our schedules"
    with pytest.raises(InputError, match="bounded"):
        level_named("none")


@pytest.mark.parametrize("level", LEVELS, ids=IDS)
def test_par_is_what_the_reference_reaches(level):
    board = Board(level, level.solution())
    assert board.measures == level.par and score(board).won
    reference = build_schedule(
        level.reference, stages=level.stages, microbatches=level.microbatches, window=level.window
    )
    trace = simulate(reference, level.costs)
    assert level.par.makespan == trace.makespan_ns / 1e6 and level.par.gap == max(trace.version_gap_max())
    assert level.in_flight == tuple(reference.in_flight(stage) for stage in range(level.stages))
    assert level.gap_bound == tuple(reference.gap_bound(stage) for stage in range(level.stages))


@pytest.mark.parametrize("level", LEVELS, ids=IDS)
def test_no_level_is_won_by_doing_one_thing_after_the_other(level):
    board = Board(level)
    assert not score(board).won and score(board).left == sum(map(len, level.solution()))
    for microbatch in range(level.microbatches):
        for stage in range(level.stages):
            assert board.place(Op(stage, "F", microbatch)) is None
        for stage in reversed(range(level.stages)):
            for kind in level.kinds[1:-1]:
                assert board.place(Op(stage, kind, microbatch)) is None
            if (microbatch + 1) % level.window == 0:
                assert board.place(Op(stage, "U", microbatch // level.window)) is None
    found = score(board)
    assert found.complete and not found.won and found.over == ["makespan"]
    assert "over par in: makespan" in found.words()


def test_beating_1f1b_beats_1f1b():
    beat, usual = level_named("beat"), level_named("1f1b")
    assert (beat.stages, beat.microbatches) == (usual.stages, usual.microbatches)
    assert beat.par.makespan < usual.par.makespan and beat.par.activations <= usual.par.activations


def test_score_in_words():
    board = Board("gpipe")
    show_solution(board)
    assert score(board).words() == "Solved: par in every measure."
    board.put(Board("1f1b", level_named("1f1b").solution()).lines)
    better = score(board)
    assert better.words() == "Solved, and better than par."
    assert ("activations held", "3", "4", "1 under par") in better.rows()
    board.undo()
    board.remove("0U0")
    assert score(board).words() == "1 operation is still to be placed."
    assert "18  par   18" in str(better)


# -- help -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("level", LEVELS, ids=IDS)
def test_steps_lead_from_any_board_to_the_solution(level):
    for seed in range(3):
        board = played(level, seed, moves=6 + 6 * seed)
        while (step := take_step(board)) is not None:
            assert str(step.op) in str(step)
        assert board.lines == level.solution()


def test_a_hint_says_what_leads_away():
    board = Board("1f1b", ((Op(0, "F", 1),), (), ()))
    step = next_step(board)
    assert step.back and (step.op, step.instead, step.rank) == (Op(0, "F", 1), Op(0, "F", 0), 0)
    assert str(step).startswith("The solution goes on with 0F0 on rank 0") and str(step).endswith("take back 0F1.")
    assert str(next_step(Board("1f1b"))) == "Next in the solution: 0F0."
    assert Help(hints=2, solution=True).words() == "Help used: 2 hints, the solution."


# -- shared texts -----------------------------------------------------------------------------------------------------
def test_a_board_goes_through_its_text_whole():
    for number, level in enumerate(LEVELS):
        for board in (Board(level), played(level, number), Board(level, level.solution())):
            text = text_of(board)
            assert board_of(f"  {text}\n", level).lines == board.lines and text.isidentifier() and len(text) < 120


def damaged(**changes: str) -> str:
    """A text whose checksum fits, with something wrong in it."""
    from zlib import crc32

    parts = {"version": "game1", "level": "pair", "lines": "FFBBU_FFBBU"} | changes
    body = "_".join(parts.values())
    return f"{body}_{crc32(body.encode()):08x}"


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "does not begin with game1_"),
        ("game2_pair_FF_F_00000000", "does not begin with game1_"),
        ("game1_" + "F" * 10_000, "does not begin"),
        (damaged()[:-9], "checksum does not fit"),
        (damaged().replace("FFBBU", "FFBU", 1), "checksum does not fit"),
        (damaged(level="none"), "this version does not have: none"),
        (damaged(level="gpipe", lines="F_F_F"), "of the level “Fill the pipeline”, and “Two stages” is open"),
        (damaged(lines="F_F_F"), "It has 3 ranks, and its level 2"),
        (damaged(lines="FF<b>_F"), "Rank 0 has something that is no operation"),
        (damaged(lines="FFF_F"), "no operation 0F2"),
        (damaged(lines="I_F"), "no operation 0I0"),
        (damaged(lines="F999999_F"), "no operation 0F999999"),
        (damaged(lines="FFB_F"), "It breaks a rule at 0B0 (deadlock: no rank can go on: 0B0 waits for 1B0)"),
    ],
)
def test_a_text_that_cannot_be_laid_out_is_refused_in_a_sentence(text, says):
    with pytest.raises(InputError) as refused:
        board_of(text, level_named("pair"))
    assert says in str(refused.value)


def test_the_text_is_the_name_of_its_schedule():
    board = Board("beat", level_named("beat").solution())
    name = schedule_name(board)
    schedule = build_schedule(name, stages=3, microbatches=8, window=4)
    validate(schedule)
    assert schedule == build_schedule(name, stages=3, microbatches=8, window=4) and schedule.flushes
    assert simulate(schedule.shortened(4), board.level.costs).makespan_ns == 14e6
    with pytest.raises(InputError, match="Use stages 3"):
        build_schedule(name, stages=4, microbatches=8, window=4)
    with pytest.raises(InputError, match="checksum"):
        build_schedule(name[:-1], stages=3, microbatches=8, window=4)
    asked = ["export", "-", "--schedule", name, "--stages", "3", "--window", "4"]
    done = subprocess.run([sys.executable, "-m", "paci_lab.cli", *asked], capture_output=True, text=True)
    assert done.stdout.splitlines()[0].startswith("0F0,0F1,0F2,"), done.stderr


# -- the file ---------------------------------------------------------------------------------------------------------
def test_what_is_reached_survives(tmp_path):
    first = Progress(tmp_path / "new")
    board = Board("pair")
    board.place("0F0")
    first.keep(board, Help(hints=1), solved=True)
    board.place("0F1")
    first.keep(board, Help(hints=2), solved=False)
    again = Progress(tmp_path / "new")
    assert again.board(board.level).lines == board.lines and again.help(board.level) == Help(hints=2)
    assert again.solved(board.level) and again.last == "pair" and not again.note
    assert again.board(level_named("gpipe")).lines == ((),) * 3 and not again.solved(level_named("gpipe"))
    assert [path.name for path in (tmp_path / "new").iterdir()] == [FILE]  # nothing half-written beside it


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "levels": {"pair": {}}}', '{"schema": 1, "levels": [1]}', "\xff"],
)
def test_a_file_that_cannot_be_read_is_put_aside(tmp_path, content):
    (tmp_path / FILE).write_text(content, encoding="latin-1")
    progress = Progress(tmp_path)
    assert "kept as paci-game.broken.json" in progress.note
    assert (tmp_path / "paci-game.broken.json").read_text(encoding="latin-1") == content
    progress.keep(Board("pair"), Help(), solved=False)
    assert not progress.note and json.loads((tmp_path / FILE).read_text())["last"] == "pair"


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path):
    (tmp_path / "file").write_text("")
    progress = Progress(tmp_path / "file")
    progress.keep(Board("pair"), Help(), solved=False)
    assert "will not be remembered" in progress.note


def test_a_board_of_other_rules_is_not_laid_out(tmp_path):
    row = {"board": damaged(lines="FFF_F"), "help": vars(Help()), "solved": True}
    (tmp_path / FILE).write_text(json.dumps({"schema": 1, "last": "pair", "levels": {"pair": row}}))
    progress = Progress(tmp_path)
    assert progress.board(level_named("pair")).lines == ((), ()) and "no operation 0F2" in progress.note
    assert progress.solved(level_named("pair"))


# -- the view, without a page -----------------------------------------------------------------------------------------
def test_the_view_says_and_keeps_what_happens(tmp_path):
    from paci_lab.game.view import play

    game = play(folder=tmp_path)
    assert not list(tmp_path.iterdir())  # to look at it leaves nothing behind

    def does(**asked) -> str:
        game._heard(asked)
        assert not game.problems.last
        return game.front.board["said"]

    assert does(do="next", rank=0, kind="F", number=None, at=None) == "0F0 is placed, from 0 to 1."
    assert "0B0 waits for 1B0" in does(do="place", op="0B0", at=None) and game.front.board["refused"] == "0B0"
    assert does(do="next", rank=0, kind="W", number=None) == "This level has no W: its operations are F, B, U."
    assert does(do="next", rank=0, kind="F", number=7) == "This level has no 0F7."
    assert does(do="legal") == "Legal now, each at the end of its rank: 0F1, 1F0."
    assert [chip["legal"] for chip in game.front.board["ranks"][1]["chips"]] == [True] + [False] * 4
    does(do="solution")
    assert game.front.board["won"] and not game.progress.solved(game.board.level)  # that was not the player
    does(do="remove", op="0U0")
    assert "Solved" in does(do="next", rank=0, kind="U", number=None, at=None)
    assert game.progress.solved(game.board.level) and game.controls["level"].options[0][0].endswith("✓")
    does(do="clear")
    assert does(do="undo").startswith("The last move is taken back.")

    game.controls["text"].value = text_of(Board("gpipe"))
    game.controls["load"].click()
    assert "choose that level first" in game.front.board["said"] and game.front.board["won"]
    game.controls["level"].value = "gpipe"
    game.controls["load"].click()
    assert "Level Fill the pipeline" in play("gpipe", folder=tmp_path).front.board["said"]
    assert play(folder=tmp_path).board.level.id == "gpipe"  # the one played last
    assert play("pair", folder=tmp_path).front.board["said"].endswith("as you left it. Solved: par in every measure.")
    with pytest.raises(InputError, match="level"):
        play("none", folder=tmp_path)


# -- real ranks -------------------------------------------------------------------------------------------------------
def test_only_a_whole_board_can_run():
    board = Board("pair")
    with pytest.raises(ScheduleError, match="forgotten"):
        board_spec(board)


def test_seconds_of_a_run_are_explained_by_the_board():
    board = Board("pair")
    show_solution(board)
    spec = board_spec(board)
    assert repeated(spec, board) == "The run repeats the board 22 times, and a time unit of the board lasts 40 ms."
    assert predicted(spec).makespan_ns == 22 * board.measures.makespan * 40 * 1e6


@pytest.mark.slow
def test_a_run_has_one_stop_button(tmp_path):
    from ipywidgets import Button

    from paci_lab.game.view import play

    def buttons(widget) -> list[str]:
        below = [name for child in getattr(widget, "children", ()) for name in buttons(child)]
        return [*below, widget.description] if isinstance(widget, Button) else below

    game = play("pair", folder=tmp_path)
    game._heard({"do": "solution"})
    game.controls["run"].click()
    while game.controls["stop"].disabled:
        assert not game.problems.last
        time.sleep(0.05)
    try:
        shown = buttons(game.widget)
        assert shown.count("Stop") == 1 and "Pause" in shown  # beside the live view, which could bring another
    finally:
        game.controls["stop"].click()
    assert game.run.dir.failure()["message"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero", "stash"])
def test_a_board_runs_on_real_ranks(name, tmp_path, monkeypatch):
    board = Board(name)
    show_solution(board)
    run = run_to_end(board_spec(board, unit_ms=10).replace(microbatches=3 * board.level.microbatches), tmp_path / "run")
    assert_run_is_replay(run)
    result, trace = run.result(), run.trace()
    assert max(result["version_gap_max"]) == board.level.par.gap
    assert max(result["weight_copies"]) == board.level.par.copies
    for rank in range(board.level.stages):
        order = [Op(e.stage, e.op, e.microbatch) for e in trace.of_kind(*board.level.kinds) if e.rank == rank]
        assert order == list(run.spec.build_schedule().ops(rank))
    assert trace.source == "measured on paced devices" and predicted(run.spec).stages == board.level.stages
    assert "on paced ranks" in compared(run.spec, trace)
    monkeypatch.chdir(tmp_path)
    assert f"The run is in {tmp_path.resolve() / 'run'}. " in outcome(open_run("run"), board)[-1].value
