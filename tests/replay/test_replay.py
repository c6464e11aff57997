"""Every door once, on a neighbour that was drawn; and what a replay must find, and must not.

A failure prints the command that runs its trial again; `make replay` draws for longer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import InvalidInput, PrivacyEngine, PrivateClassifier, PrivateRegressor
from isthmus.audit import Replayed, ReplayedRelease, replay
from isthmus.base import secret
from isthmus.engine.loader import DataLoader
from isthmus.privacy import Gaussian, Laplace, NoisyMax, SecretSource
from isthmus.privacy.clips import ClippedSum
from replay.doors import DOORS
from replay.search import Table, attempt, gc


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    """Trainings collect garbage again and again: not that of everything that was imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("door", DOORS)
def test_a_record_moves_no_release_beyond_its_bound_and_nothing_public(door: str) -> None:
    label, found = attempt(door, seed=0, number=0)
    assert found is not None, "secret draws by the place in a batch: the door must replace records"
    assert found.holds, f"{Table(0).command(door, 0)}\n{label}\n{found}"


# ---------------------------------------------------------------- what a replay finds


def rows(n: int = 12) -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.5, 0.5, (n, 2))


def released(value: Any, bound: float = 1.0, ord: float = 2) -> torch.Tensor:
    """One release of numbers, as a loop makes it."""
    bounded = ClippedSum(torch.as_tensor(value, dtype=torch.float64).reshape(-1), ord, bound)
    mechanism = {1: Laplace(1.0), 2: Gaussian(1.0), np.inf: NoisyMax(1.0)}[ord]
    return secret.released("test", bounded, lambda: mechanism.release(bounded, SecretSource()))


def test_a_movement_is_measured_in_the_norm_and_the_bound_that_were_stated() -> None:
    x, longer = np.zeros((3, 2)), np.array([[0.0, 0], [0, 0], [0, 0], [3, 4]])
    for ord, moved in ((1.0, 7.0), (2.0, 5.0), (np.inf, 4.0)):
        (release,) = replay(lambda data, ord=ord: released(data.sum(0), 2.0, ord), x, longer).releases
        assert (release.moved, release.bound, release.ratio) == pytest.approx((moved, 2.0, moved / 2))
    (release,) = replay(lambda data: released(data.sum(0), 2.0), longer, -longer).releases
    assert (release.moved, release.bound) == (10.0, 4.0)  # one record for another: twice the bound


def test_the_second_training_sees_what_the_first_released() -> None:
    seen: list[torch.Tensor] = []

    def run(data: np.ndarray) -> torch.Tensor:
        seen.append(released(data.sum(0)) + released(data.mean(0)))
        return seen[-1]

    assert replay(run, rows(), rows()[1:]).holds
    assert torch.equal(seen[0], seen[2]) and seen[0].abs().sum() > 0


@pytest.mark.parametrize(
    "leak, where",
    [
        (lambda data: print(data.sum()), "output['line 1']"),
        (lambda data: warnings.warn(f"{data.sum()}", stacklevel=1), "warning 1"),
        (lambda data: Path("found.txt").write_text(f"{data.sum()}"), "contents of found.txt"),
        (lambda data: np.save("found.npy", data.sum(0)), "contents of found.npy"),
        (lambda data: Path(f"{int(1e9 * data.sum())}.txt").touch(), "file "),
        (lambda data: released(data[:, 0].sum(), 1 + float(abs(data.sum()))), "bound"),
        (lambda data: [released(0.0) for _ in range(len(data))], "number of releases"),
        (lambda data: released(np.zeros(len(data))), "shape"),
        (lambda data: torch.rand(len(data)), "state of torch's generator"),
        (lambda data: np.random.rand(len(data)), "state of NumPy's generator"),
        (lambda data: int(data[0, 0] == rows()[0, 0]) or 1 / 0, "ended"),
    ],
)
def test_whatever_follows_the_data_in_public_is_a_difference(leak: Callable[[Any], Any], where: str) -> None:
    def run(data: np.ndarray) -> None:
        leak(data)

    found = replay(run, rows(), rows()[1:])
    assert not found.holds and any(where in difference for difference in found.differences), str(found)


@pytest.mark.parametrize(
    "public", [lambda data: {"w": data.sum(0)}, lambda data: nn.Linear(len(data), 1), lambda data: [data[0, 0]]]
)
def test_so_is_whatever_is_returned(public: Callable[[Any], Any]) -> None:
    found = replay(public, rows(), rows()[1:])
    assert not found.holds and any(difference.startswith("result") for difference in found.differences)


def test_times_are_no_differences_and_are_named() -> None:
    def run(data: np.ndarray) -> Any:
        import time

        return {"seconds": time.perf_counter(), "w": released(data.sum(0))}

    found = replay(run, rows(), rows()[1:])
    assert found.holds and found.unlike == ("result['seconds']",)


def test_draws_about_the_others_are_the_same() -> None:
    drawn: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(data: np.ndarray) -> None:
        source = SecretSource()
        mask = source.mask(len(data), 0.5)
        drawn.append((mask, source.integers(7, int(mask.sum()))))

    replay(run, rows(41), np.delete(rows(41), 5, 0))
    (mask, groups), _, (rest, others) = drawn
    at = int(mask[:5].sum())
    assert bool(mask[5]) and 0 < int(rest.sum()) < 40
    assert torch.equal(torch.cat([mask[:5], mask[6:]]), rest)
    assert torch.equal(torch.cat([groups[:at], groups[at + 1 :]]), others)
    drawn.clear()
    replay(run, rows(41), at=5)
    (mask, _), _, (rest, _) = drawn
    assert bool(mask[5]) and not bool(rest[5]) and int((mask != rest).sum()) == 1


