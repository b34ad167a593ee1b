"""The report's own charts: time to target against the window, its decomposition, memory, importance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from paci_lab.language import _
from paci_lab.show.page_figure import PageFigure
from paci_lab.show.palette import LIGHT
from tuning.pareto import Spot
from tuning.side import SIDES, point_key
from tuning.stats import interval_of_median
from tuning.theory import paci_windows
from tuning.trial import Trial
from tuning.words import outcome_words

__all__ = ["best_of_windows", "decomposition", "importance", "memory", "time_against_window"]

_COLORS = {side: LIGHT.series[number] for number, side in enumerate(SIDES)}
_SHORT = ("capped", "pruned", "missed", "hung", "failed", "oom")


def _name(side: str) -> str:
    return {"paci": "PACI", "flush": _("flush")}[side]


def _layout(figure: go.Figure, x: str, y: str, **more: object) -> go.Figure:
    axis = {"gridcolor": LIGHT.grid, "zeroline": False, "tickfont": {"size": 14}}
    figure.update_layout(
        height=440,
        margin={"l": 76, "r": 20, "t": 52, "b": 64},
        paper_bgcolor=LIGHT.background,
        plot_bgcolor=LIGHT.background,
        font={"family": LIGHT.font, "size": 15, "color": LIGHT.ink},
        hoverlabel={"align": "left", "font": {"size": 15}},
        xaxis={**axis, "title": {"text": x, "standoff": 8}},
        yaxis={**axis, "title": {"text": y, "standoff": 8}, "rangemode": "tozero"},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
    )
    return figure.update_layout(**more)


def best_of_windows(trials: Sequence[Trial]) -> dict[tuple[str, int], list[Trial]]:
    """(side, window) -> the trials that reached the target, of the point with the best median at that window."""
    points: dict[tuple[str, int], dict[str, list[Trial]]] = {}
    for trial in trials:
        if trial.status == "reached":
            here = points.setdefault((trial.side, trial.params["window"]), {})
            here.setdefault(point_key(trial.params), []).append(trial)
    return {
        key: min(groups.values(), key=lambda group: statistics.median(t.value for t in group))
        for key, groups in sorted(points.items())
    }


def time_against_window(trials: Sequence[Trial], stages: int, label: Callable[[Trial], str]) -> go.Figure:
    """Every trial as a dot, medians with intervals as a line per side, misses as crosses where they were stopped."""
    figure, best = PageFigure(), best_of_windows(trials)
    for side in SIDES:
        color = _COLORS[side]
        windows = [w for s, w in best if s == side]
        stats = [interval_of_median([t.value for t in best[side, w]]) for w in windows]
        figure.add_scatter(
            x=windows,
            y=[median for median, *interval in stats],
            name=_("{side}: median, 95 % interval").format(side=_name(side)),
            mode="lines+markers",
            line={"color": color, "width": 2.5},
            marker={"size": 10},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - median for median, low, high in stats],
                "arrayminus": [median - low for median, low, high in stats],
                "color": color,
            },
            hovertemplate=_("window {window}: median {time} s").format(window="%{x}", time="%{y:.1f}")
            + "<extra></extra>",
        )
        for words, group, symbol in (
            (_("{side}: one run"), [t for t in trials if t.status == "reached"], "circle-open"),
            (_("{side}: stopped before the target"), [t for t in trials if t.status in _SHORT], "x"),
        ):
            group = [t for t in group if t.side == side]
            if group:
                figure.add_scatter(
                    x=[t.params["window"] for t in group],
                    y=[t.value if t.status == "reached" else t.training_s for t in group],
                    name=words.format(side=_name(side)),
                    mode="markers",
                    marker={"color": color, "symbol": symbol, "size": 8},
                    text=[
                        _("{point}, seed {seed}: {outcome}").format(
                            point=label(t), seed=t.seed, outcome=outcome_words(t.status)
                        )
                        for t in group
                    ],
                    hovertemplate="%{text}<br>%{y:.1f} s<extra></extra>",
                )
    ticks = sorted({window for side, window in best} | {t.params["window"] for t in trials})
    for window, why in paci_windows(stages, most=10**6).items():
        if why.startswith("smallest") and (gap := why[-1]) in "12" and ticks and ticks[0] <= window <= ticks[-1]:
            # On a logarithmic axis shapes are placed by value and annotations by exponent.
            figure.add_shape(
                type="line",
                x0=window,
                x1=window,
                y0=0,
                y1=1,
                yref="y domain",
                layer="below",
                line={"color": LIGHT.muted, "width": 1.5, "dash": "dot"},
            )
            figure.add_annotation(
                x=math.log10(window),
                y=0.02,
                yref="y domain",
                text=_("theory: gap {gap}").format(gap=gap),
                showarrow=False,
                xanchor="left" if gap == "1" else "right",
                yanchor="bottom",
                font={"color": LIGHT.muted, "size": 14},
            )
    return (
        _layout(figure, _("window (micro-batches per update)"), _("seconds to the target"), height=500)
        .update_xaxes(type="log", tickvals=ticks, ticktext=[str(t) for t in ticks])
        .update_layout(margin_t=110)
    )


def decomposition(trials: Sequence[Trial]) -> go.Figure:
    """Seconds per update against updates to target, both logarithmic: lines of equal time fall at 45 degrees."""
    figure = go.Figure()
    best = best_of_windows(trials)
    spots = {key: [t for t in group if t.figures.get("updates_to_target")] for key, group in best.items()}
    spots = {key: group for key, group in spots.items() if group}
    for side in SIDES:
        rows = [(w, *_pace(group)) for (s, w), group in spots.items() if s == side]
        figure.add_scatter(
            x=[updates for _window, updates, _pace_s in rows],
            y=[pace for _window, _updates, pace in rows],
            text=[f"{window}" for window, *rest in rows],
            name=_name(side),
            mode="lines+markers+text",
            textposition="top right",
            line={"color": _COLORS[side], "width": 1.5},
            marker={"size": 11},
            hovertemplate=_("window {window}: {updates} updates of {time} s").format(
                window="%{text}", updates="%{x:.0f}", time="%{y:.3f}"
            )
            + "<extra></extra>",
        )
    paces = [_pace(group) for group in spots.values()]
    if paces:
        low, high = min(u for u, p in paces) / 1.5, max(u for u, p in paces) * 1.5
        for seconds in sorted(
            {round(u * p, 1) for u, p in (min(paces, key=lambda r: r[0] * r[1]), max(paces, key=lambda r: r[0] * r[1]))}
        ):
            figure.add_scatter(
                x=[low, high],
                y=[seconds / low, seconds / high],
                mode="lines",
                name=_("{time} s to the target").format(time=f"{seconds:g}"),
                line={"color": LIGHT.muted, "dash": "dot", "width": 1.5},
                hoverinfo="skip",
            )
    return (
        _layout(figure, _("updates to the target"), _("seconds per update"))
        .update_xaxes(type="log")
        .update_yaxes(type="log")
    )


def _pace(group: Sequence[Trial]) -> tuple[float, float]:
    return (
        statistics.median(t.figures["updates_to_target"] for t in group),
        statistics.median(t.value / t.figures["updates_to_target"] for t in group),
    )


def memory(
    trials: Sequence[Trial], front: Sequence[Spot], label: Callable[[Trial], str], limit: int | None
) -> go.Figure:
    """Time against memory of every run; a line joins the medians of the points that no other beats in both."""
    figure = go.Figure()
    good = [t for t in trials if t.status == "reached" and t.figures.get("device_memory_bytes")]
    for side in SIDES:
        group = [t for t in good if t.side == side]
        figure.add_scatter(
            x=[t.figures["device_memory_bytes"] / 2**20 for t in group],
            y=[t.value for t in group],
            mode="markers",
            name=_name(side),
            marker={"color": _COLORS[side], "size": 10},
            text=[label(t) for t in group],
            hovertemplate="%{text}<br>%{x:,.0f} MiB, %{y:.1f} s<extra></extra>",
        )
    figure.add_scatter(
        x=[spot.memory_bytes / 2**20 for spot in front],
        y=[spot.time_s for spot in front],
        text=[label(spot.trial) for spot in front],
        mode="lines+markers+text",
        textposition="top right",
        line={"color": LIGHT.muted, "dash": "dot", "shape": "vh"},
        marker={"symbol": "diamond-open", "size": 14, "color": LIGHT.ink},
        name=_("medians of the points that no other beats in both"),
        hovertemplate=_("{point}: median").format(point="%{text}") + "<br>%{x:,.0f} MiB, %{y:.1f} s<extra></extra>",
    )
    if limit:
        figure.add_vline(x=limit / 2**20, line={"color": LIGHT.ink, "width": 1.5}, annotation_text=_("limit"))
    return _layout(figure, _("peak memory (MiB)"), _("seconds to the target"))


def importance(shares: dict[str, dict[str, float]]) -> go.Figure:
    """Bars of how much each dimension decides, per side."""
    figure = go.Figure()
    for side, found in shares.items():
        figure.add_bar(
            y=list(found), x=list(found.values()), orientation="h", name=_name(side), marker={"color": _COLORS[side]}
        )
    return _layout(figure, _("share of the differences in time to target"), "").update_layout(
        barmode="group", margin_l=180
    )
