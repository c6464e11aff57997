"""Layers that take no part in some batches: stochastic depth, branches not taken, experts that nobody asked."""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, C, N, Z, clipped, data, first, flat, per_example, private, step, train
from torch import Tensor, nn

from isthmus import InvalidInput, Kronecker, PublicSubspace
from isthmus.gradients.rounding import KAPPA

pytestmark = pytest.mark.filterwarnings("ignore:the layers .* took no part")


class Deep(nn.Module):
    """A block that is left out when `skip` says so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.block, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.skip = False
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h if self.skip else h + self.block(h))


def leaf(run: Any, name: str, vector: Tensor) -> Tensor:
    space = run.engine.driver.layers.space
    return space.view(vector, name)


def test_the_clipped_sum_is_that_of_gradients_with_zeros() -> None:
    module, records = Deep(), data()
    run = private(module, records, noise_multiplier=0.0, max_grad_norm=0.2)
    for t, (i, x, y) in enumerate(run.loader):
        module.skip = t % 2 == 0
        twin = copy.deepcopy(module)
        step(run, x, y)
        rows = torch.cat(flat(per_example(twin, records.x[i], records.y[i]), ["first", "block", "last"]), 1)
        released = run.rounds[-1].released["main"]["gradient"]
        torch.testing.assert_close(released, clipped(rows, 0.2).sum(0) / BATCH, rtol=0, atol=1e-12)
        assert bool((leaf(run, "block", released) == 0).all()) == module.skip


@pytest.mark.parametrize("options", [{}, {"clipping": "per_layer"}, {"micro_batch_size": 5}, {"clipping": "adaptive"}])
def test_idle_coordinates_have_all_of_the_noise(options: dict[str, Any]) -> None:
    module = Deep()
    module.skip = True
    run = private(module, data(), noise_generator=None, **options)
    train(run, 30)
    drawn = [leaf(run, "block", round.released["main"]["gradient"]).reshape(-1) for round in run.rounds]
    release, divisor = run.engine.driver.stage.releases[0], run.engine.driver.stage.sampler.divisor(N, 0)
    bound = 2 * C if "micro_batch_size" in options else C
    multiplier = release.mechanism.number if options.get("clipping") == "adaptive" else Z
    if options.get("clipping") != "adaptive":  # whose bound moves
        std = float(torch.cat(drawn).std()) * divisor / (multiplier * bound * (1 + KAPPA))
        assert 0.93 < std < 1.07
    assert float(torch.cat(drawn).abs().min()) > 0


@pytest.mark.parametrize("sketch", [Kronecker(3, 2), PublicSubspace(4)])
def test_through_a_sketch(sketch: Any) -> None:
    public = (torch.randn(20, 6, dtype=torch.float64), torch.randint(0, 3, (20,)))
    module = Deep()
    run = private(module, data(), sketch=sketch, public=public)
    for t, (_, x, y) in enumerate(run.loader):
        module.skip = t % 2 == 0
        step(run, x, y)
    assert len(run.rounds) == 4
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


@pytest.mark.parametrize("skip", [True, False])
def test_a_record_moves_the_sum_by_no_more_than_its_bound(skip: bool) -> None:
    """Full batches that differ in one record with huge gradients, whether the block runs or not."""
    sums = []
    for size in (1e4, -1e4):
        module, records = Deep(), data()
        records.x[7], module.skip = size, skip
        run = private(module, records, noise_multiplier=0.0, batch=N, poisson_sampling=False)
        for _, x, y in run.loader:
            (1e5 * F.cross_entropy(module(x), y)).backward()
            run.optimizer.step()
        sums.append(run.rounds[0].released["main"]["gradient"] * N)
    assert C < float((sums[0] - sums[1]).norm()) <= 2 * C * (1 + KAPPA)


@pytest.mark.parametrize("alike", [True, False])
def test_pieces_of_a_batch_leave_out_the_same_layers(alike: bool) -> None:
    """A record more moves others into other pieces: where those differ, it moves the sum by more than C."""
    module = Deep()
    run = private(module, data(), max_physical_batch_size=3)

    def loop() -> None:
        piece, t = 0, 0
        for _, x, y in run.loader:
            piece = piece + 1 if run.engine.driver.state.t == t else 0
            t = run.engine.driver.state.t
            module.skip = (t if alike else piece) % 2 == 0
            step(run, x, y)

    if alike:
        loop()
        assert len(run.rounds) == 4
    else:
        with pytest.raises(InvalidInput, match="some physical batches of one logical batch"):
            loop()
        assert run.engine.ledger.rounds() == {}
    assert any("physical batch that it is in" in assumption for assumption in run.engine.statement(1e-5).assumptions)


def test_it_is_said_once_and_names_the_layer() -> None:
    module = Deep()
    module.skip = True
    run = private(module, data())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train(run, 1)
    values = [str(each.message) for each in seen if "took no part" in str(each.message)]
    assert len(values) == 1 and "['block']" in values[0]


def test_a_weight_that_is_used_elsewhere_does_not_count_as_idle() -> None:
    """The gradient of a weight that is read outside its layer is not zero: the batch is refused, as before."""
    module = Deep()
    module.skip = True
    run = private(module, data())
    x, y = first(run)
    with pytest.raises(InvalidInput, match="'block.weight' is used outside"):
        (F.cross_entropy(module(x), y) + module.block.weight.square().sum()).backward()
    assert run.engine.ledger.rounds() == {}


def test_depth_by_chance() -> None:
    """Stochastic depth: what is left out is drawn in secret, for the whole batch or example by example."""

    class Chance(Deep):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            if self.training and float(torch.rand(())) < 0.5:
                return self.last(h)
            keep = torch.rand(len(x), 1, dtype=x.dtype) < 0.5 if self.training else 1.0
            return self.last(h + keep * self.block(h))

    module = Chance()
    run = private(module, data(), noise_generator=None)
    train(run, 4)
    assert len(run.rounds) == 16 and run.engine.statement(1e-5).private
