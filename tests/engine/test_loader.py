"""The private loader: workers, collate functions, empty batches, epochs left in the middle."""

import random
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attack.modules import WORDS, ZOO, built, flat, inputs
from engine_cases import BATCH, MODELS, N, Trained, assert_same, data, mlp, numbered, private, step, train
from gradients.layers.layer_reference import Built
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset

from isthmus import BatchMemoryManager, InvalidInput, Kronecker


@pytest.mark.parametrize("physical", [None, 4])
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_only_fetch(persistent: bool, physical: int | None) -> None:
    options = {
        "num_workers": 2,
        "persistent_workers": persistent,
        "prefetch_factor": 3,
        "multiprocessing_context": "fork",
    }
    run = private(mlp(), data(), loading=options, max_physical_batch_size=physical, noise_generator=None)
    sizes = []
    for _ in range(2):
        for i, x, y in run.loader:
            sizes.append(len(i))
            assert torch.equal(x, data().x[i])
            step(run, x, y)
    assert len(run.rounds) == 8
    assert physical is None or max(sizes) <= physical


def test_membership_is_poisson() -> None:
    """Each record independently with the stated rate: counts of records and sizes of batches have the right law."""
    run, times, sizes = private(mlp(), data(), noise_generator=None), torch.zeros(N), []
    draws = run.loader._draws
    for _ in range(100):
        for index in draws:
            times[index] += 1
            sizes.append(len(index))
    each = stats.binomtest
    assert all(each(int(count), 400, BATCH / N).pvalue > 1e-7 for count in times)
    spread = sum((size - BATCH) ** 2 for size in sizes) / (N * 0.25 * 0.75)
    assert 1e-7 < stats.chi2.cdf(spread, len(sizes)) < 1 - 1e-7


def test_fixed_batches_are_subsets_of_one_size() -> None:
    run = private(mlp(), data(), batch=12, poisson_sampling=False, noise_generator=None)
    assert len(run.loader) == 4 and run.engine.ledger.adjacency.value == "replace-one"
    for index in run.loader._draws:
        assert len(set(index)) == len(index) == 12


class Words(Dataset):
    """Records of other shapes than tensors."""

    def __init__(self, n: int = N) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"text": f"word {i}", "x": torch.full((1 + i % 3, 6), float(i) / N), "y": i % 3}


Batch = namedtuple("Batch", "x y words")


def as_dict(records: list[dict[str, Any]]) -> dict[str, Any]:
    padded = nn.utils.rnn.pad_sequence([r["x"] for r in records], batch_first=True).sum(1)
    return {"x": padded, "y": torch.tensor([r["y"] for r in records]), "words": [r["text"] for r in records]}


# Functions with names: from Python 3.14 on workers are started anew, and what they are given is pickled.
def as_tuple(records: list[dict[str, Any]]) -> tuple[Any, ...]:
    return tuple(as_dict(records).values())


def as_list(records: list[dict[str, Any]]) -> list[Any]:
    return list(as_dict(records).values())


def as_named(records: list[dict[str, Any]]) -> Batch:
    return Batch(**as_dict(records))


def as_nested(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"in": (as_dict(records)["x"], [r["x"] for r in records]), "out": as_dict(records)}


COLLATE = {"dict": as_dict, "tuple": as_tuple, "list": as_list, "named": as_named, "nested": as_nested}


def parts(batch: Any) -> tuple[Tensor, Tensor, list[str]]:
    if isinstance(batch, dict) and "in" in batch:
        assert len(batch["in"][1]) == len(batch["out"]["y"])
        batch = batch["out"]
    return tuple(batch.values()) if isinstance(batch, dict) else tuple(batch)  # type: ignore[return-value]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", list(COLLATE))
def test_collate_functions_and_batches_of_nothing(name: str, workers: int) -> None:
    torch.manual_seed(0)
    options = {"collate_fn": COLLATE[name], "num_workers": workers}
    run = private(nn.Linear(6, 3), Words(), batch=1, loading=options, noise_generator=None)
    for batch in run.loader:
        x, y, words = parts(batch)
        assert len(x) == len(y) == len(words) > 0
        assert type(batch) is type(COLLATE[name]([Words()[0]]))
        step(run, x, y)
    assert len(run.rounds) == N


