"""The live view of a study: a table of its trials, and under it the Gantt chart of the one that was chosen.

As in the view of a single run, what a reader does only says what is wanted; one thread reads the study and is the only
one that writes to table and figure.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets as widgets
import traitlets

from paci_lab.show.feed import RunFeed
from paci_lab.show.gantt import gantt, update_gantt
from paci_lab.show.notebook import Problems, figure_widget, listen_while_busy
from tuning.settings import duration_text
from tuning.study import Study
from tuning.trial import Trial

if TYPE_CHECKING:
    from tuning.notebook import Controller

__all__ = ["StudyView", "table"]

_REFRESH_S = 1.0
_EVENTS = 1000  # operations and waits in view
_CELL = 'style="text-align:left;padding:2px 24px 2px 0"'


class TrialTable(anywidget.AnyWidget):
    """A table whose rows can be chosen, by click or by Enter.

    Attributes:
        html: the table; a row with `data-run` can be chosen.
        chosen: the `data-run` of the chosen row, "" for none.
    """

    html = traitlets.Unicode().tag(sync=True)
    chosen = traitlets.Unicode().tag(sync=True)

    _esm = """
    export default { render({ model, el }) {
      const mark = () => el.querySelectorAll("tr[data-run]").forEach((row) => {
        const on = row.dataset.run === model.get("chosen");
        row.setAttribute("aria-selected", on);
        row.style.background = on ? "var(--jp-layout-color3, #ddd)" : "";
      });
      const draw = () => {
        const at = document.activeElement?.dataset?.run;  // a redrawn row keeps the keyboard
        el.innerHTML = model.get("html");
        mark();
        if (at) el.querySelector(`tr[data-run="${CSS.escape(at)}"]`)?.focus();
      };
      const choose = (event) => {
        const row = event.target.closest("tr[data-run]");
        if (!row || (event.type === "keydown" && event.key !== "Enter")) return;
        model.set("chosen", row.dataset.run);
        model.save_changes();
      };
      el.addEventListener("click", choose);
      el.addEventListener("keydown", choose);
      model.on("change:html", draw);
      model.on("change:chosen", mark);
      draw();
    } };
    """


class StudyView:
    """Shown by being the last value of a cell.

    Attributes:
        widget: the whole view. table: its rows; setting `table.chosen` to a run directory within the study, such as
            "trials/paci-0000", does what a click on its row does. stop: a button, while a controller of ours runs.
        figure: the chart, None until a trial has been chosen. problems: what went wrong.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller, self._study = controller, controller.study
        self.table, self.problems = TrialTable(html=table(self._study)), Problems()
        self.stop = widgets.Button(description="Stop", disabled=not controller.running)
        self._note, self._chart = widgets.HTML(), widgets.VBox()
        self.widget = widgets.VBox([self.table, self.stop, self._note, self._chart, self.problems.widget])
        self.figure: Any = None
        self._shown, self._feed = "", None
        self._closed, self._wake, self._stop_asked = threading.Event(), threading.Event(), threading.Event()
        self.stop.on_click(lambda _: (self._stop_asked.set(), self._wake.set()))
        self.table.observe(lambda _: self._wake.set(), "chosen")
        self._thread = threading.Thread(target=self._follow, daemon=True, name="study view")
        self._thread.start()

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        return self.widget._repr_mimebundle_(**options)

    def close(self) -> None:
        """End the thread; the view keeps what it shows."""
        self._closed.set()
        self._wake.set()
        self._thread.join(5)
        self.stop.disabled = True

    def _follow(self) -> None:
        while not self._closed.is_set():
            running = self._controller.running  # asked first, so that what the last trial wrote is shown
            with self.problems.caught():
                if self._stop_asked.is_set():
                    self._controller.stop()
                self._tick()
            self.stop.disabled = not running
            listen_while_busy(self.table, self.stop)
            self._wake.wait(_REFRESH_S if running else None)
            self._wake.clear()

    def _tick(self) -> None:
        if (now := table(self._study)) != self.table.html:
            self.table.html = now
        chosen = self.table.chosen
        trial = next((t for t in self._study.trials() if _run_of(self._study, t) == chosen), None)
        if trial is None:
            return
        fresh = chosen != self._shown
        if fresh:
            self._feed = RunFeed(trial.path)
            self._shown = chosen
        news = grown = self._feed.poll()
        while grown and trial.status != "running":  # long files are read in parts; one that grows would never end
            grown = self._feed.poll()
        if fresh or news:
            self._draw()
        self._note.value = f"<p>{escape(self._told(trial))}</p>"

    def _draw(self) -> None:
        trace, start, stop = self._feed.window(self._feed.end_ns, _EVENTS)
        shown = {"origin_ns": 0, "between_ms": (start / 1e6, stop / 1e6)}
        if self.figure is None:
            self.figure = figure_widget(gantt(trace, **shown))
            self._chart.children = (self.figure.in_page,)
        else:
            update_gantt(self.figure, trace, **shown)

    def _told(self, trial: Trial) -> str:
        why = f", {trial.why}" if trial.why else ""
        words = f"{self._study.label(trial)}, seed {trial.seed}: {trial.status}{why}"
        if self._feed.end_ns:
            return f"{words}. Its last {_EVENTS:,} operations and waits."
        waits = trial.status == "running"
        return f"{words}. " + ("Its first operation is waited for." if waits else "There is no trace of this run.")


def table(study: Study) -> str:
    """HTML: what the study has spent and every trial, newest first."""
    headings = ["point", "phase", "seed", "outcome", "to target", "trained", "run directory"]
    rows = []
    for t in reversed(study.trials()):
        cells = [
            study.label(t),
            t.phase,
            str(t.seed),
            t.status,
            "" if t.time_s is None else f"{t.time_s:.1f} s",
            f"{t.training_s:.1f} s" if t.training_s else "",
            Path(t.path).name,
        ]
        rows.append(
            f'<tr data-run="{escape(_run_of(study, t))}" tabindex="0" style="cursor:pointer" title="draw its Gantt">'
            + "".join(f"<td {_CELL}>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    spent = f"{duration_text(study.spent_s)} of {duration_text(study.settings.budget_s)} used"
    head = "".join(f"<th {_CELL}>{heading}</th>" for heading in headings)
    return (
        f"<p>{spent}. Click on a trial to see its Gantt chart.</p>"
        '<table style="font-size:15px;line-height:1.5;font-variant-numeric:tabular-nums;border-collapse:collapse;'
        f'color:var(--jp-content-font-color1)"><tr>{head}</tr>{"".join(rows)}</table>'
    )


def _run_of(study: Study, trial: Trial) -> str:
    return Path(trial.path).relative_to(study.folder).as_posix()
