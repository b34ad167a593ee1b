"""The table of all schedules: against the published formulas and real ranks, and the page in docs as it is written."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path

import pytest

from paci_lab import InputError
from paci_lab.cli import main
from paci_lab.commands.schedules import DEFAULTS
from paci_lab.models import build_model
from paci_lab.schedule_runs import Record, measure_schedules, paced_spec
from paci_lab.schedule_table import schedule_table
from paci_lab.schedules import build_schedule, schedule_classes, weight_copies


@pytest.fixture(autouse=True)
def no_schedule_of_another_test():
    """A class that another test has made and dropped is found until it is collected."""
    gc.collect()


PAGE = Path(__file__).parents[1] / "docs" / "schedules.md"
RECORD = PAGE.with_name("schedules-measured.json")


@pytest.mark.parametrize("ranks, window, updates", [(4, 8, 16), (8, 16, 5), (4, 12, 1)])
def test_every_figure_is_its_published_formula(ranks, window, updates):
    n, m, total = ranks, window, window * updates
    rows = {row.schedule: row for row in schedule_table(ranks=n, window=m, updates=updates)}
    assert rows.keys() == schedule_classes().keys() and not any(row.refusal for row in rows.values())
    flush, stream = (n - 1) / (m + n - 1), (n - 1) / (total + n - 1)
    expected = {  # bubble, copies, activations, delay
        "gpipe": (flush, 1, m, 0),
        "1f1b": (flush, 1, min(m, n), 0),
        "interleaved": ((n - 1) / (2 * m + n - 1), 1, n + (n - 1) / 2, 0),
        "zb-h1": ((n - 1) / (3 * m + n - 1), 1, n, 0),
        "zb-v": ((n - 1) / (6 * total + n - 1), 1, n, 0),
        "pipemare": (stream, 1, n, math.ceil((n - 1) / m) * (updates > 1)),
        "interleaved-paci": ((n - 1) / (2 * total + n - 1), 1, n, math.ceil((2 * n - 1) / m) * (updates > 1)),
        "zb-h2": ((n - 1) / (3 * total + n - 1), 1, 2 * n - 1, 0),
        "pipedream": (stream, 1 + math.ceil((n - 1) / m) * (updates > 1), n, math.ceil((n - 1) / m) * (updates > 1)),
        "pipedream-2bw": (stream, 1 + (updates > 1), n, int(updates > 1)),
        "paci": (stream, 1, n, math.ceil((n - 1) / m) * (updates > 1)),
    }
    for name, (bubble, copies, held, delay) in expected.items():
        row = rows[name]
        assert row.bubble == pytest.approx(bubble), name
        assert (row.weight_copies, row.activations, row.update_delay) == (copies, held, delay), name
        assert row.against_flush == pytest.approx((1 - bubble) / (1 - flush)), name
        assert row.ranks == n


def test_stashing_with_window_1_costs_n_minus_s_copies():
    schedule = build_schedule("pipedream", stages=6, window=1, microbatches=30)
    assert [weight_copies(schedule, stage) for stage in range(6)] == [6, 5, 4, 3, 2, 1]


def test_a_schedule_that_cannot_have_the_window_says_why():
    rows = {row.schedule: row for row in schedule_table(ranks=4, window=3, updates=2)}
    assert {name for name, row in rows.items() if row.refusal} == {"interleaved", "pipedream-2bw"}
    assert "a whole number from 4" in rows["pipedream-2bw"].refusal


def test_the_page_in_docs_is_what_the_command_writes(tmp_path, capsys):
    """The page says with which command; the record beside it is of one that measured."""
    arguments = ["--measured", str(RECORD), "--markdown", str(tmp_path / "page.md"), "--json", "-"]
    assert main(["schedules", *arguments]) == 0
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()
    figures = json.loads(capsys.readouterr().out)
    for row in figures:
        shown = f"| {row['schedule']} | {100 * row['bubble']:.1f} % | {100 * row['measured']['bubble']:.1f} % |"
        assert shown in PAGE.read_text()
        # What is counted, on real ranks too, is exactly what is worked out.
        for counted in ("weight_copies", "activations"):
            assert row["measured"][counted] == row[counted]
    assert set(DEFAULTS) == {"stages", "window", "updates"}


def test_real_ranks_show_the_copies_and_activations_of_the_formulas(tmp_path):
    """And the bytes of the weights kept: one more copy of its weights for every version in flight."""
    names = ["1f1b", "pipedream", "zb-v"]
    told = []
    record = measure_schedules(
        names, ranks=3, window=1, updates=7, forward_ms=1, rounds=1, done=lambda *what: told.append(what)
    )
    assert told == [(name, 0) for name in names] and list(record.schedules) == names
    rows = {row.schedule: row for row in schedule_table(ranks=3, window=1, updates=7)}
    for name, found in record.schedules.items():
        assert (found.weight_copies, found.activations) == (rows[name].weight_copies, rows[name].activations), name
        assert found.operations == 7 * 3 * {"1f1b": 2, "pipedream": 2, "zb-v": 6}[name]
        assert found.makespan_ms > 0 and found.against_flush > 0 and 0 < found.bubble < 1
    assert record.schedules["1f1b"].against_flush == 1 and record.schedules["zb-v"].kept_bytes == 0
    spec = paced_spec("pipedream", ranks=3, window=1, updates=7, forward_ms=1)
    model = build_model(spec.model)
    per_stage = [
        sum(p.numel() * 4 for layer in layers for p in model.build_layer(layer, 0).parameters())
        for layers in ((0, 1), (2, 3), (4, 5))
    ]
    assert record.schedules["pipedream"].kept_bytes == max((2 - s) * size for s, size in enumerate(per_stage))
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json") == record


def test_a_record_of_other_sizes_or_of_none_is_refused(tmp_path, capsys):
    assert main(["schedules", "--window", "12", "--measured", str(RECORD)]) == 2
    assert "figures of ranks 4, window 12" in capsys.readouterr().err
    (tmp_path / "none.json").write_text('{"machine": 1}')
    assert main(["schedules", "--measured", str(tmp_path / "none.json")]) == 2
    assert "a file written by --measure" in capsys.readouterr().err
    assert main(["schedules", "--measure", "--rounds", "0"]) == 2
    assert main(["schedules", "--measure", "--measured", str(tmp_path / "nowhere" / "figures.json")]) == 2
    assert "a file in a folder that exists" in capsys.readouterr().err


def test_sizes_that_are_none_are_refused(capsys):
    assert main(["schedules", "--window", "0"]) == 2
    assert "--window = 0" in capsys.readouterr().err
    with pytest.raises(InputError):
        schedule_table(ranks=0, window=1, updates=1)
