"""What a study's own words are called in the language in use."""

from __future__ import annotations

from paci_lab.language import _

__all__ = ["outcome_words", "phase_words"]


def outcome_words(status: str) -> str:
    """The status of a trial as a reader sees it."""
    known = {
        "running": _("running"),
        "reached": _("reached"),
        "missed": _("missed"),
        "capped": _("capped"),
        "pruned": _("pruned"),
        "hung": _("hung"),
        "failed": _("failed"),
        "lost": _("lost"),
        "oom": _("out of memory"),
    }
    return known.get(status, status)


def phase_words(phase: str) -> str:
    """The phase of a study as a reader sees it."""
    known = {
        "baseline": _("baseline"),
        "search": _("search"),
        "final": _("final"),
    }
    return known.get(phase, phase)
