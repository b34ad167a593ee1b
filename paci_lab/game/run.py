"""A finished board on real ranks: paced devices that take as long as the level says, and what was predicted."""

from __future__ import annotations

from paci_lab.errors import InputError
from paci_lab.game.board import Board
from paci_lab.game.share import schedule_name
from paci_lab.language import _
from paci_lab.schedules import validate
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace

__all__ = ["UNIT_MS", "board_spec", "compared", "predicted", "repeated"]

UNIT_MS = 40.0
"""What a time unit of a level is on paced ranks."""

_SECONDS = 8.0
_LEAST = 2


def board_spec(board: Board, *, unit_ms: float = UNIT_MS) -> TrainSpec:
    """A training of some eight seconds in which every rank does what the board says, again and again.

    The real work is a small GPT; each operation then lasts as long as stated. Raises `ScheduleError` for a board that
    is not complete.
    """
    validate(board.schedule)
    level = board.level
    laps = max(_LEAST, round(_SECONDS * 1e3 / (board.measures.makespan * unit_ms)))
    return TrainSpec(
        schedule=schedule_name(board),
        stages=level.stages,
        window=level.window,
        microbatches=laps * level.microbatches,
        microbatch_size=1,
        model="femto",
        device="cpu",
        pace_forward_ms=level.forward * unit_ms,
        pace_backward_ms=level.backward * unit_ms,
        validation_batches=1,
        evaluate="after",
    )


def predicted(spec: TrainSpec) -> Trace:
    """What the simulator says of a paced run, from the stated durations alone."""
    return simulate(spec.build_schedule(), Costs(forward_ms=spec.pace_forward_ms, backward_ms=spec.pace_backward_ms))


def repeated(spec: TrainSpec, board: Board) -> str:
    """How the seconds of a run come from the time units of the board, in a sentence."""
    sentence = _("The run repeats the board {count} times, and a time unit of the board lasts {unit:g} ms.")
    level = board.level
    return sentence.format(count=spec.microbatches // level.microbatches, unit=spec.pace_forward_ms / level.forward)


def compared(spec: TrainSpec, measured: Trace) -> str:
    """Predicted and measured makespan in a sentence; raises InputError when nothing was measured."""
    if not measured.makespan_ns:
        raise InputError("trace", "empty", "a run that has done something", "let the run begin first")
    said = predicted(spec).makespan_ns / 1e9
    was = measured.makespan_ns / 1e9
    sentence = _(
        "Predicted {predicted:.2f} s, measured {measured:.2f} s on paced ranks ({over:+.1%}): messages, updates and a "
        "busy machine are what the simulator was not told of."
    )
    return sentence.format(predicted=said, measured=was, over=was / said - 1)
