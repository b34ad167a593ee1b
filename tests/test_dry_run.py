"""`--dry-run`: what a spec takes, from shapes and simulation alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paci_lab import InputError, TrainSpec
from paci_lab.cli import main
from paci_lab.dry_run import dry_run
from paci_lab.models import build_model

SPECS = Path(__file__).parent.parent / "specs"


def test_the_papers_configuration():
    found = dry_run(TrainSpec.load(SPECS / "gpt2-medium-owt-8stage.toml"))
    assert found.parameters == 406_286_336
    assert found.tokens == pytest.approx(49.8e9, rel=1e-3)
    assert sum(stage.layers for stage in found.stages) == 26  # 24 blocks, embedding, head
    assert [stage.held for stage in found.stages] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [stage.gap for stage in found.stages] == [1] * 7 + [0]
    assert 1.6 < found.against_flush <= 1.875  # (m+N-1)/m, less what the uneven cut costs


def test_even_stages_give_the_ideal_ratio_over_flush():
    spec = TrainSpec(
        stages=4, window=8, updates=4, model="gpt:blocks=4,width=32,heads=1,context=8", partition=[2, 1, 1, 2]
    )
    found = dry_run(spec)
    assert found.against_flush == pytest.approx((8 + 3) / 8, rel=0.12)  # the head makes the last stage dearer
    assert dry_run(spec.replace(schedule="1f1b")).against_flush == pytest.approx(1.0, rel=1e-6)


def test_parameters_are_those_of_a_real_stage():
    spec = TrainSpec(stages=2, model="femto", updates=1)
    model = build_model("femto")
    found = dry_run(spec)
    first = 0
    for stage in found.stages:
        layers = [model.build_layer(layer, 0) for layer in range(first, first + stage.layers)]
        assert stage.parameters == sum(p.numel() for layer in layers for p in layer.parameters())
        first += stage.layers
    assert found.stages[0].optimizer == 8 * found.stages[0].parameters


def test_more_stages_than_layers_are_refused():
    with pytest.raises(InputError, match="stages"):
        dry_run(TrainSpec(stages=64, model="femto", updates=1))


def test_the_command_prints_it_and_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spec = str(SPECS / "gpt2-medium-owt-8stage.toml")
    assert main(["train", spec, "--dry-run", "--json", "figures.json"]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["parameters"] == 406_286_336 and len(figures["stages"]) == 8
    said = capsys.readouterr()
    assert "nothing was started" in said.out + said.err
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
    assert main(["train", "--stages", "90", "--dry-run"]) == 2
