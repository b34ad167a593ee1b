"""Words that several charts share, in the language in use."""

from __future__ import annotations

import re

from paci_lab.language import _

__all__ = ["kind_words", "source_words"]


def kind_words(op: str) -> str:
    """What a kind of operation is called: work and saving, as in `paci_lab.trace.OPS`."""
    return {
        "F": _("forward"),
        "B": _("backward"),
        "I": _("backward: input gradient"),
        "W": _("backward: weight gradient"),
        "U": _("optimizer update"),
        "snapshot": _("saving weights"),
        "checkpoint": _("saving a checkpoint"),
    }[op]


def source_words(source: str) -> str:
    """The source of a trace, which stays English as data, as a reader sees it; one of somebody's own as it is."""
    if (replica := re.fullmatch(r"(.*), replica 0 of (\d+)", source)) is not None:
        return _("{source}, replica 0 of {replicas}").format(source=source_words(replica[1]), replicas=replica[2])
    known = {
        "simulated": _("simulated"),
        "replayed": _("replayed"),
        "measured": _("measured"),
        "measured on paced devices": _("measured on paced devices"),
    }
    return known.get(source, source)
