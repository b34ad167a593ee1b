"""The levels of the schedule-design game, as rows of data."""

from __future__ import annotations

import dataclasses

from paci_lab.errors import InputError
from paci_lab.language import _
from paci_lab.schedules import Op, build_schedule
from paci_lab.simulate import Costs

__all__ = ["Level", "Measures", "level_named", "levels"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measures:
    """What a board is judged by; less is better everywhere.

    Args:
        makespan: time units from the first operation to the end of the last.
        activations: most micro-batches held at once on a stage.
        copies: most copies of its weights that a stage keeps, the live one included.
        gap: largest version gap: updates between the forward and the backward of a micro-batch.
    """

    makespan: float
    activations: int
    copies: int
    gap: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """One task of the game; stages are one to a rank.

    Args:
        id: its name in shared texts and files: small letters and digits.
        title, goal, idea: what the player reads; the idea is the first step of help.
        stages, microbatches, window: as of a `Schedule`; the stream ends after `microbatches`.
        split: backwards come as two operations, I and W, each half as long.
        forward, backward: time units that they take. An update takes none.
        in_flight, gap_bound: limits per stage, as of a `Schedule`.
        stashed: a backward uses the weights of its forward, which are kept for it (PipeDream); else the live ones.
        par: what the reference reaches.
        reference: name of the schedule of ours that is the shown solution.
        papers: what it was published in, as (name, arXiv number).
    """

    id: str
    title: str
    goal: str
    idea: str
    stages: int
    microbatches: int
    window: int
    split: bool = False
    forward: int = 1
    backward: int = 2
    in_flight: tuple[int, ...]
    gap_bound: tuple[int, ...]
    stashed: bool = False
    par: Measures
    reference: str
    papers: tuple[tuple[str, str], ...] = ()

    @property
    def updates(self) -> int:
        """Updates per stage."""
        return -(-self.microbatches // self.window)

    @property
    def kinds(self) -> str:
        """Kinds of operation that its boards are made of."""
        return "FIWU" if self.split else "FBU"

    @property
    def costs(self) -> Costs:
        """What the simulator is told; a time unit is one of its milliseconds."""
        return Costs(forward_ms=self.forward, backward_ms=self.backward)

    def ops(self, rank: int) -> list[Op]:
        """All operations that belong on `rank`, by kind."""
        return [
            Op(rank, kind, number)
            for kind in self.kinds
            for number in range(self.updates if kind == "U" else self.microbatches)
        ]

    def solution(self) -> tuple[tuple[Op, ...], ...]:
        """The operations of the reference, a tuple per rank."""
        schedule = build_schedule(
            self.reference, stages=self.stages, microbatches=self.microbatches, window=self.window
        )
        return tuple(tuple(schedule.ops(rank)) for rank in range(self.stages))


def level_named(name: str) -> Level:
    """A level by its id; raises InputError for any other name."""
    found = {level.id: level for level in levels()}
    if name not in found:
        raise InputError("level", name, " | ".join(found), "choose one of these")
    return found[name]


def levels() -> tuple[Level, ...]:
    """Every level, in order, in the language in use."""
    gpipe, dapple = ("GPipe", "1811.06965"), ("DAPPLE", "2007.01045")
    zero_bubble = ("Zero Bubble Pipeline Parallelism", "2401.10241")
    pipedream, paci = ("PipeDream", "1806.03377"), ("PACI", "2606.07881")
    return (
        Level(
            id="pair",
            title=_("Two stages"),
            goal=_("Send two micro-batches forward through both stages and backward again, then update."),
            idea=_("While stage 1 works on the first micro-batch, stage 0 can begin with the second."),
            stages=2,
            microbatches=2,
            window=2,
            in_flight=(2, 2),
            gap_bound=(0, 0),
            par=Measures(makespan=9, activations=2, copies=1, gap=0),
            reference="gpipe",
        ),
        Level(
            id="gpipe",
            title=_("Fill the pipeline"),
            goal=_("Three stages, four micro-batches: let no stage wait longer than it must."),
            idea=_("All forwards first, then all backwards. Memory is not limited here."),
            stages=3,
            microbatches=4,
            window=4,
            in_flight=(4, 4, 4),
            gap_bound=(0, 0, 0),
            par=Measures(makespan=18, activations=4, copies=1, gap=0),
            reference="gpipe",
            papers=(gpipe,),
        ),
        Level(
            id="1f1b",
            title=_("Less memory"),
            goal=_("The same time, but stage s may hold the activations of only 3 - s micro-batches."),
            idea=_("A backward frees memory: do it as soon as it can be done, then one forward, one backward in turn."),
            stages=3,
            microbatches=4,
            window=4,
            in_flight=(3, 2, 1),
            gap_bound=(0, 0, 0),
            par=Measures(makespan=18, activations=3, copies=1, gap=0),
            reference="1f1b",
            papers=(dapple,),
        ),
        Level(
            id="split",
            title=_("Cut the backward"),
            goal=_("The backward comes in two halves, I and W. Only I is waited for by the stage before."),
            idea=_("Stage 1 can send every I at once, and do a W only when nothing else is there to do."),
            stages=2,
            microbatches=3,
            window=3,
            split=True,
            in_flight=(2, 2),
            gap_bound=(0, 0),
            par=Measures(makespan=10, activations=2, copies=1, gap=0),
            reference="zb-h1",
            papers=(zero_bubble,),
        ),
        Level(
            id="beat",
            title=_("Beat 1F1B"),
            goal=_("1F1B takes 18 here. With the backward cut in two, take 14, and hold no more than it does."),
            idea=_("The later a stage is, the longer it puts off its W: they fill the time at the end."),
            stages=3,
            microbatches=4,
            window=4,
            split=True,
            in_flight=(3, 3, 3),
            gap_bound=(0, 0, 0),
            par=Measures(makespan=14, activations=3, copies=1, gap=0),
            reference="zb-h1",
            papers=(zero_bubble, dapple),
        ),
        Level(
            id="zero",
            title=_("Zero bubble"),
            goal=_(
                "Two windows of three micro-batches, an update after each: after its first operation no stage waits."
            ),
            idea=_("Stage 0 may run three forwards ahead. It starts the second window while stage 1 ends the first."),
            stages=2,
            microbatches=6,
            window=3,
            split=True,
            in_flight=(3, 3),
            gap_bound=(0, 0),
            par=Measures(makespan=19, activations=3, copies=1, gap=0),
            reference="zb-h2",
            papers=(zero_bubble,),
        ),
        Level(
            id="noflush",
            title=_("Never empty"),
            goal=_(
                "Three updates of two micro-batches. A stage may update while others are under way: "
                "up to one update between a forward and its backward."
            ),
            idea=_("Do not drain before an update. One forward, one backward goes on through it."),
            stages=3,
            microbatches=6,
            window=2,
            in_flight=(3, 2, 1),
            gap_bound=(1, 1, 0),
            par=Measures(makespan=24, activations=3, copies=1, gap=1),
            reference="paci",
            papers=(paci,),
        ),
        Level(
            id="stash",
            title=_("Remember the weights"),
            goal=_(
                "An update after every micro-batch, and every backward on the weights of its forward: "
                "a stage keeps a copy of all that are still needed."
            ),
            idea=_("Count the micro-batches under way on stage 0: each has seen other weights."),
            stages=3,
            microbatches=5,
            window=1,
            in_flight=(3, 2, 1),
            gap_bound=(2, 1, 0),
            stashed=True,
            par=Measures(makespan=21, activations=3, copies=3, gap=2),
            reference="pipedream",
            papers=(pipedream,),
        ),
        Level(
            id="bounded",
            title=_("A bounded gap"),
            goal=_("Four stages, no flush, one copy of the weights, and a version gap of at most 1."),
            idea=_("A window of four micro-batches is long enough: only those in flight at an update meet a gap."),
            stages=4,
            microbatches=8,
            window=4,
            in_flight=(4, 3, 2, 1),
            gap_bound=(1, 1, 1, 0),
            par=Measures(makespan=33, activations=4, copies=1, gap=1),
            reference="paci",
            papers=(paci,),
        ),
    )
