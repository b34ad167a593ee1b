"""Zero bubble: the published idle times, and a split backward that gives the numbers of a whole one."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny
from torch import nn

import paci_lab
from paci_lab import Costs, simulate, validate
from paci_lab.runtime.split import SplitBackward
from paci_lab.schedules import ZBH1, ZBH2, ZBV, OneFOneB

pytestmark = pytest.mark.usefixtures("one_thread")


# -- the schedules ------------------------------


def test_the_orders_are_the_published_ones():
    """Figures 2 and 3 of the source, its first and last device, with I for its B."""
    first, *_, last = (" ".join(map(str, ZBH1(stages=4, window=8, microbatches=8).ops(rank))) for rank in range(4))
    assert first.startswith("0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5") and first.endswith("0I6 0W6 0I7 0W7 0U0")
    assert last.startswith("3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4") and last.endswith("3I7 3W4 3W5 3W6 3W7 3U0")
    first, *_, last = (" ".join(map(str, ZBH2(stages=4, window=8, microbatches=8).ops(rank))) for rank in range(4))
    assert first.startswith("0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2")
    assert last.startswith("3F0 3I0 3F1 3I1 3F2 3I2") and last.endswith("3I7 3W1 3W2 3W3 3W4 3W5 3W6 3W7 3U0")


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("forward, input_, weight", [(1, 1, 1), (1, 1.2, 0.8), (2, 3, 1.5), (1, 1.5, 1), (2, 3, 2.5)])
@pytest.mark.parametrize("cls, weights", [(ZBH1, 1), (ZBH2, 2)])
def test_idle_time_per_update_is_the_published_formula(cls, weights, stages, forward, input_, weight):
    window = 3 * stages
    costs = Costs(forward_ms=forward, backward_ms=input_ + weight, input_ms=input_, weight_ms=weight)

    def makespan_ms(updates: int) -> float:
        schedule = cls(stages=stages, window=window, microbatches=updates * window)
        validate(schedule)
        trace = simulate(schedule, costs)
        assert trace.in_flight_peak() == [schedule.in_flight(stage) for stage in range(stages)]
        return trace.makespan_ns / 1e6

    idle = makespan_ms(4) - makespan_ms(3) - window * (forward + input_ + weight)
    assert idle == pytest.approx((stages - 1) * max(forward + input_ - weights * min(weight, forward), 0), abs=1e-4)


@pytest.mark.parametrize("stages, window, updates", [(4, 8, 1), (4, 8, 5), (8, 24, 2)])
def test_ideal_bubbles_and_held_activations(stages, window, updates):
    h1, h2 = (cls(stages=stages, window=window, microbatches=window * updates) for cls in (ZBH1, ZBH2))
    for schedule in (h1, h2):
        assert simulate(schedule).bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction())
    assert [h1.in_flight(stage) for stage in range(stages)] == [stages] * stages
    assert [h2.in_flight(stage) for stage in range(stages)] == [2 * stages - 1] * stages


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("windows", [1, 3])
def test_zb_v_is_busy_throughout_with_the_activations_of_1f1b(ranks, windows):
    """Section 6: with F = I = W a rank waits only for its first operation; every rank holds R micro-batches of its own
    two stages, as many as the first rank of 1F1B holds of its one."""
    for window in (2 * ranks - 1, 4 * ranks):
        schedule = ZBV(stages=2 * ranks, window=window, microbatches=windows * window)
        validate(schedule)
        trace = simulate(schedule, Costs(forward_ms=1, backward_ms=2))
        assert trace.bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction())
        assert trace.makespan_ns == (6 * windows * window + ranks - 1) * 1e6
        for rank in range(ranks):
            mine = [event for event in trace if event.rank == rank and event.op != "U"]
            assert not any(event.op.startswith("wait") for event in mine[2 * ranks :])
            held = most = 0
            for op in schedule.ops(rank):
                held += (op.kind == "F") - (op.kind == "W")
                most = max(most, held)
            assert most / 2 == ranks == OneFOneB(stages=ranks, window=window, microbatches=window).in_flight(0)
        assert trace.in_flight_peak() == [schedule.in_flight(stage) for stage in range(2 * ranks)]


def test_zb_v_needs_two_stages_per_rank():
    with pytest.raises(paci_lab.InputError, match="stages = 3 .* Try stages 4"):
        ZBV(stages=3, window=4, microbatches=4)


# -- the split on real modules ------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "zb-h1", "stages": 3, "window": 4, "microbatches": 10, "optimizer": "muon"},
        {"schedule": "zb-h2", "stages": 2, "window": 3, "microbatches": 8, "optimizer": "adamw"},
        {"schedule": "zb-v", "stages": 4, "window": 4, "microbatches": 10, "optimizer": "muon"},
    ],
    ids=lambda changes: changes["schedule"],
)
def test_real_ranks_are_replay_and_replay_is_plain_accumulation(tmp_path, changes):
    """Bit for bit what whole backwards in one process give, so nothing of a gradient is lost or counted twice."""
    spec = tiny(updates=None, partition=split_of(changes["stages"]), dropout=0.1, evaluate_every=4, **changes)
    exact = assert_run_is_replay(run_to_end(spec, tmp_path / "run"))
    plain = paci_lab.replay(spec.replace(schedule="1f1b", stages=1, partition=[6]))
    assert exact.losses == plain.losses and exact.validation == plain.validation
    assert all(torch.equal(exact.parameters[name], tensor) for name, tensor in plain.parameters.items())


class Tangled(nn.Module):
    """A parameter of its own beside a child's, a module called twice, one whose weight is used without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.twice, self.silent, self.once = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.twice(torch.tanh(self.twice(x * self.scale)))
        return self.once(x @ self.silent.weight) + x


