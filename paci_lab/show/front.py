"""The browser's side of the notebook views: it tells a dark page, paints the bars of a moving picture, and answers.

Plotly takes about 100 ms of a core to draw a thousand bars again, whatever they are made of. So a moving picture has
its bars painted on a canvas over plotly's axes; one that stands still is plotly's own, with the same bars.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import traitlets

from paci_lab.errors import InputError
from paci_lab.language import _, language
from paci_lab.show.bars import Rows
from paci_lab.show.chart import InPage
from paci_lab.show.gantt_fixed import fixed_traces
from paci_lab.show.palette import ink_on, theme_named

__all__ = ["Front", "moving_picture", "starting_theme"]


class _FrontInPage(InPage):
    _esm = Path(__file__).with_name("front.js")


class Front(ipywidgets.Widget):
    """Says what the page looks like, and shows pictures.

    Attributes:
        in_page: what does so in the page; takes no room there.
        page: "light" or "dark"; "" until a browser has said so.
        picture: what is to be shown, as `moving_picture` makes it, or only a number for a picture that plotly draws.
        seen: the number of the newest picture that a browser has drawn; -1 before any browser was there.
        reading: whether the chart in words is unfolded in a page, and so has to be kept up to date.
        lang: the language of the view, for a screen reader to pronounce it.
    """

    page = traitlets.Unicode("").tag(sync=True)
    picture = traitlets.Dict().tag(sync=True)
    seen = traitlets.Int(-1).tag(sync=True)
    reading = traitlets.Bool(False).tag(sync=True)
    lang = traitlets.Unicode().tag(sync=True)

    known: ClassVar[str] = "light"  # what the last page looked like, so that the next view opens as it should

    def __init__(self) -> None:
        super().__init__(lang=language().replace("_", "-"))
        self.in_page = _FrontInPage(of=self.model_id)

    def on_page(self, action: Callable[[str], None]) -> None:
        """Call `action` with "light" or "dark" when a browser says so, and whenever it changes."""

        def said(change: Any) -> None:
            Front.known = change["new"]
            action(change["new"])

        self.observe(said, "page")


def starting_theme(theme: str) -> str:
    """The theme to open a view with: what was asked for, or for "auto" that of the last page seen."""
    if theme not in ("auto", "light", "dark"):
        raise InputError("theme", theme, "auto | light | dark", "use theme='auto', which follows the page")
    return Front.known if theme == "auto" else theme


def moving_picture(figure: go.Figure, slots: list[dict], span: tuple[float, float], stages: int) -> dict[str, Any]:
    """The bars of `slots`, as `content` gives them for `figure`, for the canvas.

    Args:
        span: start and end of the time axis, in its own unit. stages: rows of the chart.

    Returns a dict: span; rows; table (the looks that bars have: fill, ink, gap in pixels, pattern); and for every bar,
    boxes (float32: from, to, top, bottom; times count from the start of the span), looks (uint8, into the table),
    words (hover texts, one a line) and texts (what stands in the bar).
    """
    options = figure.layout.meta["gantt"]
    rows, look = Rows(tuple(options["parts"])), theme_named(options["theme"])
    boxes, looks, words, texts, table = [], [], [], [], []

    def add(box: list[np.ndarray], kind: np.ndarray, said: list[str], inside: list[str]) -> None:
        boxes.append(np.stack(box, axis=1).astype(np.float32))
        looks.append(kind.astype(np.uint8))
        words.extend(said)
        texts.extend(inside)

    for slot, fixed in zip(slots, fixed_traces(0, rows, look), strict=False):
        if not len(slot["y"]):
            continue
        here = len(table)
        if fixed["name"] == "in-flight":
            from_, top, held = slot["x"] - span[0], slot["y"], slot["customdata"]
            ends = np.flatnonzero(np.isnan(from_))  # of the outlines, one a stage; each begins at its base
            base = np.repeat(top[np.r_[0, ends[:-1] + 1]], np.diff(np.r_[-1, ends]))
            keep = np.flatnonzero(from_[1:] > from_[:-1])
            table.append({"fill": fixed["fillcolor"], "ink": look.ink, "gap": 0})
            holds = _("stage {stage} holds {count} micro-batches")
            said = [holds.format(stage=stage, count=count) for stage, count in held[keep].tolist()]
            add([from_[keep], from_[keep + 1], top[keep], base[keep]], np.full(len(keep), here), said, [""] * len(keep))
            continue
        from_, half = slot["base"] - span[0], fixed["width"] / 2
        box = [from_, from_ + slot["x"], slot["y"] - half, slot["y"] + half]
        if fixed["name"] == "version":
            table += [{"fill": fill, "ink": look.ink, "gap": 0} for fill in look.strip]
            known, data = _("stage {stage}: weight version {version}"), slot["customdata"].tolist()
            said = [known.format(stage=stage, version=version) for stage, version in data]
            numbers = [f"v{version}" for _stage, version in data]
            add(box, here + slot["customdata"][:, 1].astype(int) % 2, said, numbers)
            continue
        marker = fixed["marker"]
        pattern = {"pattern": marker["pattern"]["shape"]} if "pattern" in marker else {}
        gap = marker["line"]["width"] if "text" in slot else 0
        table.append({"fill": marker["color"], "ink": ink_on(marker["color"]), "gap": gap, **pattern})
        inside = slot["text"].tolist() if "text" in slot else [""] * len(from_)
        add(box, np.full(len(from_), here), slot["customdata"].tolist(), inside)
    return {
        "span": list(span),
        "rows": stages,
        "table": table,
        "boxes": np.concatenate(boxes or [np.zeros((0, 4), np.float32)]).tobytes(),
        "looks": np.concatenate(looks or [np.zeros(0, np.uint8)]).tobytes(),
        "words": "\n".join(words).encode(),
        "texts": texts,
    }
