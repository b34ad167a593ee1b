"""Every schedule of the folder with real ranks, more of them and for longer than its own tests take time for."""

from __future__ import annotations

import pytest
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny

from paci_lab.schedules import schedule_classes


@pytest.mark.slow
@pytest.mark.parametrize("stages, window", [(4, 4), (8, 8), (8, 12)])
@pytest.mark.parametrize("schedule", sorted(schedule_classes()))
def test_every_schedule_is_replay_to_the_last_bit(tmp_path, schedule, stages, window):
    spec = tiny(
        schedule=schedule,
        model="gpt:blocks=8,width=16,heads=1,context=16",
        stages=stages,
        window=window,
        updates=4,
        partition=split_of(stages, 10),
        dropout=0.1,
        evaluate_every=2 * window,
    )
    assert_run_is_replay(run_to_end(spec, tmp_path / "run"))
