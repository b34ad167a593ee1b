"""The message catalogue: complete, up to date, and a broken translation is refused by name and line.

en_XA, a made-up language in accented letters, proves that whatever a learner reads was looked up: plain letters are
left only in what is data (names of schedules and runs, units, what a run itself says).
"""

from __future__ import annotations

import ast
import html
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import ipywidgets
import pytest

import paci_lab
from paci_lab import InputError, lessons, simulate
from paci_lab.catalogue import TEMPLATE, collect, written
from paci_lab.game import Board
from paci_lab.language import VARIABLE, _, direction, language, ngettext
from paci_lab.schedules import PACI, build_schedule, schedule_classes
from paci_lab.show.explorer import explorer
from paci_lab.show.front import moving_picture
from paci_lab.show.gantt import gantt, gantt_pair, new_content
from paci_lab.show.live import live
from paci_lab.show.loss import loss_curves
from paci_lab.show.report import Chart, Section, comparison_table, write_report
from paci_lab.show.spoken import Spoken, details_html, summary, table_html
from paci_lab.show.why import Moments
from paci_lab.simulate import Costs
from tuning.notebook import RECORDINGS, Controller, windows_chart
from tuning.study import Study

ROOT = Path(paci_lab.__file__).parents[1]
RUN = lessons.RECORDINGS / "04-paci"


@pytest.fixture
def speak(monkeypatch):
    """Chooses the language."""
    return lambda name: monkeypatch.setenv(VARIABLE, name)


# -- the code --------------------------------------------------------------------------------------------------------
def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Every module that takes something from the catalogue."""
    for path in itertools.chain(*((ROOT / package).rglob("*.py") for package in ("paci_lab", "tuning"))):
        text = path.read_text(encoding="utf-8")
        if "from paci_lab.language import" in text:
            yield path, ast.parse(text)


def calls(tree: ast.AST) -> list[ast.Call]:
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return [node for node in named if node.func.id in ("_", "ngettext")]


def test_reasons_of_the_validator_are_whole_and_literal():
    """The catalogue would not see others."""
    tree = ast.parse((ROOT / "paci_lab" / "schedules" / "validate.py").read_text(encoding="utf-8"))
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Reason"]
    assert len(made) > 15 and all(isinstance(call.args[0], ast.Constant) for call in made)


def test_the_template_holds_every_sentence():
    assert TEMPLATE.read_text(encoding="utf-8") == written(collect()), "run python -m paci_lab.catalogue (make words)"


def test_sentences_are_looked_up_where_they_are_shown():
    """Not at import, when the language may not be chosen yet; whole and literal, or no translator ever sees them."""
    places = 0
    for path, tree in modules():
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
        inside = {id(call) for function in functions for call in calls(function)}
        for function in functions:  # a default is made at import as well
            inside -= {id(call) for default in ast.walk(function.args) for call in calls(default)}
        for call in calls(tree):
            where = f"{path.name} line {call.lineno}"
            assert id(call) in inside, f"{where}: looked up at import"
            texts = call.args[: 1 if call.func.id == "_" else 2]
            known = ast.unparse(texts[0]) == "cls.summary"  # of schedules, which the catalogue collects by itself
            assert known or all(isinstance(text, ast.Constant) for text in texts), f"{where}: not a literal"
            places += 1
        for function in functions:
            own = [n for n in ast.walk(function) if isinstance(n, ast.comprehension)]  # these have names of their own
            own = {id(n) for comprehension in own for n in ast.walk(comprehension.target)}
            bound = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            overwritten = any(n.id == "_" and id(n) not in own for n in bound)
            assert not (overwritten and calls(function)), f"{path.name}: a function overwrites the `_` it calls"
    assert places > 200


# -- a translation ---------------------------------------------------------------------------------------------------
GERMAN = r"""
msgid ""
msgstr "Content-Type: text/plain; charset=utf-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n"

msgid "Stage {stage} has not begun."
msgstr "Stufe {stage} hat nicht begonnen."

