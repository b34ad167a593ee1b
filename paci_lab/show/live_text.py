"""What the live view says in words and figures, as HTML in the notebook's own colours."""

from __future__ import annotations

from html import escape
from typing import Any

from paci_lab.language import _
from paci_lab.trace import Trace

__all__ = ["facts_html", "paragraphs_html"]


def facts_html(trace: Trace, start: int, stop: int, tokens_per_second: float | None, losses: dict[str, Any]) -> str:
    """The main figures of what is shown.

    Args:
        trace: the events in view. start, stop: the span that is shown, in nanoseconds.
        losses: as `RunFeed.losses` gives them.
    """
    part = trace.between(start, stop)
    idle = 1 - part.busy_ns().sum() / ((stop - start) * max(trace.stages, 1))
    cells = [
        (_("tokens/s"), "–" if tokens_per_second is None else f"{tokens_per_second:,.0f}"),
        (_("bubble, of the time shown"), f"{100 * idle:.1f} %" if len(part) else "–"),
        (_("version gap by stage"), " ".join(map(str, trace.version_gap_max())) or "–"),
    ]
    for key, words in (("train_loss", _("training loss")), ("val_loss", _("validation loss"))):
        values = losses[key][1]
        cells.append((words, f"{values[-1]:.3f}" if values else "–"))
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:4px 36px;color:var(--jp-content-font-color1)">'
        + "".join(
            f'<div><div style="font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums">{escape(value)}</div>'
            f'<div style="font-size:14px;opacity:0.75">{escape(words)}</div></div>'
            for words, value in cells
        )
        + "</div>"
    )


def paragraphs_html(lines: list[str]) -> str:
    """One paragraph a line; texts are escaped."""
    return "".join(f'<p style="margin:0;font-size:15px;line-height:1.5">{escape(line)}</p>' for line in lines)
