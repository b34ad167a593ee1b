"""Pages with Gantt charts for commands that end in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paci_lab.errors import InputError
from paci_lab.language import _, ngettext
from paci_lab.show.gantt import gantt, gantt_pair
from paci_lab.show.report import Chart, Section, write_report
from paci_lab.show.words import source_words
from paci_lab.trace import Trace

__all__ = ["describe", "write_gantt_page"]

_MOST_EVENTS = 4000
"""More in one chart are bars too thin to see and a page too slow to open."""


def write_gantt_page(
    path: str | Path, traces: Sequence[tuple[str, Trace]], *, between_s: tuple[float, float] | None = None
) -> Path:
    """Write a self-contained page with the charts of `traces`, (name, trace) each; two are drawn over one time axis.

    A long trace is cut to its first few thousand events, which the caption says, unless `between_s` chooses a part.
    """
    if between_s is None:
        ends = [int(trace.end_ns[min(len(trace), _MOST_EVENTS) - 1]) / 1e9 for name, trace in traces if len(trace)]
        whole = max(int(trace.end_ns.max()) for name, trace in traces if len(trace)) / 1e9
        between_s = (0.0, min(max(ends), whole))
    elif not between_s[0] < between_s[1]:
        raise InputError(
            "--between", f"{between_s[0]} {between_s[1]}", "a start before an end, in seconds", "try --between 0 5"
        )
    else:
        whole = max(int(trace.end_ns.max()) for name, trace in traces if len(trace)) / 1e9
    part = (between_s[0] * 1e3, between_s[1] * 1e3)
    shown = (
        _("Seconds {start} to {end} of {whole}.").format(
            start=f"{between_s[0]:g}", end=f"{between_s[1]:.3g}", whole=f"{whole:.3g}"
        )
        if between_s != (0.0, whole)
        else _("The whole run.")
    )
    if len(traces) == 2:
        (name_a, above), (name_b, below) = traces
        figure = gantt_pair(above, below, names=(name_a, name_b), between_ms=part)
        charts = [Chart(figure, shown, f"{describe(name_a, above)} {describe(name_b, below)}")]
    else:
        charts = [
            Chart(gantt(trace, between_ms=part), f"{name}. {shown}", describe(name, trace)) for name, trace in traces
        ]
    try:
        return write_report(
            path,
            title=_("What every stage did and when"),
            lead=" ".join(describe(name, trace) for name, trace in traces),
            sections=[Section(_("Gantt chart"), "", charts)],
        )
    except OSError as error:
        raise InputError("page", path, "a file that can be written", f"choose another ({error})") from None


def describe(name: str, trace: Trace) -> str:
    """A chart in a sentence."""
    return ngettext(
        "{name} ({source}): one stage, {seconds} s, working {share} of the time, bubble {bubble}, "
        "largest version gap {gap}.",
        "{name} ({source}): {stages} stages, {seconds} s, working {share} of the time, bubble {bubble}, "
        "largest version gap {gap}.",
        trace.stages,
    ).format(
        name=name,
        source=source_words(trace.source),
        stages=trace.stages,
        seconds=f"{trace.makespan_ns / 1e9:.4g}",
        share=f"{trace.utilization().mean():.0%}",
        bubble=f"{trace.bubble_fraction():.0%}",
        gap=max(trace.version_gap_max(), default=0),
    )