def halves_of(module: nn.Module, x: torch.Tensor) -> tuple[SplitBackward, torch.Tensor, torch.Tensor]:
    split = SplitBackward(module)
    with split.forward(0):
        output = module(x)
    gradient = torch.ones_like(output)
    found = split.input_half(0, x, output, gradient)
    gradient.zero_()  # the buffer is used again
    return split, found, output


def test_halves_are_the_whole_on_modules_that_cannot_be_cut_cleanly():
    torch.manual_seed(0)
    module, x = Tangled(), torch.randn(3, 4, requires_grad=True)
    output = module(x)
    whole = torch.autograd.grad(output, [x, *module.parameters()], torch.ones_like(output), allow_unused=True)
    split, found, _ = halves_of(module, x)
    assert all(parameter.grad is None for parameter in module.parameters())  # I makes no weight gradient
    split.weight_half(0)
    assert torch.equal(found, whole[0])
    for (name, parameter), expected in zip(module.named_parameters(), whole[1:], strict=True):
        assert (parameter.grad is None and expected is None) or torch.equal(parameter.grad, expected), name


def test_the_input_half_works_out_no_weight_gradient():
    """Counted in matrix products: I of a chain has one per layer, W one per layer, and the whole has both."""
    from torch.utils.flop_counter import FlopCounterMode

    module, x = (
        nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4))),
        torch.randn(8, 16, requires_grad=True),
    )
    split = SplitBackward(module)
    with split.forward(0):
        output = module(x)
    product = 2 * 8 * 16 * 16
    for half in (lambda: split.input_half(0, x, output, torch.ones_like(output)), lambda: split.weight_half(0)):
        with FlopCounterMode(display=False) as counter:
            half()
        assert counter.get_total_flops() == 4 * product


def test_a_weight_used_by_its_module_and_outside_of_it_is_refused():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x) @ self.inner.weight

    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"cannot be split: .* shape \(4, 4\)"):
        module = Both()
        SplitBackward(module).check(module, torch.randn(3, 4, requires_grad=True))
    module = Tangled()
    SplitBackward(module).check(module, torch.randn(3, 4, requires_grad=True))
    assert all(parameter.grad is None for parameter in module.parameters())
