"""The explorer: sliders, two simulated schedules over one another, and the numbers that follow."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets

from paci_lab.language import _
from paci_lab.schedules import is_own, own_schedule, schedule_classes
from paci_lab.show.bars import Rows
from paci_lab.show.container import in_order_of_time, view
from paci_lab.show.front import Front, starting_theme
from paci_lab.show.gantt import gantt_pair, retheme, update_gantt
from paci_lab.show.gantt_content import time_unit
from paci_lab.show.notebook import Problems, figure_widget, html_table
from paci_lab.show.palette import theme_named
from paci_lab.show.settings import TRANSFORMERS, Numbers, Settings, explore
from paci_lab.show.spoken import Spoken, details_html
from paci_lab.show.why import Moments
from paci_lab.trace import Trace

__all__ = ["Explorer", "explorer"]

_SLIDERS: dict[str, tuple[type, dict[str, float]]] = {
    "stages": (widgets.IntSlider, {"min": 1, "max": 16}),
    "microbatches": (widgets.IntSlider, {"min": 1, "max": 64}),
    "slack": (widgets.IntSlider, {"min": 0, "max": 15}),
    "forward_ms": (widgets.FloatSlider, {"min": 0.1, "max": 5, "step": 0.1}),
    "backward_ms": (widgets.FloatSlider, {"min": 0.1, "max": 10, "step": 0.1}),
    "weight_share": (widgets.FloatSlider, {"min": 0, "max": 1, "step": 0.05}),
    "update_ms": (widgets.FloatSlider, {"min": 0, "max": 3, "step": 0.05}),
    "latency_ms": (widgets.FloatSlider, {"min": 0, "max": 3, "step": 0.05}),
    "jitter": (widgets.FloatSlider, {"min": 0, "max": 0.5, "step": 0.01}),
    "straggler": (widgets.IntSlider, {"min": -1, "max": 15}),
    "straggler_factor": (widgets.FloatSlider, {"min": 1, "max": 4, "step": 0.1}),
    "microbatch_size": (widgets.IntSlider, {"min": 1, "max": 32}),
}


def _slider_words() -> dict[str, str]:
    return {
        "stages": _("stages"),
        "microbatches": _("micro-batches"),
        "slack": _("slack (PACI)"),
        "forward_ms": _("forward, ms"),
        "backward_ms": _("backward, ms"),
        "weight_share": _("W of backward"),
        "update_ms": _("update, ms"),
        "latency_ms": _("latency, ms"),
        "jitter": _("jitter"),
        "straggler": _("slow stage (-1: none)"),
        "straggler_factor": _("times slower"),
        "microbatch_size": _("sequences each"),
    }


def explorer(
    *, above: str = "1f1b", below: str = "paci", theme: str = "auto", strips: tuple[str, ...] = (), **settings: Any
) -> Explorer:
    """Open the explorer with two schedules, by name or as my_file.py:MySchedule.

    `theme` is "light", "dark" or "auto": that of the page, also when it changes.
    `settings` are fields of `Settings` to begin with, for both.
    """
    return Explorer(above=above, below=below, theme=theme, strips=strips, **settings)


class Explorer:
    """Two simulated schedules with linked sliders; shown by being the last value of a cell.

    Attributes:
        widget: the whole view. controls: every control by the name of its setting, "above" and "below" for the
            schedules, "window" and "window below" for their windows.
        figure: the chart. traces, numbers: what is shown now, above and below.
    """

    def __init__(self, *, above: str, below: str, theme: str, strips: tuple[str, ...], **settings: Any) -> None:
        start = Settings(**settings)
        self.problems = Problems()
        opened = starting_theme(theme)
        look = theme_named(opened)
        self.controls = self._make_controls(above, below, start)
        self.traces: list[Trace] = []
        self.numbers: list[Numbers] = []
        self._moments: Moments | None = None
        chosen = self.settings()
        shown = [explore(one) for one in chosen]
        figure = gantt_pair(*(trace for trace, _ in shown), names=_names(chosen), theme=opened, strips=strips)
        self._parts = Rows(tuple(figure.layout.meta["gantt"]["parts"]))
        figure.add_traces(
            [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": "moment",
                    "showlegend": False,
                    "hoverinfo": "skip",
                    "line": {"color": look.ink, "width": 2},
                },
                {
                    "type": "scatter",
                    "mode": "lines+markers+text",
                    "name": "journey",
                    "cliponaxis": False,
                    "showlegend": False,
                    "hoverinfo": "skip",
                    "line": {"color": look.ink, "width": 1.5, "dash": "dot"},
                    "marker": {
                        "size": 22,
                        "color": look.background,
                        "line": {"color": look.ink, "width": 1.5},
                    },
                    "textfont": {"size": 12, "color": look.ink},
                },
            ]
        )
        self.figure = figure_widget(figure)
        self._table, self._words, self._spoken, self.front = widgets.HTML(), widgets.HTML(), widgets.HTML(), Front()
        self._show(shown)
        self.widget = self._layout()
        if theme == "auto":
            self.front.on_page(self._page_is)
        self.front.observe(lambda change: self._speak(), "reading")
        for name, control in self.controls.items():
            if name not in ("step", "step mode", "step in", "back", "forward"):
                control.observe(self._changed, "value")
        for name in ("step", "step mode", "step in"):
            self.controls[name].observe(self._stepped, "value")
        self.controls["back"].on_click(lambda button: self._move(-1))
        self.controls["forward"].on_click(lambda button: self._move(1))

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        return self.widget._repr_mimebundle_(**options)

    # -- controls -------------------------------------------------------------------------------------------------
    def _make_controls(self, above: str, below: str, start: Settings) -> dict[str, Any]:
        style = {"description_width": "160px"}
        wide = widgets.Layout(width="380px")
        own = {name: own_schedule(name) for name in (above, below) if is_own(name)}
        names = [(f"{cls.name}: {_(cls.summary)}", name) for name, cls in (schedule_classes() | own).items()]
        made: dict[str, Any] = {
            "above": widgets.Dropdown(options=names, value=above, description=_("above"), style=style, layout=wide),
            "below": widgets.Dropdown(options=names, value=below, description=_("below"), style=style, layout=wide),
            "window": widgets.IntSlider(
                value=start.window, min=1, max=64, description=_("window"), style=style, layout=wide
            ),
            "window below": widgets.IntSlider(
                value=start.window,
                min=1,
                max=64,
                description=_("window below"),
                style=style,
                layout=wide,
                disabled=True,
            ),
            "linked": widgets.Checkbox(value=True, description=_("one window for both"), indent=False),
        }
        words = _slider_words()
        for name, (kind, limits) in _SLIDERS.items():
            made[name] = kind(value=getattr(start, name), description=words[name], style=style, layout=wide, **limits)
        made["model"] = widgets.Dropdown(
            options=list(TRANSFORMERS), value=start.model, description=_("memory for"), style=style, layout=wide
        )
        made["step mode"] = widgets.Checkbox(
            value=False, description=_("step through"), indent=False, layout=widgets.Layout(width="auto")
        )
        made["step in"] = widgets.ToggleButtons(
            options=[(_("above"), "above"), (_("below"), "below")],
            value="below",
            style={"button_width": "auto"},
            layout=widgets.Layout(width="auto"),
        )
        made["back"] = widgets.Button(
            icon="step-backward", tooltip=_("one operation back"), layout=widgets.Layout(width="44px")
        )
        made["forward"] = widgets.Button(
            icon="step-forward", tooltip=_("one operation forward"), layout=widgets.Layout(width="44px")
        )
        made["step"] = widgets.IntSlider(
            value=0,
            min=0,
            max=0,
            description=_("operation"),
            style={"description_width": "initial"},
            layout=widgets.Layout(width="420px"),
        )
        return made

    def _layout(self) -> widgets.Widget:
        c = self.controls
        first = [c["above"], c["below"], c["window"], c["linked"], c["window below"]]
        sliders = widgets.GridBox(  # beside the charts, or in two columns over them where the page is narrow
            [*first, *(c[name] for name in _SLIDERS), c["model"]],
            layout=widgets.Layout(
                flex="1 1 400px",
                align_content="flex-start",
                grid_template_columns="repeat(auto-fill, minmax(380px, 1fr))",
            ),
        )
        steps = in_order_of_time([c["step mode"], c["step in"], c["back"], c["forward"], c["step"]])
        right = widgets.VBox(
            [self.figure.in_page, self._table, steps, self._words, self._spoken, self.problems.widget],
            layout=widgets.Layout(flex="100 1 600px", min_width="0"),
        )
        both = widgets.HBox([sliders, right], layout=widgets.Layout(width="100%", flex_flow="row wrap"))
        return view([both, self.front.in_page])

    def settings(self) -> list[Settings]:
        """What the controls say now, above and below."""
        c = self.controls
        shared = {name: c[name].value for name in (*_SLIDERS, "model")}
        windows = (c["window"].value, c["window" if c["linked"].value else "window below"].value)
        return [
            Settings(schedule=c[place].value, window=window, **shared)
            for place, window in zip(("above", "below"), windows, strict=True)
        ]

    # -- what follows a change ------------------------------------------------------------------------------------
    def _changed(self, _change: object) -> None:
        with self.problems.caught():
            self.controls["window below"].disabled = self.controls["linked"].value
            chosen = self.settings()
            shown = [explore(one) for one in chosen]
            with self.figure.batch_update():
                update_gantt(self.figure, *(trace for trace, _ in shown), names=_names(chosen))
                self._show(shown)

    def _page_is(self, theme: str) -> None:
        with self.problems.caught():
            retheme(self.figure, theme)
            update_gantt(self.figure, *self.traces, names=_names(self.settings()))

    def _show(self, shown: list[tuple[Trace, Numbers]]) -> None:
        self.traces, self.numbers = [trace for trace, _ in shown], [numbers for _, numbers in shown]
        self._table.value = html_table(["", *_names(self.settings())], _rows(self.numbers))
        self._moments = None
        self._speak()
        self._step()

    def _speak(self) -> None:
        """Put the charts into words, as long as somebody reads them: it takes longer than to draw them."""
        names = _names(self.settings())
        self.figure.spoken = _("Gantt charts of two schedules over one another: {above} and {below}.").format(
            above=names[0], below=names[1]
        )
        charts = [Spoken(trace, name) for trace, name in zip(self.traces, names, strict=True)]
        self._spoken.value = details_html(charts if self.front.reading else [])

    def _move(self, by: int) -> None:
        step = self.controls["step"]
        self.controls["step mode"].value = True
        step.value = min(max(step.value + by, step.min), step.max)

    def _stepped(self, _change: object) -> None:
        with self.problems.caught():
            if _change["name"] == "value" and _change["owner"] is self.controls["step in"]:
                self._moments = None
            with self.figure.batch_update():
                self._step()

    def _step(self) -> None:
        moment, journey = self.figure.data[-2:]
        if not self.controls["step mode"].value:
            if self._words.value:
                self._words.value, moment.x, moment.y, journey.x, journey.y, journey.text = "", [], [], [], [], []
            return
        panel = 0 if self.controls["step in"].value == "above" else 1
        trace = self.traces[panel]
        if self._moments is None:
            self._moments = Moments(trace)
            self.controls["step"].max = len(self._moments.work) - 1
        event = self._moments.work[self.controls["step"].value]
        path = self._moments.journey(event.microbatch) if event.op != "U" else []
        unit, _name = time_unit(max(int(shown.end_ns.max()) - shown.begin_ns for shown in self.traces))
        middle = self._parts.band("work")[0]
        for drawn in (moment, journey):
            drawn.xaxis, drawn.yaxis = ("x", "y") if panel == 0 else ("x2", "y2")
        at = (event.start_ns - trace.begin_ns) / unit
        moment.x, moment.y = [at, at], [-0.5, trace.stages - 0.5]
        journey.x = [((e.start_ns + e.end_ns) / 2 - trace.begin_ns) / unit for e in path]
        journey.y = [e.stage + middle for e in path]
        journey.text = [f"v{e.version}" for e in path]
        lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in self._moments.sentences(event.start_ns))
        self._words.value = (
            f'<ol start="0" style="font-size:15px;line-height:1.5;list-style:none;padding:0">{lines}</ol>'
        )


def _names(chosen: list[Settings]) -> list[str]:
    plain, slack = _("{schedule}, window {window}"), _("{schedule}, window {window}, slack {slack}")
    return [
        (slack if one.schedule == "paci" and one.slack else plain).format(
            schedule=one.schedule, window=one.window, slack=one.slack
        )
        for one in chosen
    ]


def _rows(both: list[Numbers]) -> list[list[str]]:
    def row(words: str, say: Any) -> list[str]:
        return [words, *(say(numbers) for numbers in both)]

    return [
        row(_("bubble, of all time"), lambda n: f"{100 * n.bubble:.1f} %"),
        row(
            _("working, in steady state"),
            lambda n: _("too short to tell") if n.steady_utilization is None else f"{100 * n.steady_utilization:.1f} %",
        ),
        row(_("throughput against 1F1B flush"), lambda n: f"{n.against_flush:.2f}×"),
        row(_("micro-batches held, by stage"), lambda n: " ".join(map(str, n.held))),
        row(_("their activations, most on one stage"), lambda n: f"{max(n.memory) / 2**30:.2f} GiB"),
        row(_("version gap, largest by stage"), lambda n: " ".join(map(str, n.gap_max))),
        row(_("version gap, mean by stage"), lambda n: " ".join(f"{gap:.2f}" for gap in n.gap_mean)),
        row(_("weights kept"), lambda n: n.weights),
    ]
