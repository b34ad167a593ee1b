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

import ipywidgets as widgets
import traitlets

from paci_lab.language import _
from paci_lab.show.chart import InPage
from paci_lab.show.container import view
from paci_lab.show.feed import RunFeed
from paci_lab.show.gantt import gantt, update_gantt
from paci_lab.show.notebook import Problems, figure_widget, listen_while_busy
from paci_lab.show.spoken import Spoken, details_html, summary
from tuning.settings import duration_text
from tuning.study import Study
from tuning.trial import Trial
from tuning.words import outcome_words, phase_words

if TYPE_CHECKING:
    from tuning.notebook import Controller

__all__ = ["StudyView", "table"]

_REFRESH_S = 1.0
_EVENTS = 1000  # operations and waits in view
_CELL = 'style="text-align:start;padding:2px 0;padding-inline-end:24px"'


class _TableInPage(InPage):
    _esm = """
    export default { async render({ model, el }) {
      const held = await model.widget_manager.get_model(model.get("of"));
      const mark = () => el.querySelectorAll("tr[data-run]").forEach((row) => {
        const on = row.dataset.run === held.get("chosen");
        row.setAttribute("aria-selected", on);
        row.style.background = on ? "var(--jp-layout-color3, #ddd)" : "";
      });
      const draw = () => {
        const at = document.activeElement?.dataset?.run;  // a redrawn row keeps the keyboard
        el.innerHTML = held.get("html");
        mark();
        if (at) el.querySelector(`tr[data-run="${CSS.escape(at)}"]`)?.focus();
      };
      const choose = (event) => {
        const row = event.target.closest("tr[data-run]");
        if (!row || (event.type === "keydown" && event.key !== "Enter")) return;
        held.set("chosen", row.dataset.run);
        held.save_changes();
      };
      el.addEventListener("click", choose);
      el.addEventListener("keydown", choose);
      held.on("change:html", draw);
      held.on("change:chosen", mark);
      draw();
      return () => {
        held.off("change:html", draw);
        held.off("change:chosen", mark);
      };
    } };
    """


class TrialTable(widgets.Widget):
    """A table whose rows can be chosen, by click or by Enter.

    Attributes:
        in_page: what shows it in a page.
        html: the table; a row with `data-run` can be chosen.
        chosen: the `data-run` of the chosen row, "" for none.
    """

    html = traitlets.Unicode().tag(sync=True)
    chosen = traitlets.Unicode().tag(sync=True)

    def __init__(self, html: str) -> None:
        super().__init__(html=html)
        self.in_page = _TableInPage(of=self.model_id)


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
        self.stop = widgets.Button(description=_("Stop"), disabled=not controller.running)
        self._note, self._chart, self._spoken = widgets.HTML(), widgets.VBox(), widgets.HTML()
        parts = [self.table.in_page, self.stop, self._note, self._chart, self._spoken, self.problems.widget]
        self.widget = view(parts)
        self.figure: Any = None
        self._shown, self._feed = "", None
        self._closed, self._wake, self._stop_asked = threading.Event(), threading.Event(), threading.Event()
        self.stop.on_click(lambda button: (self._stop_asked.set(), self._wake.set()))
        self.table.observe(lambda change: self._wake.set(), "chosen")
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
            self._draw(grows=trial.status == "running")
        self._note.value = f"<p>{escape(self._told(trial))}</p>"

    def _draw(self, *, grows: bool) -> None:
        trace, start, stop = self._feed.window(self._feed.end_ns, _EVENTS)
        shown = {"origin_ns": 0, "between_ms": (start / 1e6, stop / 1e6)}
        if self.figure is None:
            self.figure = figure_widget(gantt(trace, **shown))
            self._chart.children = (self.figure.in_page,)
        else:
            update_gantt(self.figure, trace, **shown)
        spoken = Spoken(trace, **shown)
        self.figure.spoken = summary(trace, **spoken.options)
        note = _("The trial runs: when it has ended, its chart stands here in words.")
        self._spoken.value = details_html([], note=note) if grows else details_html([spoken])

    def _told(self, trial: Trial) -> str:
        outcome = outcome_words(trial.status) + (f", {trial.why}" if trial.why else "")
        if self._feed.end_ns:
            words = _("{point}, seed {seed}: {outcome}. Its last {number} operations and waits.")
        elif trial.status == "running":
            words = _("{point}, seed {seed}: {outcome}. Its first operation is waited for.")
        else:
            words = _("{point}, seed {seed}: {outcome}. There is no trace of this run.")
        return words.format(point=self._study.label(trial), seed=trial.seed, outcome=outcome, number=f"{_EVENTS:,}")


def table(study: Study) -> str:
    """HTML: what the study has spent and every trial, newest first."""
    headings = [
        *(_("point"), _("phase"), _("seed"), _("outcome")),
        *(_("to target"), _("trained"), _("run directory")),
    ]
    rows = []
    for t in reversed(study.trials()):
        cells = [
            study.label(t),
            phase_words(t.phase),
            str(t.seed),
            outcome_words(t.status),
            "" if t.time_s is None else f"{t.time_s:.1f} s",
            f"{t.training_s:.1f} s" if t.training_s else "",
            Path(t.path).name,
        ]
        rows.append(
            f'<tr data-run="{escape(_run_of(study, t))}" tabindex="0" style="cursor:pointer" '
            f'title="{escape(_("draw its Gantt chart"))}">'
            + "".join(f"<td {_CELL}>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    words = _("{spent} of {budget} used. Click on a trial, or press Enter on it, to see its Gantt chart.")
    told = words.format(spent=duration_text(study.spent_s), budget=duration_text(study.settings.budget_s))
    head = "".join(f'<th scope="col" {_CELL}>{escape(heading)}</th>' for heading in headings)
    return (
        f"<p>{escape(told)}</p>"
        '<table style="font-size:15px;line-height:1.5;font-variant-numeric:tabular-nums;border-collapse:collapse;'
        f'color:var(--jp-content-font-color1)"><tr>{head}</tr>{"".join(rows)}</table>'
    )


def _run_of(study: Study, trial: Trial) -> str:
    return Path(trial.path).relative_to(study.folder).as_posix()
