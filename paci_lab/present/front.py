"""The presenter's keys and buttons, in the page; what they do is decided in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets
import traitlets

from paci_lab.language import _, direction
from paci_lab.show.chart import InPage

__all__ = ["ACTIONS", "Keys"]

ACTIONS = ("previous", "toggle", "slower", "faster", "next")
"""What a presenter asks of Python. Full screen, dark and the list of keys are the page's own."""


class _KeysInPage(InPage):
    _esm = Path(__file__).with_name("present.js")
    _css = Path(__file__).with_name("present.css")


class Keys(ipywidgets.Widget):
    """Hears the presenter's keys wherever the focus is, and shows a button for each.

    Attributes:
        in_page: what does so in the page.
        texts: all words of the page's part. state: what the buttons show now. said: what a screen reader is told.
        room: width and height in pixels that the charts have.
        beat: goes up as long as Python is there; a page that sees it stand still says that its picture does, too.
    """

    texts = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    said = traitlets.Unicode("").tag(sync=True)
    room = traitlets.List(traitlets.Float(), [1200.0, 600.0]).tag(sync=True)
    beat = traitlets.Int(0).tag(sync=True)

    def __init__(self, asked: Callable[[str], None]) -> None:
        super().__init__(texts=_texts())
        self.in_page = _KeysInPage(of=self.model_id)

        def heard(_widget: Any, content: Any, _buffers: Any) -> None:
            action = content.get("action") if isinstance(content, dict) else None
            if action in ACTIONS:
                asked(action)

        self.on_msg(heard)


def _texts() -> dict[str, Any]:
    return {
        "direction": direction(),
        "bar": _("Presenter's buttons"),
        "close": _("Close"),
        "ended": _("The command has ended; this picture stands still."),
        "title": _("Keys"),
        # action: the word on its button, its keys as the button has them, and as the list of keys does
        "actions": {
            "previous": [_("Previous"), "P ←", _either("P", "←")],
            "toggle": [_("Start"), _("Space S"), _either(_("Space"), "S")],
            "slower": [_("Slower"), "−", "−"],
            "faster": [_("Faster"), "+", "+"],
            "next": [_("Next"), "N →", _either("N", "→")],
            "full": [_("Full screen"), "F", "F"],
            "dark": [_("Dark or light"), "D", "D"],
            "keys": [_("Keys"), "?", "?"],
        },
        "meanings": {
            "previous": _("the scene before"),
            "toggle": _("start; then hold the picture and go on (runs go on behind a held picture)"),
            "slower": _("a simulation or a replay at half the speed; a live race keeps its own time"),
            "faster": _("a simulation or a replay at twice the speed"),
            "next": _("the next scene; a race that goes on is ended"),
            "full": _("fill the screen, or leave it"),
            "dark": _("change between dark and light"),
            "keys": _("show or hide this list"),
        },
    }


def _either(one: str, other: str) -> str:
    return _("{one} or {other}").format(one=one, other=other)
