"""What the notebook views share: a figure widget that says what it lacks, and a place where errors are seen."""

from __future__ import annotations

import contextlib
import importlib.util
import traceback
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from paci_lab.errors import InputError
from paci_lab.schedules import ScheduleError

if TYPE_CHECKING:
    from paci_lab.show.chart import Chart

__all__ = ["CONFIG", "Problems", "figure_widget", "html_table", "listen_while_busy", "need_packages"]

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d"]}
"""Plotly's own buttons over a chart: none that does nothing here, none that would send the chart away."""

_NEEDED = ("anywidget", "ipywidgets")


def need_packages() -> None:
    """Raise InputError with the command to run when a notebook package is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            "notebook packages",
            "missing " + ", ".join(missing),
            "an installation with " + " and ".join(_NEEDED),
            f"run: python -m pip install {' '.join(missing)}, then restart the kernel",
        )


def figure_widget(figure: go.Figure) -> Chart:
    """`figure` as a widget whose arrays can be changed while it is shown; raises as `need_packages`.

    A view shows its `in_page`.
    """
    need_packages()
    from paci_lab.show.chart import Chart

    return Chart(figure)


def listen_while_busy(*views: Any) -> None:
    """Let these widgets' buttons be heard while a cell is running; to be called after they were written to.

    JupyterLab sends what a reader does to a thread of its own ("subshell"). ipykernel from 7.4 on sends it instead to
    whoever wrote to the widget last: to the main thread, which hears nothing until the running cell has ended. Without
    this memory the front end's choice counts, as in older versions.
    """
    for view in views:
        if view.comm is not None:
            vars(view.comm).pop("_reply_subshell_id", None)


class Problems:
    """An Output widget that shows what goes wrong in callbacks and threads, where no cell could.

    Attributes:
        widget: to be put into the view.
        last: the newest message, "" while all is well.
    """

    def __init__(self) -> None:
        import ipywidgets

        self.widget = ipywidgets.Output()
        self.last = ""

    def show(self, message: str) -> None:
        """Replace what is shown by `message`; an empty one clears it."""
        if message != self.last:
            self.last = message
            # Setting the trait works from any thread, while capturing output does so only in the cell's own.
            self.widget.outputs = (
                ({"output_type": "stream", "name": "stderr", "text": message + "\n"},) if message else ()
            )

    @contextlib.contextmanager
    def caught(self, *, clear: bool = True) -> Iterator[None]:
        """Show an error instead of losing it: a refusal as its sentence, anything else with its traceback.

        With `clear`, what was shown before disappears when all goes well.
        """
        try:
            yield
            if clear:
                self.show("")
        except (InputError, ScheduleError) as refusal:
            self.show(str(refusal))
        except Exception:
            self.show(traceback.format_exc())


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A quiet table in the notebook's own colours; texts are escaped."""
    cell = "text-align:start;padding:2px 0;padding-inline-end:24px"
    head = "".join(f'<th scope="col" style="{cell};font-weight:600">{escape(h)}</th>' for h in headings)
    body = "".join(
        f'<tr><th scope="row" style="{cell};font-weight:400">{escape(first)}</th>'
        + "".join(f'<td style="{cell}">{escape(words)}</td>' for words in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        '<table style="font-size:15px;line-height:1.5;font-variant-numeric:tabular-nums;'
        'color:var(--jp-content-font-color1)">'
        f"<tr>{head}</tr>{body}</table>"
    )
