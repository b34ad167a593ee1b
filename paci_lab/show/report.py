"""Reports: one HTML file that needs nothing else, with text, tables and charts, in light and dark."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from paci_lab.language import _, direction, language
from paci_lab.show.gantt_figure import GanttFigure
from paci_lab.show.palette import swap

__all__ = ["Chart", "Column", "Facts", "Section", "Table", "comparison_table", "write_report"]


@dataclasses.dataclass(frozen=True)
class Chart:
    """A plotly figure in the light theme; the page recolours it for readers who prefer dark.

    Args:
        figure: what is drawn.
        caption: what to see in it.
        alternative: the same in words for those who cannot see it, and while scripts are off.
        min_width: pixels below which the chart is scrolled sideways instead of squeezed.
    """

    figure: go.Figure
    caption: str
    alternative: str
    min_width: int = 720


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: its heading, how a number is printed (a format such as "{:.2f} s"), and what it means."""

    heading: str
    format: str = "{}"
    meaning: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under columns. A cell is a text, a number, or None where there is nothing to say.

    Args:
        emphasis: positions of the rows that matter most.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    caption: str
    emphasis: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
    """A few figures in large type: (value, what it is)."""

    values: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading, paragraphs (separated by an empty line) and what they speak about."""

    title: str
    text: str = ""
    parts: Sequence[Chart | Table | Facts] = ()


def write_report(path: str | Path, *, title: str, lead: str, sections: Sequence[Section], footer: str = "") -> Path:
    """Write one self-contained page to `path` and return the path.

    Every text is plain: it is escaped, and an empty line begins a new paragraph. The page works offline; plotly.js is
    in it once (about 5 MB), and only when there is a chart.
    """
    charts = [part for section in sections for part in section.parts if isinstance(part, Chart)]
    numbers = {id(chart): number for number, chart in enumerate(charts)}
    body = "\n".join(_section(section, numbers) for section in sections)
    scripts = (
        [get_plotlyjs(), f"const SWAP = {_safe(json.dumps(swap()))};", _asset("report.js")]
        if charts
        else [_asset("report.js")]
    )
    foot = f"<footer>{_paragraphs(footer)}</footer>" if footer else ""
    page = f"""<!DOCTYPE html>
<html lang="{language().replace("_", "-")}" dir="{direction()}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{_asset("report.css")}</style>
</head>
<body>
<main>
<header>
<button id="theme" type="button" title="{escape(_("switch between light and dark"))}"
data-light="{escape(_("Light"))}" data-dark="{escape(_("Dark"))}">{escape(_("Dark"))}</button>
<h1>{escape(title)}</h1>
<div class="lead">{_paragraphs(lead)}</div>
</header>
{body}
{foot}
</main>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def comparison_table(
    results: Sequence[Mapping[str, object]],
    *,
    caption: str,
    emphasis: Sequence[int] = (),
    extra: Mapping[str, Column] | None = None,
) -> Table:
    """A table of results, one row each, from the fields of `result.json`.

    Args:
        results: mappings with "name" and the fields of `result.json`; lists with one entry per stage are summed up in
            one number (the mean utilization, the largest gap, peak and number of copies). Columns that no row fills
            are left out.
        extra: further fields and their columns, put last: {"ratio": Column("against best flush", "{:.2f}×")}.
    """
    fields = {**_result_columns(), **(extra or {})}
    shown = {field: column for field, column in fields.items() if any(r.get(field) is not None for r in results)}
    rows = [[row["name"], *(_cell(field, row) for field in shown)] for row in results]
    return Table([Column(_("run")), *shown.values()], rows, caption, emphasis)


