"""What stands around the board: the task, the score, and what a run on real ranks has shown."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from paci_lab.game.assist import Help
from paci_lab.game.board import Board
from paci_lab.game.levels import Level
from paci_lab.game.run import compared, predicted, repeated
from paci_lab.game.score import Score
from paci_lab.game.share import schedule_name
from paci_lab.language import _, direction
from paci_lab.runtime.launch import Run
from paci_lab.show.front import Front, starting_theme
from paci_lab.show.gantt import gantt, retheme
from paci_lab.show.notebook import figure_widget, html_table

__all__ = ["outcome", "score_html", "sentence_widget", "task_html"]

_SHOWN_LAPS = 2


def sentence_widget(text: str) -> widgets.HTML:
    """One paragraph."""
    return widgets.HTML(f'<p dir="{direction()}" style="font-size:16px;line-height:1.5">{escape(text)}</p>')


def task_html(level: Level) -> str:
    """What a level asks for, and its limits."""
    facts = [
        _("{stages} stages, {microbatches} micro-batches, an update of every stage after every {window}.").format(
            stages=level.stages, microbatches=level.microbatches, window=level.window
        ),
        _("A forward takes {forward}, a backward {backward}, an update and messages nothing.").format(
            forward=level.forward, backward=level.backward
        ),
        _("Held at most, by stage: {list} micro-batches.").format(list=", ".join(map(str, level.in_flight))),
    ]
    if level.split:
        facts.append(_("I and W take {half:g} each.").format(half=level.backward / 2))
    if max(level.gap_bound):
        facts.append(_("Version gap at most, by stage: {list}.").format(list=", ".join(map(str, level.gap_bound))))
    if level.papers:
        papers = ", ".join(f"{name} (arXiv {number})" for name, number in level.papers)
        facts.append(_("Background: {papers}.").format(papers=papers))
    # The room that is left over is where lines end: the page itself may run the other way.
    style = "font-size:16px;line-height:1.5;max-width:70em;margin-inline-end:auto"
    return (
        f'<div dir="{direction()}" style="{style}"><p style="font-size:18px;margin:4px 0">{escape(level.goal)}</p>'
        f'<p style="margin:4px 0">{escape(" ".join(facts))}</p></div>'
    )


def score_html(now: Score, help: Help) -> str:
    """The score in a sentence and a table, with the help that was used."""
    headings = [_("measure"), _("yours"), _("par"), ""]
    words = f'<p style="font-size:16px;margin:4px 0">{escape(now.words())} {escape(help.words())}</p>'
    return f'<div dir="{direction()}">{words}{html_table(headings, now.rows())}</div>'


def outcome(run: Run, board: Board) -> list[widgets.Widget]:
    """What is shown of a run that ended well: predicted and measured, in a sentence and over one another."""
    spec, trace = run.spec, run.trace()
    until = 1.1 * _SHOWN_LAPS * board.measures.makespan * spec.pace_forward_ms / board.level.forward
    title = _("Measured on paced ranks, and below each row what was predicted")
    figure = gantt(
        trace,
        predicted=predicted(spec),
        between_ms=(0, until),
        title=title,
        theme=starting_theme("auto"),
    )
    chart, page = figure_widget(figure), Front()
    chart.spoken = title
    page.on_page(lambda theme: retheme(chart, theme))
    command = f"paci-lab train --schedule {schedule_name(board)} --stages {spec.stages} --window {spec.window}"
    again = _("The run is in {folder}. The same schedule elsewhere: {command}")
    where = sentence_widget(again.format(folder=run.path.resolve(), command=command))
    words = widgets.HTML(figure.in_words())
    times = f"{compared(spec, trace)} {repeated(spec, board)}"
    return [sentence_widget(times), chart.in_page, page.in_page, words, where]
