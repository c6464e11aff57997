"""Batches out of step: no loop carries one record into two sums of a round."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import engine_cases
import pytest
import torch
from engine_cases import BATCH, data, mlp, private, train
from torch import Tensor, nn

from isthmus import InvalidInput
from isthmus.engine.optimizer import LOCKED


def alone(run: Any) -> None:
    """Read ahead by one batch."""
    batches = iter(run.loader)
    later = next(batches)
    for following in batches:
        now, later = later, following
        step(run, now)
    step(run, later)


def behind(run: Any) -> None:
    """Use the batch before."""
    before = None
    for batch in run.loader:
        if before is not None:
            step(run, before)
        before = batch


def collected(run: Any) -> None:
    for batch in list(run.loader):
        step(run, batch)


def backwards(run: Any) -> None:
    for batch in reversed([*zip(run.loader, strict=True)]):
        step(run, *batch)


def skipping(run: Any) -> None:
    for number, batch in enumerate(run.loader):
        if number % 2:
            step(run, batch)


def paired(run: Any) -> None:
    for first, second in zip(run.loader, run.loader, strict=True):
        step(run, first)
        step(run, second)


def turns(run: Any) -> None:
    first, second = iter(run.loader), iter(run.loader)
    for _ in range(8):
        step(run, next(first))
        step(run, next(second))


def half(run: Any) -> None:
    """A forward pass only, for every other batch."""
    for number, batch in enumerate(run.loader):
        run.module(batch[1]) if number % 2 else step(run, batch)


def again(run: Any) -> None:
    """A batch of the epoch before, in place of the first."""
    (old,) = (batch for batch, _ in zip(run.loader, range(1), strict=False))
    step(run, old)
    for number, batch in enumerate(run.loader):
        step(run, batch if number else (old[0], torch.cat([old[1], old[1]]), torch.cat([old[2], old[2]])))


def step(run: Any, batch: Any) -> None:
    engine_cases.step(run, *batch[1:])


LOOPS: list[Callable[[Any], None]] = [alone, behind, collected, backwards, skipping, paired, turns, half, again]


WAYS: list[tuple[int | None, dict[str, Any]]] = [(None, {}), (5, {}), (2, {}), (5, {"num_workers": 2})]


@pytest.mark.parametrize("physical, loading", WAYS, ids=["whole", "pieces", "small", "workers"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops_out_of_step_are_refused_before_a_record_counts_twice(
    loop: Callable[[Any], None], physical: int | None, loading: dict[str, Any]
) -> None:
    run = private(
        mlp(), data(), poisson_sampling=False, max_physical_batch_size=physical, loading=loading, noise_generator=None
    )
    seen: list[list[int]] = []
    watch(run, seen)
    with warnings.catch_warnings(), pytest.raises((InvalidInput, RuntimeError)) as found:
        warnings.simplefilter("ignore")
        loop(run)
    assert "private loader" in str(found.value) or "no gradient of this batch" in str(found.value)
    for records in seen:
        assert len(set(records)) == len(records) <= BATCH  # never one record twice in a round


def watch(run: Any, seen: list[list[int]]) -> None:
    """Which records each round has summed, by their first number."""
    driver, table = run.engine.driver, {float(x[0]): i for i, x in enumerate(data().x)}
    current: list[int] = []
    forward, close = driver._before_forward, driver._close

    def before(args: Any, kwargs: Any) -> None:
        forward(args, kwargs)
        current.extend(table[float(row[0])] for row in args[0])

    def closing() -> None:
        seen.append(current[:])
        current.clear()
        close()

    driver._before_forward, driver._close = before, closing


@pytest.mark.parametrize("physical", [None, 5])
def test_loops_in_step_go_on(physical: int | None) -> None:
    run = private(mlp(), data(), max_physical_batch_size=physical, noise_generator=None)
    next(iter(run.loader))  # a look at the first batch, to see its shape
    train(run, 1)
    run.module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, x, _ in run.loader:
            run.module(x)
    run.module.train()
    train(run, 1)
    assert len(run.rounds) == 8


# ---------------------------------------------------------------- assignments that would be ignored


@pytest.mark.parametrize("name", list(LOCKED))
def test_what_would_be_ignored_is_refused_by_its_name(name: str) -> None:
    run = private(mlp(), data())
    with pytest.raises(InvalidInput, match=f"optimizer.{name}=0.1 is not allowed: .*what the ledger charges"):
        setattr(run.optimizer, name, 0.1)
    assert run.optimizer.noise_multiplier == 0.8 and run.optimizer.max_grad_norm == 0.3
    train(run, 1)
    run.engine.detach()
    assert type(run.optimizer) is torch.optim.SGD
    setattr(run.optimizer, name, 0.1)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_the_optimiser_are_plain(way: Any) -> None:
    run = train(private(mlp(), data(), optimizer=lambda p: torch.optim.Adam(p, lr=0.1)), 1)
    twin = way(run.optimizer)
    assert type(twin) is torch.optim.Adam and isinstance(run.optimizer, torch.optim.Adam)
    assert twin.state_dict()["param_groups"] == run.optimizer.state_dict()["param_groups"]
    twin.noise_multiplier = 3.0
    twin.step()


def test_parameters_that_come_later_are_refused() -> None:
    run = private(mlp(), data())
    with pytest.raises(InvalidInput, match="add_param_group"):
        run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert len(run.optimizer.param_groups) == 1
    x: Tensor = next(x for _, x, _ in run.loader)
    run.module.extra = nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match=r"\['extra.weight', 'extra.bias'\]"):
        run.module(x)
