"""Collate functions in which records meet: padding that nobody masks, statistics of a batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import private
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset

from isthmus import InvalidInput, PrivacyEngine
from isthmus.engine.engine import COLLATED
from isthmus.gradients.layers import trial

Record = tuple[Tensor, int]


class Sequences(Dataset):
    """Records of 2 to 9 steps of four numbers each."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Record:
        return torch.randn(2 + i % 8, 4, generator=torch.Generator().manual_seed(i)), i % 3


def padded(records: list[Record]) -> tuple[Tensor, ...]:
    x, y = zip(*records, strict=True)
    return pad_sequence(x, batch_first=True), torch.tensor([len(each) for each in x]), torch.tensor(y)


def sorted_by_length(records: list[Record]) -> tuple[Tensor, ...]:
    return padded(sorted(records, key=lambda record: -len(record[0])))


def to_a_public_length(records: list[Record]) -> tuple[Tensor, ...]:
    x, lengths, y = padded([(torch.zeros(9, 4), 0), *records])
    return x[1:], lengths[1:], y[1:]


def centred(records: list[Record]) -> tuple[Tensor, ...]:
    x, lengths, y = to_a_public_length(records)
    return x - x.mean(0), lengths, y


def masked_at_random(records: list[Record]) -> tuple[Tensor, ...]:
    x, lengths, y = padded(records)
    return x * (torch.rand(x.shape[:2]) < 0.8)[..., None], lengths, y


class Net(nn.Module):
    """A layer whose steps are pooled in one way or another, and a head."""

    def __init__(self, pooled: Callable[[nn.Module, Tensor, Tensor], Tensor], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b, self.pooled = layer or nn.Linear(4, 6), nn.Linear(6, 3), pooled

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.b(self.pooled(self.a, x, lengths))


def mask(h: Tensor, lengths: Tensor) -> Tensor:
    return (torch.arange(h.shape[1]) < lengths[:, None])[..., None]


def mean(a: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    return a(x).relu().mean(1)


def masked_mean(a: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    return (a(x).relu() * mask(x, lengths)).sum(1) / lengths[:, None]


def convolved() -> Net:
    return Net(lambda a, x, n: a(x.mT).relu().mean(2), nn.Conv1d(4, 6, 3, padding=1))


def recurrent() -> Net:
    return Net(lambda a, x, n: a(x)[0][:, -1], nn.GRU(4, 6, batch_first=True))


def run(
    module: nn.Module,
    collate: Any,
    call: Callable[..., Tensor] = lambda module, x, lengths: module(x, lengths),
    dataset: Dataset[Any] | None = None,
    **options: Any,
) -> PrivacyEngine:
    engine = PrivacyEngine()
    module = engine.get_compatible_module(module)
    made = {"loading": {"collate_fn": collate, **options}, "loss_reduction": "sum", "noise_generator": None}
    run = private(module, dataset or Sequences(), engine=engine, batch=12, **made)
    for x, lengths, y in run.loader:
        out = call(module, x, lengths)
        if out.ndim == 3:
            out = (out * mask(out, lengths)).sum(1)
        F.cross_entropy(out, y, reduction="sum").backward()
        run.optimizer.step()
    return engine


MEETING = {
    "padding in a mean": (lambda: Net(mean), padded),
    "padding in a mean, sorted": (lambda: Net(mean), sorted_by_length),
    "padding in a convolution": (convolved, padded),
    "padding before a last state": (recurrent, padded),
    "statistics of the batch": (lambda: Net(masked_mean), centred),
}


@pytest.mark.parametrize("case", MEETING)
def test_a_collate_function_in_which_records_meet_is_refused_before_its_gradients_are_used(case: str) -> None:
    make, collate = MEETING[case]
    with pytest.raises(InvalidInput, match="examples meet in collate_fn"):
        run(make(), collate)


def test_records_that_workers_collate_are_compared_too() -> None:
    with pytest.raises(InvalidInput, match="examples meet in collate_fn"):
        run(Net(mean), padded, num_workers=2)


APART = {
    "masked": (lambda: Net(masked_mean), padded),
    "masked, sorted": (lambda: Net(masked_mean), sorted_by_length),
    "every step": (lambda: Net(lambda a, x, n: a(x).relu()), padded),
    "a public length": (lambda: Net(mean), to_a_public_length),
    "a public length in a convolution": (convolved, to_a_public_length),
    "dropout": (lambda: Net(lambda a, x, n: F.dropout(masked_mean(a, x, n), 0.1)), padded),
    "random masks": (lambda: Net(masked_mean), masked_at_random),
}


@pytest.mark.parametrize("case", APART)
def test_records_that_are_kept_apart_or_cannot_be_told_apart_train_and_the_statement_says_what_is_assumed(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "AGAIN", 1)
    make, collate = APART[case]
    engine = run(make(), collate)
    assert len(engine.accountant) == 3
    assert COLLATED in engine.statement(1e-5).assumptions


def test_arguments_that_the_loop_computes_are_left_to_the_statement() -> None:
    engine = run(Net(mean), padded, lambda module, x, lengths: module(2 * x, lengths))
    assert COLLATED in engine.statement(1e-5).assumptions


def test_a_batch_that_is_moved_or_cast_is_known_again() -> None:
    with pytest.raises(InvalidInput, match="examples meet in collate_fn"):
        run(Net(mean).double(), padded, lambda module, x, lengths: module(x.double(), lengths))


def test_a_trial_of_collate_leaves_the_users_generators_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def noisy(records: list[Record]) -> tuple[Tensor, ...]:
        drawn.append(float(torch.rand(())))
        return to_a_public_length(records)

    monkeypatch.setattr(trial, "AGAIN", 1)
    module = Net(masked_mean)
    torch.manual_seed(3)
    run(module, noisy)
    assert len(drawn) > 3  # collated for the trial too
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))


def test_torchs_own_collate_function_costs_nothing_and_needs_no_assumption() -> None:
    reads = []

    class Counted(TensorDataset):
        def __getitem__(self, i: int) -> Any:
            reads.append(i)
            return super().__getitem__(i)

    x = torch.randn(40, 5, 4)
    engine = run(Net(mean), None, dataset=Counted(x, torch.full((40,), 5), torch.arange(40) % 3))
    assert COLLATED not in engine.statement(1e-5).assumptions
    assert engine.driver is not None and engine.driver._ticket.look is None
    assert len(reads) < 90  # 36 are expected


class ReadTogether(Sequences):
    """Pads in `__getitems__`, which torch calls with all records of a batch, as a transform of HF's datasets does."""

    def __getitems__(self, index: list[int]) -> list[tuple[Tensor, int, int]]:
        x, lengths, y = padded([self[i] for i in index])
        return list(zip(x, lengths.tolist(), y.tolist(), strict=True))


@pytest.mark.parametrize("part", [False, True])
def test_records_that_meet_where_a_batch_is_read_in_one_call_are_refused(part: bool) -> None:
    whole = ReadTogether()
    dataset: Dataset[Any] = torch.utils.data.Subset(whole, range(40)) if part else whole
    with pytest.raises(InvalidInput, match="meet in __getitems__"):
        run(Net(mean), None, dataset=dataset)
    assert COLLATED in run(Net(masked_mean), None, dataset=dataset).statement(1e-5).assumptions