msgid "{number} unreadable line of metrics.jsonl left out."
msgid_plural "{number} unreadable lines of metrics.jsonl left out."
msgstr[0] "{number} unlesbare Zeile in metrics.jsonl fehlt."
msgstr[1] "{number} unlesbare Zeilen in metrics.jsonl fehlen."
""".lstrip()
LINES = ("{number} unreadable line of metrics.jsonl left out.", "{number} unreadable lines of metrics.jsonl left out.")


@pytest.fixture
def german(tmp_path, monkeypatch, speak):
    """Writes a catalogue and chooses it."""

    def write(text: str) -> None:
        (tmp_path / "de.po").write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.setattr("paci_lab.language.FOLDER", tmp_path)
        speak("de")

    return write


def test_a_translation_is_one_file(german):
    german(GERMAN)
    assert language() == "de" and direction() == "ltr"
    assert Moments(simulate(PACI(stages=2, microbatches=4, window=2), Costs())).sentence(1, -5) == (
        "Stufe 1 hat nicht begonnen."
    )
    assert [ngettext(*LINES, n).format(number=n) for n in (1, 2)] == [
        "1 unlesbare Zeile in metrics.jsonl fehlt.",
        "2 unlesbare Zeilen in metrics.jsonl fehlen.",
    ]
    assert _("Ended") == "Ended"  # what is not translated stays English


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("Stufe {stage}", "Stufe {stagee}", r"de\.po line 4 = .*no other places than \{stage\}.*Correct \{stagee\}"),
        ("Stufe {stage}", "Stufe {stage", r"de\.po line 4 = "),
        ("Stufe {stage}", "Stufe {stage.__class__}", r"Correct \{stage\.__class__\}"),
        ("{number} unlesbare Zeilen", "{numbers} unlesbare Zeilen", r"de\.po line 7 = .*Correct \{numbers\}"),
        ('msgid "Stage', 'msgit "Stage', r"de\.po line 4 = msgit"),
        ("plural=(n != 1)", "plural=(n !=", r"catalogue = .*de\.po is not possible"),
        ("hat nicht", b"hat \xff nicht", r"catalogue = .*de\.po .*UTF-8"),
    ],
)
def test_a_broken_translation_names_its_file_and_message(german, right, wrong, said):
    if isinstance(wrong, bytes):
        german(GERMAN.encode().replace(right.encode(), wrong))
    else:
        german(GERMAN.replace(right, wrong))
    with pytest.raises(InputError, match=said):
        _("Ended")
    german(GERMAN)  # corrected while the program runs
    assert _("Ended") == "Ended"


def test_a_language_without_a_catalogue_is_refused(speak):
    speak("xx")
    with pytest.raises(InputError, match="xx is not possible: allowed is en"):
        language()


# -- everything a learner reads --------------------------------------------------------------------------------------
DATA = {
    *schedule_classes(),
    *("flush", "PACI", "1F1B", "ZB-H1", "W", "V", "GPT-2", "GPT-3", "6.7B", "small", "medium", "XL"),
    *("ms", "s", "min", "h", "µs", "GiB", "MiB", "MB"),
}
"""Words that are the same in every language: names and units."""

_MARKUP = re.compile(r"<style>.*?</style>|<[^<>]*>|%\{[^{}]*\}", re.S)


def english(texts: list[str], *data: str) -> set[str]:
    """Plain words in texts that were not looked up, beside `DATA`; asserts that every place was filled in."""
    found = set()
    for text in texts:
        text = html.unescape(_MARKUP.sub(" ", text))
        assert "{" not in text and text.count("⟦") == text.count("⟧"), text
        found |= {word.strip(".-") for word in re.findall(r"[\w.-]+", text) if re.search(r"[A-Za-z]", word)}
    return {re.sub("[^A-Za-z0-9.-]", "", word) for word in found - DATA - set(data)}


def texts_of(figure) -> list[str]:
    """What a chart shows: names, headings, ticks, hover texts."""
    shown, made = [], json.loads(figure.to_json())
    for trace in made["data"]:
        shown += [trace.get("hovertemplate", "")]
        shown += [trace["name"]] if trace.get("showlegend") else []
        shown += [text for text in trace.get("customdata") or [] if isinstance(text, str)]
        shown += [text for text in trace.get("text") or [] if isinstance(text, str) and not text.startswith("v")]
    layout = made["layout"]
    shown += [note["text"] for note in layout.get("annotations", [])] + [layout.get("title", {}).get("text", "")]
    for name, axis in layout.items():
        if name[1:5] == "axis":
            shown += [axis.get("title", {}).get("text", ""), *axis.get("ticktext", [])]
    return shown


def texts_in(widget) -> list[str]:
    """What a widget and those in it show."""
    shown = [str(getattr(widget, name, "") or "") for name in ("description", "tooltip")]
    if isinstance(widget, ipywidgets.HTML):
        shown.append(widget.value)
        shown += re.findall(r'(?:title|aria-label)="([^"]*)"', widget.value)
    shown += [str(label) for label in getattr(widget, "_options_labels", ())]
    return shown + [text for child in getattr(widget, "children", ()) for text in texts_in(child)]


def names_in(study: Study) -> set[str]:
    """Of its points and run directories."""
    return {name for trial in study.trials() for name in (study.label(trial), Path(trial.path).name)}


@pytest.fixture
def trace():
    costs = Costs(latency_ms=0.5, jitter=0.2, update_ms=0.3)
    return simulate(build_schedule("zb-h1", stages=3, microbatches=10, window=4), costs)


def test_charts_speak_the_language(speak, trace):
    speak("en_XA")
    figure = gantt(trace, predicted=trace, strips=("in-flight", "version"))
    assert english(texts_of(figure)) == set()
    assert english(texts_of(gantt_pair(trace, trace, names=("paci", "flush")))) == set()
    assert (
        english([figure.in_words(), summary(trace), table_html(trace), details_html([Spoken(trace, "paci")])]) == set()
    )
    rows = [{"time_s": t, "tokens": 1000 * t, "update": t, "val_loss": 5 - t} for t in range(4)]
    assert english(texts_of(loss_curves({"paci": rows}, target=3.0))) == set()
    study = Study.open(RECORDINGS / "06-window")
    assert english(texts_of(windows_chart(study)), *names_in(study)) == set()
    plain = gantt(trace, strips=("in-flight", "version"))
    slots, layout = new_content(plain, trace)
    picture = moving_picture(plain, slots, tuple(layout["xaxis.range"]), 3)
    assert english(picture["words"].decode().split("\n")) == set()


def test_every_sentence_of_the_step_mode_is_looked_up(speak, trace):
    speak("en_XA")
    for name in ("paci", "1f1b", "gpipe"):
        costs = Costs(latency_ms=0.5, jitter=0.2, update_ms=0.3)
        trace = simulate(build_schedule(name, stages=4, microbatches=16, window=8), costs)
        moments = Moments(trace)
        sentences = [s for event in moments.work for s in moments.sentences(event.start_ns)]
        assert len(set(sentences)) > 50 and english(sentences) == set()


def test_the_explorer_speaks_the_language(speak):
    speak("en_XA")
    view = explorer(stages=3, microbatches=8, window=2, strips=("in-flight",))
    view.front.reading = True
    view.controls["forward"].click()
    assert view._words.value and "<table" in view._spoken.value
    assert english([*texts_in(view.widget), view.figure.spoken, *texts_of(view.figure)]) == set()


def test_the_rules_of_the_game_speak_the_language(speak):
    speak("en_XA")
    board = Board("1f1b")
    assert board.place("0F0") is None
    said = {op: board.place(op) for op in ("0B0", "1B0", "0F0", "0U0")}
    rules = {refusal.code for refusal in said.values()}
    assert rules == {"deadlock", "order", "repeated", "window"}
    assert english([str(refusal) for refusal in said.values()], *said, *rules, "1F0") == set()
    assert board.place("0B0").reason == "no rank can go on: 0B0 waits for 1B0"


def test_the_live_view_speaks_the_language(speak, tmp_path):
    speak("en_XA")
    view = live(RUN, stop=lambda: None)
    view.close()
    view.playhead.seek(10**9)
    view.front.reading = True
    view.tick()
    view._sender._in_browser.set()
    view.tick()
    assert "<table" in view._spoken.value
    assert english([*texts_in(view.widget), view.figure.spoken, *texts_of(view.figure)]) == set()
    (tmp_path / "metrics.jsonl").write_text("[1]\n[2]\n")
    (tmp_path / "result.json").write_text('{"schema": 99}')
    broken = live(tmp_path)
    broken.feed.poll()
    said = [broken.feed.status(), *broken.feed.problems()]
    assert english(said, "spec.toml", "result.json", "metrics.jsonl", "paci_lab") == set()
    broken.close()


def test_a_report_speaks_the_language(speak, trace, tmp_path):
    speak("en_XA")
    table = comparison_table(
        [{"name": "paci", "reached": False, "updates_to_target": None, "utilization": [0.5]}], caption=""
    )
    path = write_report(
        tmp_path / "r.html", title="", lead="", sections=[Section("", "", [Chart(gantt(trace), "", ""), table])]
    )
    page = path.read_text(encoding="utf-8")
    assert '<html lang="en-XA" dir="ltr">' in page
    body = page[page.index("<body>") : page.index("</main>")]
    shown = re.findall(r'(?:title|data-light|data-dark)="([^"]*)"', body)
    body = re.sub(r"<script.*?</script>", "", body, flags=re.S)
    assert english([body, *shown]) == set()


def test_the_study_view_speaks_the_language(speak):
    speak("en_XA")
    view = Controller(Study.open(RECORDINGS / "06-window")).live()
    view.close()
    shown = [*texts_in(view.widget), view.table.html, *re.findall(r'title="([^"]*)"', view.table.html)]
    assert english(shown, *names_in(view._study)) == set()


def test_a_language_from_right_to_left_turns_the_page_and_not_the_charts(speak, trace):
    speak("ar_XB")
    assert direction() == "rtl"
    view = explorer(stages=3, microbatches=8, window=2)
    assert "paci-lab-rtl" in view.widget._dom_classes
    heading = view.figure.layout.annotations[0].text  # in a chart, which is drawn from left to right, on its own
    assert heading.count("\u2067") == heading.count("\u2069") > 0
    view.controls["step"].value = 3  # what depends on the unit of the axis does not read it off its title
    view.controls["step mode"].value = True
    assert max(view.figure.data[-1].x) > 5
    assert 'dir="rtl"' in details_html([Spoken(trace)]) and view.figure.layout.xaxis.range[0] == 0
