"""`Op`: one operation of a pipeline stage, the word every schedule is written in."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["KINDS", "Op"]

KINDS = {
    "F": "forward",
    "B": "backward (input and weight gradient together)",
    "I": "input gradient, the half of a split backward that the stage before waits for",
    "W": "weight gradient, the other half",
    "U": "optimizer update",
}

_TEXT = re.compile(r"(\d+)([FBIWU])(\d+)")


class Op(NamedTuple):
    """Stage, kind and micro-batch of one operation; for an update (U) the third number counts updates from 0.

    The text form is the one of `torch.distributed.pipelining`, with U added.

    >>> str(Op(2, "F", 0)), Op.parse("1U3")
    ('2F0', Op(stage=1, kind='U', microbatch=3))
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Read the text form; raises ValueError naming the text when it is not an operation."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} is not an operation: expected stage, one of {'/'.join(KINDS)}, number, as in 2F0"
            )
        return cls(int(match[1]), match[2], int(match[3]))