def sequences(first: bool) -> nn.Module:
    """Examples in the second dimension, as transformers have them by default, or in the first."""
    parts = {"embed": nn.Embedding(9, 8), "block": nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=first)}
    return Built(lambda m, words: m.head(m.block(m.embed(words))).mean(int(first)), **parts, head=nn.Linear(8, 3))


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    **{name: ZOO[name] for name in ("mlp", "conv", "conv1d", "norms", "group-norm", "embedding")},
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Linear(4, 3)), None),
    "transformer": (lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), flat()), (5, 8)),
}


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "adaptive"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_batches_of_nothing_through_every_kind_of_layer(kind: str, clipping: str) -> None:
    build, shape = KINDS[kind]
    run = private(
        built(build, shape), numbered(inputs(12, shape)), batch=1, clipping=clipping, max_physical_batch_size=1
    )
    stood_in = 0
    for _ in range(2):
        for i, x, y in run.loader:
            stood_in += stands_in(run)
            assert len(i) == 1
            step(run, x, y)
    assert stood_in > 3
    assert len(run.rounds) == 24
    assert all(bool(torch.isfinite(p).all()) for p in run.module.parameters())


def stands_in(run: Trained) -> bool:
    """Whether the batch at hand is one of nothing, for which a record stands in."""
    assert run.engine.driver is not None and run.engine.driver._ticket is not None
    return not run.engine.driver._ticket.counts


def test_an_empty_batch_is_noise_that_is_paid_for_whatever_record_stands_in() -> None:
    run = private(mlp(), data(), batch=1, normaliser=1.0)
    nothing, i = False, torch.empty(0)
    for i, x, y in run.loader:  # noqa: B007
        nothing = stands_in(run)
        before = run.module[0].weight.clone()
        (1e6 * F.cross_entropy(run.module(x), y)).backward()
        run.optimizer.step()
        if nothing:
            break
    assert nothing and i.tolist() == [0]
    assert not torch.equal(before, run.module[0].weight)
    assert run.engine.ledger.rounds() == {"main": len(run.rounds)}
    assert float(run.rounds[-1].released["main"]["gradient"].std()) == pytest.approx(0.8 * 0.3, rel=0.5)


def test_nothing_of_the_record_that_stands_in_is_released() -> None:
    """With hardly any noise the release of an empty batch is next to 0, where the record alone would give C."""
    run = private(mlp(), data(), batch=1, noise_multiplier=1e-6, max_grad_norm=1.0, normaliser=1.0)
    sizes = []
    for _ in range(2):
        for _, x, y in run.loader:
            sizes.append(0.0 if stands_in(run) else 1.0)
            (1e6 * F.cross_entropy(run.module(x), y)).backward()
            run.optimizer.step()
    released = [float(round.released["main"]["gradient"].norm()) for round in run.rounds]
    assert 0.0 in sizes and 1.0 in sizes
    assert all(norm < 1e-3 if size == 0 else norm > 1e-2 for norm, size in zip(released, sizes, strict=True))


def test_empty_batches_before_one_step_are_rounds_of_their_own() -> None:
    run = private(mlp(), data(), batch=1, normaliser=1.0)
    count = 0
    for count, (_, x, y) in enumerate(run.loader, 1):
        F.cross_entropy(run.module(x), y).backward()
        if count % 4 == 0:
            run.optimizer.step()
    assert len(run.rounds) == count == N


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_left_in_the_middle(workers: int) -> None:
    run = private(mlp(), data(), loading={"num_workers": workers}, max_physical_batch_size=3, noise_generator=None)
    for count, (_, x, y) in enumerate(run.loader):
        step(run, x, y)
        if count == 1:
            break
    done = len(run.rounds)
    train(run, 1)
    assert len(run.rounds) == done + 4
    assert run.engine.ledger.rounds() == {"main": done + 4}