def test_a_run_that_draws_otherwise_the_second_time_is_refused() -> None:
    numbers = iter(range(9))
    with pytest.raises(InvalidInput, match="make everything anew inside run"):
        replay(lambda data: released(float(next(numbers))), rows(), rows()[1:])


def test_secret_draws_by_place_ask_for_a_record_replaced() -> None:
    def run(data: np.ndarray) -> None:
        module, engine = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)), PrivacyEngine()
        parts = {"module": module, "optimizer": torch.optim.SGD(module.parameters(), lr=0.1)}
        loader: Any = DataLoader(torch.as_tensor(data, dtype=torch.float32), batch_size=4)  # type: ignore[arg-type]
        module, optimizer, loader = engine.make_private(
            **parts, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0, loss_reduction="sum"
        )
        for x in loader:
            module(x).sum().backward()
            optimizer.step()

    with pytest.raises(InvalidInput, match="record replaced"):
        replay(run, rows(), at=3)
    assert replay(run, rows(), np.concatenate([2 * rows()[:1], rows()[1:]])).holds


def test_nothing_of_a_replay_is_private_and_nothing_of_it_stays() -> None:
    models: list[Any] = []

    def run(data: np.ndarray) -> Any:
        models.append(PrivateRegressor(algorithm="dp_gd", bounds=(-1, 1), target_bounds=(-1, 1), n=12, max_iter=2))
        return models[-1].fit(data[:, :1], data[:, 1])

    state = torch.get_rng_state()
    assert replay(run, rows(), rows()[1:]).holds
    assert not models[0].privacy_.private and "seeded" in models[0].privacy_.noise
    assert torch.equal(state, torch.get_rng_state()) and not secret.rehearsed()
    assert run(rows()).privacy_.private
    assert not torch.equal(SecretSource().normal(4), SecretSource().normal(4))


@pytest.mark.parametrize(
    "data, neighbour, more, words",
    [
        (rows(4), rows(2), {}, "one record more, one less or one replaced"),
        (rows(4), None, {}, "give the place"),
        (rows(4), rows(4), {"at": 7}, "a place among 4"),
        (3.0, 4.0, {}, "give an array"),
    ],
)
def test_data_that_are_no_neighbours_are_refused(data: Any, neighbour: Any, more: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        replay(lambda data: None, data, neighbour, **more)


def test_records_are_found_in_whatever_holds_them() -> None:
    pandas = pytest.importorskip("pandas")
    import scipy.sparse as sp

    x, y = rows(), np.arange(12)
    for data, less in (
        ((x, y), (np.delete(x, 4, 0), np.delete(y, 4))),
        ({"x": x}, {"x": np.delete(x, 4, 0)}),
        (list(x), [*x[:4], *x[5:]]),
        (sp.csr_array(x), sp.csr_array(np.delete(x, 4, 0))),
        (pandas.DataFrame(x), pandas.DataFrame(np.delete(x, 4, 0))),
        (torch.as_tensor(x), torch.as_tensor(np.delete(x, 4, 0))),
    ):
        masks: list[torch.Tensor] = []
        replay(
            lambda data, masks=masks: masks.append(SecretSource().mask(12 if len(masks) < 2 else 11, 0.5)), data, less
        )
        assert bool(masks[0][4]) and torch.equal(torch.cat([masks[0][:4], masks[0][5:]]), masks[2])


def test_it_says_in_words_what_it_saw() -> None:
    fine = ReplayedRelease("release 1 (main/gradient of round 0)", 1.0, 2.0, 0.5)
    assert str(Replayed((fine,))).splitlines()[1:] == [
        "One record moves none of them by more than is stated; the furthest is release 1 (main/gradient of round 0): "
        "moved 1 of 2 (0.5000).",
        "Everything public is equal.",
    ]
    bad = ReplayedRelease("release 2 (main/gradient of round 1)", 4.0, 2.0, 2.0)
    words = str(Replayed((fine, bad), ("warning 1: 'a' against 'b'",)))
    assert "moves 1 of them by more" in words and "release 2" in words and "warning 1" in words
    assert not Replayed((fine, bad)).holds and Replayed((fine, bad)).ratio == 2.0


@pytest.mark.parametrize("at", ["front", "end"])
@pytest.mark.parametrize("more", [False, True])
def test_a_record_more_is_a_neighbour_like_one_less(at: str, more: bool) -> None:
    X = np.random.default_rng(0).uniform(-3, 3, (40, 3))
    y = np.where(X[:, 0] > 0, 1, 0)
    some = slice(1, None) if at == "front" else slice(None, -1)

    def run(data: tuple[np.ndarray, np.ndarray]) -> object:
        options: dict[str, Any] = {"classes": [0, 1], "bounds": (-3, 3), "algorithm": "dp_sgd", "batch_size": 10}
        return PrivateClassifier(epsilon=2.0, n=40, max_iter=5, **options).fit(*data)

    pair = (X, y), (X[some], y[some])
    found = replay(run, *(pair[::-1] if more else pair), seed=1)
    assert found.holds, str(found)