def _result_columns() -> dict[str, Column]:
    return {
        "time_to_target_s": Column(
            _("time to target"), "{:.1f} s", _("training time until the validation loss reached the target")
        ),
        "seconds_per_update": Column(_("per update"), "{:.3f} s", _("training time divided by updates")),
        "updates_to_target": Column(_("updates"), "{:,}", _("optimizer updates until the target")),
        "final_val_loss": Column(_("validation loss"), "{:.3f}", _("at the end of the run")),
        "tokens_per_second": Column(_("tokens/s"), "{:,.0f}", _("tokens trained on per second of training time")),
        "utilization": Column(
            _("working"), "{:.1%}", _("mean share of the run's time that a stage worked, fill and drain included")
        ),
        "version_gap_max": Column(
            _("version gap"), "{}", _("most updates between a micro-batch's forward and its backward on a stage")
        ),
        "in_flight_peak": Column(_("in flight"), "{}", _("most micro-batches a stage held activations of")),
        "weight_copies": Column(_("weight copies"), "{}", _("most copies of its weights that a stage kept")),
    }


def _cell(field: str, row: Mapping[str, object]) -> object:
    value = row.get(field)
    if isinstance(value, (list, tuple)):
        return (sum(value) / len(value) if field == "utilization" else max(value)) if value else None
    if value is None and field in ("time_to_target_s", "updates_to_target") and row.get("reached") is False:
        return _("not reached")
    return value


# -- HTML ---------------------------------------------------------------------------------------------------------
def _section(section: Section, numbers: dict[int, int]) -> str:
    draw = {Table: _table, Facts: _facts}
    parts = [_chart(p, numbers[id(p)]) if isinstance(p, Chart) else draw[type(p)](p) for p in section.parts]
    return (
        f"<section>\n<h2>{escape(section.title)}</h2>\n{_paragraphs(section.text)}\n"
        + "\n".join(parts)
        + "\n</section>"
    )


def _chart(chart: Chart, number: int) -> str:
    alternative = escape(chart.alternative)
    spoken = chart.figure.in_words() if isinstance(chart.figure, GanttFigure) else ""
    return (
        f'<figure class="chart"><div class="scroll"><div id="chart{number}" class="plot" role="img" '
        f'style="min-width:{chart.min_width}px" aria-label="{alternative}"></div></div>'
        f"<noscript><p>{alternative}</p></noscript><figcaption>{escape(chart.caption)}</figcaption>{spoken}"
        f'<script type="application/json" class="spec" data-for="chart{number}">{_safe(chart.figure.to_json())}'
        "</script></figure>"
    )


def _table(table: Table) -> str:
    numeric = [any(isinstance(row[i], (int, float)) for row in table.rows) for i in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{_align(n)}>{escape(c.heading)}</th>' for c, n in zip(table.columns, numeric, strict=True)
    )
    rows = []
    for position, row in enumerate(table.rows):
        cells = [
            f"<td{_align(n)}>{_value(cell, column)}</td>"
            for cell, column, n in zip(row, table.columns, numeric, strict=True)
        ]
        cells[0] = f'<th scope="row">{_value(row[0], table.columns[0])}</th>'
        rows.append(f"<tr{' class=emphasis' if position in table.emphasis else ''}>{''.join(cells)}</tr>")
    meanings = [f"<dt>{escape(c.heading)}</dt><dd>{escape(c.meaning)}</dd>" for c in table.columns if c.meaning]
    legend = f'<dl class="meanings">{"".join(meanings)}</dl>' if meanings else ""
    return (
        f'<figure class="table"><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        f"</div><figcaption>{escape(table.caption)}</figcaption>{legend}</figure>"
    )


def _facts(facts: Facts) -> str:
    return (
        '<ul class="facts">'
        + "".join(f"<li><b>{escape(v)}</b><span>{escape(w)}</span></li>" for v, w in facts.values)
        + "</ul>"
    )


def _align(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _value(cell: object, column: Column) -> str:
    if cell is None:
        return "–"
    return escape(
        column.format.format(cell) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else str(cell)
    )


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def _safe(text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("paci_lab.show").joinpath(name).read_text(encoding="utf-8")
