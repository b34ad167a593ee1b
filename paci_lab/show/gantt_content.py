"""The part of a Gantt figure that an update overwrites: the arrays of its bars, and the layout that depends on them."""

from __future__ import annotations

import dataclasses

import numpy as np

from paci_lab.language import _
from paci_lab.show.bars import CYCLE, DRAWN, Rows, bar_arrays, fitting_numbers, held_steps, version_spans, working_share
from paci_lab.show.gantt_fixed import FOOT_PX, LEGEND, PREDICTED, layout_axis, series
from paci_lab.show.palette import Theme
from paci_lab.show.words import source_words
from paci_lab.trace import OPS, Trace

__all__ = ["HEAD_PX", "ROW_PX", "View", "content", "time_unit"]

ROW_PX = 34.0
HEAD_PX = 68
_TITLE_PX, _BETWEEN_PX = 40, 46


@dataclasses.dataclass
class View:
    """What is drawn: lists have one entry per chart of the figure (one, or two over one another).

    Args:
        traces, names, predicted: of every chart. between_ms, origin_ns: as in `gantt`.
        titled: leave room for a title. below_px: leave room for another chart at the foot of the figure.
        row_px: height of a row that shows work alone.
    """

    traces: list[Trace]
    names: list[str | None]
    predicted: list[Trace | None]
    between_ms: tuple[float, float] | None
    origin_ns: int | None
    titled: bool
    below_px: int = 0
    row_px: float = ROW_PX

    @property
    def head_px(self) -> int:
        """Height above the first chart: title, legend and the line that says what is shown."""
        return HEAD_PX + (_TITLE_PX if self.titled else 0)

    def spans(self) -> list[tuple[int, int, int]]:
        """(origin, start, end) in nanoseconds of every chart; all show the same stretch of time."""
        origins = [trace.begin_ns if self.origin_ns is None else self.origin_ns for trace in self.traces]
        if self.between_ms is not None:
            first, last = (round(ms * 1e6) for ms in self.between_ms)
        else:
            ends = [int(t.end_ns.max(initial=o)) - o for t, o in zip(self.traces, origins, strict=True)]
            ends += [p.makespan_ns for p in self.predicted if p is not None]
            first, last = 0, max(ends)
        return [(origin, origin + first, origin + max(last, first + 1)) for origin in origins]


def time_unit(length_ns: int) -> tuple[float, str]:
    """(nanoseconds, name) of the unit in which a time axis of this length is drawn."""
    return (1e9, "s") if length_ns >= 10_000_000_000 else (1e6, "ms")


def content(view: View, rows: Rows, look: Theme) -> tuple[list[dict], dict]:
    """Arrays for every trace of `fixed_traces` and `legend_traces`, and the layout that depends on them."""
    spans = view.spans()
    origin, start, end = spans[0]
    unit_ns, unit = time_unit(end - origin)
    slots: list[dict] = []
    for trace, predicted, span in zip(view.traces, view.predicted, spans, strict=True):
        slots += _chart(trace, predicted, span, unit_ns, rows, look)
    slots += _legend_slots(view.traces)
    stages = [max(trace.stages, 1) for trace in view.traces]
    body = sum(stages) * view.row_px * rows.weight + (len(stages) - 1) * _BETWEEN_PX + view.below_px
    layout: dict = {"height": round(view.head_px + body + FOOT_PX), "legend.y": 1 + 28 / body, "annotations": []}
    top = 1.0
    for panel, (trace, name, count, (_origin, first, last)) in enumerate(
        zip(view.traces, view.names, stages, spans, strict=True)
    ):
        bottom = max(0.0, top - count * view.row_px * rows.weight / body)
        axis = layout_axis("y", panel)
        layout[f"{axis}.domain"] = [bottom, top]
        layout[f"{axis}.range"] = [count - 0.5, -0.5]
        layout[f"{axis}.tickvals"] = list(range(count))
        layout[f"{axis}.ticktext"] = _row_names(trace, count, first, last, rows)
        layout[f"{layout_axis('x', panel)}.range"] = [(start - origin) / unit_ns, (end - origin) / unit_ns]
        shown_to = min(last, int(trace.end_ns.max(initial=first)))  # a chart of a pair may end before the other
        share = f"{100 * working_share(trace, first, shown_to):.1f} %"
        heading = _("{source} · stages work {share} of the time shown").format(
            source=source_words(trace.source), share=share
        )
        if "predicted" in rows.parts and (below := view.predicted[panel]) is not None:
            heading += " · " + _("below each row: {source}").format(source=source_words(below.source))
        layout["annotations"].append(
            {
                "text": f"<b>{name}</b>  {heading}" if name else heading[:1].upper() + heading[1:],
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": top,
                "xanchor": "left",
                "yanchor": "bottom",
                "yshift": 4,
                "align": "left",
                "font": {"size": 15, "color": look.ink if name else look.muted},
            }
        )
        top = bottom - _BETWEEN_PX / body
    layout[f"{layout_axis('x', len(stages) - 1)}.title.text"] = _("time ({unit})").format(unit=unit)
    return slots, layout


