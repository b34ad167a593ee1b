"""What a result says that nobody should overlook, in a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paci_lab.spikes import spikes_text

__all__ = ["remarks", "versions_text"]


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Of a `result.json`, also of one from before these fields were in it."""
    said = []
    if result.get("precision") == "autocast" and not result["recompute"]:
        from paci_lab.precision import HIDDEN_STASH  # needs torch, seconds that every command's --help would cost

        said.append(f"Precision autocast is {HIDDEN_STASH}. Precision bf16 has one copy of the weights.")
    if any(skipped := result.get("skipped_updates") or []):
        each = ", ".join(f"stage {stage}: {count}" for stage, count in enumerate(skipped) if count)
        said.append(
            f"Updates skipped because their gradient was not finite ({each} of {result['updates']}): try a lower "
            "learning rate, or --clip-norm 1"
        )
    if spikes := result.get("loss_spikes"):
        said.append(f"Loss spikes: {spikes_text(spikes)}")
    return said


def versions_text(found: Mapping[str, str]) -> str:
    """The audit of a run in one line: what each kind of weight that enters a backward was, those alike together."""
    kinds: dict[str, list[str]] = {}
    for kind, word in found.items():
        if word != "not used":
            kinds.setdefault(word, []).append(kind)
    return "; ".join(f"{word} for {', '.join(names)}" for word, names in sorted(kinds.items())) or "none is used"