def test_a_batch_cut_short_is_forgotten_unreleased() -> None:
    run = private(mlp(), data(), max_physical_batch_size=1)
    for _, x, y in run.loader:
        step(run, x, y)
        if not run.engine.driver._ticket.last:
            break
    count = len(run.rounds)
    again = iter(run.loader)
    next(again)
    assert run.engine.driver._sum is None
    assert len(run.rounds) == count


def test_only_the_latest_of_two_epochs_at_once_hands_out_batches() -> None:
    run = private(mlp(), data(), noise_generator=None)
    first, second = iter(run.loader), iter(run.loader)
    with pytest.raises(InvalidInput, match="another pass over the private loader"):
        for _, (_, x, y) in zip(first, second, strict=True):
            step(run, x, y)
    assert len(run.rounds) == 1
    train(run, 1)
    assert len(run.rounds) == 5


def test_a_manager_restores_the_loader_when_training_fails() -> None:
    run = private(mlp(), data())
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer)
    with pytest.raises(ZeroDivisionError), manager as batches:
        for _, x, _y in batches:
            assert len(x) <= 2
            raise ZeroDivisionError
    assert run.loader._draws.physical is None


@pytest.mark.parametrize("sketch", [None, Kronecker(4, 2)])
def test_examples_in_the_second_dimension(sketch: Any) -> None:
    """batch_first=False equals the same module with its data and its layers turned round."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 9, (N, 5))

    def turned(records: Any) -> Any:
        i, x, y = torch.utils.data.default_collate(records)
        return i, x.T.contiguous(), y

    collected = []
    for first in (False, True):
        torch.manual_seed(3)
        loading = {} if first else {"collate_fn": turned}
        run = private(sequences(first), numbered(tokens), batch_first=first, loading=loading, sketch=sketch, batch=2)
        collected.append(train(run, 1))
    assert [0] in run.batches  # an empty one, or one of the first record
    assert collected[0].batches == collected[1].batches
    assert_same(collected[0].module, collected[1].module, 1e-5)


def test_bf16_autocast() -> None:
    run = private(MODELS["cnn"](torch.float32), data("cnn", dtype=torch.float32), loss_reduction="sum")
    full = train(private(MODELS["cnn"](torch.float32), data("cnn", dtype=torch.float32)), 1)
    for _, x, y in run.loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(run.module(x), y, reduction="sum")
        loss.backward()
        run.optimizer.step()
    assert len(run.rounds) == 4
    assert_same(run.module, full.module, 0.02)  # sums of clipped gradients, each good to three digits


def test_a_mean_in_reduced_precision_is_refused_where_it_cannot_be_undone() -> None:
    """b / B rounded to 8 bits moves every record's share when one record joins the batch."""
    boxed = Built(lambda m, x: type("Box", (), {"value": m.net(x)})(), net=MODELS["cnn"](torch.float32))
    run = private(boxed, data("cnn", dtype=torch.float32))  # it returns a container that nobody knows
    _, x, y = next(batch for batch in run.loader if len(batch[1]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(run.module(x).value, y)
    with pytest.raises(InvalidInput, match="loss_reduction='sum'"):
        loss.backward()


class Augmented(Dataset):
    """Records with noise from a generator of the dataset's own, as it is or inside a transform."""

    def __init__(self, generator: Any) -> None:
        self.records, self.transforms = data(), [lambda x: x, Transform(generator)]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Any:
        return self.records[i]


class Transform:
    def __init__(self, generator: Any) -> None:
        self.rng = generator

    def __call__(self, x: Tensor) -> Tensor:
        return x


OWN = [np.random.default_rng(0), np.random.RandomState(0), random.Random(0), torch.Generator()]


@pytest.mark.parametrize("generator", OWN, ids=lambda own: type(own).__name__)
def test_a_dataset_that_keeps_a_generator_of_its_own_is_refused(generator: Any) -> None:
    """One record more in a batch would shift what it draws for the others, and its seed may be known."""
    part = torch.utils.data.Subset(Augmented(generator), range(30))
    with pytest.raises(InvalidInput, match=r"the dataset\.dataset\.transforms\[1\]\.rng"):
        private(mlp(), part, noise_generator=None)
    private(mlp(), part)  # everything follows the user's seeds there
    private(mlp(), Augmented(random.SystemRandom()), noise_generator=None)