def _row_names(trace: Trace, count: int, start: int, end: int, rows: Rows) -> list[str]:
    names = [_("stage {stage}").format(stage=stage) for stage in range(count)]
    if "in-flight" not in rows.parts or not trace.stages:
        return names
    most = [int(held.max(initial=0)) for _times, held in held_steps(trace, start, end)]
    holds = _("holds {most}")
    return [
        f"{name}<br><span style='font-size:12px'>{holds.format(most=count)}</span>"
        for name, count in zip(names, most, strict=True)
    ]


def _chart(
    trace: Trace, predicted: Trace | None, span: tuple[int, int, int], unit_ns: float, rows: Rows, look: Theme
) -> list[dict]:
    origin, start, end = span
    slots = _bars(trace, trace, span, unit_ns, rows.band("work")[0], DRAWN)
    if "predicted" in rows.parts:
        if predicted is None:
            predicted = Trace([], source="", stages=trace.stages)
        shift = predicted.begin_ns - origin
        moved = (origin + shift, start + shift, end + shift)
        slots += _bars(predicted, predicted, moved, unit_ns, rows.band("predicted")[0], PREDICTED)
    if "in-flight" in rows.parts:
        slots.append(_in_flight(trace, span, unit_ns, rows))
    if "version" in rows.parts:
        slots.append(_versions(trace, span, unit_ns, rows, look))
    return slots


def _bars(
    trace: Trace, context: Trace, span: tuple[int, int, int], unit_ns: float, shift: float, kinds: tuple
) -> list[dict]:
    origin, start, end = span
    part = trace.between(start, end)
    columns = bar_arrays(part, context, origin_ns=origin, unit_ns=unit_ns)
    slots = []
    for kind, hue in series(kinds):
        c = columns[kind]
        if hue is not None:
            mask = c["microbatch"] % CYCLE == hue
            c = {name: column[mask] for name, column in c.items()}
        slot = {"base": c["start"], "x": c["length"], "y": c["stage"] + shift, "customdata": c["words"]}
        if hue is not None and kinds is DRAWN:
            slot["text"] = fitting_numbers(c["microbatch"], c["length"] * unit_ns / (end - start))
        slots.append(slot)
    return slots


def _in_flight(trace: Trace, span: tuple[int, int, int], unit_ns: float, rows: Rows) -> dict:
    origin, start, end = span
    centre, height = rows.band("in-flight")
    steps = held_steps(trace, start, end)
    most = max([int(held.max(initial=0)) for _, held in steps], default=0) or 1
    x, y, words = [], [], []
    for stage, (times, held) in enumerate(steps):
        base = stage + centre + height / 2
        at = (times - origin) / unit_ns
        x.append(np.concatenate([at[:1], at, at[-1:], [np.nan]]))
        y.append(np.concatenate([[base], base - height * held / most, [base, np.nan]]))
        words.append(
            np.stack([np.full(len(held) + 3, stage), np.concatenate([[0], held, [0, 0]])], axis=1).astype(object)
        )
    return {"x": np.concatenate(x), "y": np.concatenate(y), "customdata": np.concatenate(words)}


def _versions(trace: Trace, span: tuple[int, int, int], unit_ns: float, rows: Rows, look: Theme) -> dict:
    origin, start, end = span
    spans = version_spans(trace, start, end)
    return {
        "base": (spans["start_ns"] - origin) / unit_ns,
        "x": (spans["end_ns"] - spans["start_ns"]) / unit_ns,
        "y": spans["stage"] + rows.band("version")[0],
        "marker.color": np.array(look.strip, dtype=object)[spans["version"] % 2],
        "customdata": np.stack([spans["stage"], spans["version"]], axis=1).astype(object),
    }


def _legend_slots(traces: list[Trace]) -> list[dict]:
    seen = {"wait" if OPS[code].startswith("wait") else OPS[code] for trace in traces for code in np.unique(trace.op)}
    return [{"visible": kind in seen} for kind in LEGEND]
