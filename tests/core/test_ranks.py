"""Ranks: real gloo processes with different thread counts, one ledger, noise once, errors for everybody, lost ranks."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo import FORKS, caught, once

import isthmus
from isthmus import LeastSquares, Logistic, Pipeline, Release, Stage, algorithms, minimize
from isthmus.algorithms.purchases import Lambda, Ranges, buying
from isthmus.base.randomness import key
from isthmus.core.group import RankFailed
from isthmus.gradients.rounding import gamma
from isthmus.parts import AllReduce, Clients, Full, Shuffle
from isthmus.privacy import Clip, FixedSize, Ledger
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.ledger import BudgetExceeded
from isthmus.sketches import CountSketch, Kronecker, PublicSubspace

SIZE = 2


def data(n: int = 61, d: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, (X[:, 0] > 0).astype(int)


def logistic(rank: int | None = None) -> Logistic:
    X, y = data()
    mine = slice(None) if rank is None else slice(rank, None, SIZE)
    return Logistic(X[mine], y[mine], classes=[0, 1])


def rule(t: int) -> float:
    return 0.5 / (1 + t)


def gd(**more: Any) -> Any:
    return algorithms.dp_gd(epsilon=3.0, n="exact", **({"step": 1.0, "clip": 0.5} | more))


def learned() -> Pipeline:
    X, y = data(20)
    encoder = PublicSubspace(3, data=(torch.from_numpy(X), torch.from_numpy(y)), refresh=2)
    return Pipeline([Stage(Full(), [Release(encode=encoder, clip=Clip(0.3))])], rule)


SAME: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "sketched": lambda: (Pipeline([Stage(Full(), [Release(encode=CountSketch(4), clip=Clip(0.1))])], rule), {}),
    "learned": lambda: (learned(), {}),
    "private": lambda: (gd(), {"noise_seed": 4}),
    "bought": lambda: (buying(gd(), [Ranges()]), {"noise_seed": 4}),
    "eigenvalue": lambda: (buying(gd(), [Lambda()]), {"noise_seed": 4}),
}
"""Runs whose result on ranks is that of one process."""


class Broken(Logistic):
    """Fails when its rows are asked for the third time."""

    asked = 0

    def rows(self, w: Any, index: Any = None) -> Any:
        self.asked += 1
        if self.asked == 3:
            raise OSError("the disk is gone")
        return super().rows(w, index)


def scenario(rank: int) -> dict[str, Any]:
    mine, found = AllReduce(), {}
    for name, make in SAME.items():
        recipe, more = make()
        book = Ledger()
        ledger = {"ledger": book} if more else {}
        result = minimize(logistic(rank), recipe, steps=5, seed=2, clients=AllReduce(), **ledger, **more)
        epsilon = None if result.privacy is None else result.privacy.epsilon
        losses = [each["loss"] for each in result.history if "loss" in each]
        found[name] = {"x": result.x, "rounds": book.rounds(), "epsilon": epsilon, "losses": losses}
    coins = algorithms.dp_sgd(epsilon=3.0, n="exact", step=1.0, clip=0.5, batch_size=10)
    secret = minimize(logistic(rank), coins, steps=5, clients=mine)
    found["secret"] = {"x": secret.x, "sent": dict(mine.group.sent)}

    small = Ledger(budget=(0.5, 1e-5))
    found["planned"] = caught(lambda: minimize(logistic(rank), gd(), steps=5, clients=AllReduce(), ledger=small))
    found["spent"] = caught(lambda: minimize(logistic(rank), gd(), steps=5, clients=AllReduce(), ledger=_Thin()))
    book, X = Ledger(), logistic(rank)
    bad = Broken(X.X, (X.y > 0).long(), classes=[0, 1]) if rank else X
    told = caught(lambda: minimize(bad, gd(), steps=5, clients=AllReduce(), ledger=book))
    found["broken"] = (*told, book.rounds())
    plain, start = Pipeline([Stage(Shuffle(4))], rule), torch.full((6,), float(rank)).double()
    for name, recipe, more in (
        ("clip", gd(clip=0.5 + rank), {}),
        ("seed", gd(), {"seed": rank}),
        ("step", gd(step=1.0 + rank), {}),
        ("start", plain, {"x0": start}),
    ):
        found[name] = caught(lambda recipe=recipe, more=more: minimize(X, recipe, steps=3, clients=AllReduce(), **more))
    return found


class _Thin(Ledger):
    """A ledger whose budget ends after the third round, whatever was planned."""

    def require(self, event: Any, what: str = "run") -> None:
        pass

    def _reserve(self, run: str, what: str, t: int, *more: Any) -> int:
        if t >= 3:
            raise BudgetExceeded(what, 1, 0.7, 0.9, (0.8, 1e-5))
        return super()._reserve(run, what, t, *more)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> list[dict[str, Any]]:
    return once(scenario, tmp_path_factory, SIZE)


@pytest.mark.parametrize("name", list(SAME))
def test_ranks_are_one_process(ranks: list[dict[str, Any]], name: str) -> None:
    """The same iterate as the whole data in one process, equal to the bit on all ranks, one ledger."""
    recipe, more = SAME[name]()
    book = Ledger()
    whole = minimize(logistic(), recipe, steps=5, seed=2, **({"ledger": book, **more} if more else {}))
    first, *others = (rank[name] for rank in ranks)
    torch.testing.assert_close(first["x"], whole.x, rtol=0, atol=1e-9)
    assert all(torch.equal(first["x"], other["x"]) for other in others)
    assert first["rounds"] == book.rounds() and all(other["rounds"] == {} for other in others)
    if more:
        assert {rank[name]["epsilon"] for rank in ranks} == {whole.privacy.epsilon}
    else:
        losses = [each["loss"] for each in whole.history]
        np.testing.assert_allclose(first["losses"], losses, rtol=1e-9)
        assert first["losses"] == others[0]["losses"]


def test_secret_coins_and_noise_give_equal_weights(ranks: list[dict[str, Any]]) -> None:
    assert torch.equal(ranks[0]["secret"]["x"], ranks[1]["secret"]["x"])
    assert ranks[1]["secret"]["sent"]["reduce"] == 5 * 6 * 8 and "reduce" not in ranks[0]["secret"]["sent"]


def test_a_refused_budget_is_refused_everywhere(ranks: list[dict[str, Any]]) -> None:
    assert [rank["planned"][0] for rank in ranks] == ["BudgetExceeded"] * SIZE
    assert [rank["spent"] for rank in ranks] == [ranks[0]["spent"]] * SIZE
    assert ranks[0]["spent"][0] == "BudgetExceeded" and "needs epsilon 0.9 in total" in ranks[0]["spent"][1]


def test_an_error_of_one_rank_is_everybodys_and_nothing_is_charged_for_it(ranks: list[dict[str, Any]]) -> None:
    assert ranks[1]["broken"][:2] == ("OSError", "the disk is gone")
    assert ranks[0]["broken"][:2] == (RankFailed.__name__, "rank 1 failed with OSError: the disk is gone")
    assert ranks[0]["broken"][2] == {"main": 2}  # the two rounds before it


@pytest.mark.parametrize("name", ["clip", "seed", "step", "start"])
def test_ranks_that_differ_are_refused(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        assert rank[name][0] == "InvalidInput" and "the ranks differ" in rank[name][1]


def test_joint_subsets_are_refused() -> None:
    """A subset of a fixed size is one draw from all records: holders that draw their own would draw something else."""
    holders = [logistic(0), logistic(1)]
    with pytest.raises(isthmus.InvalidInput, match="use Poisson"):
        Clients(holders).check_private(61, [FixedSize(10, 61)])
    Clients(holders).check_private(61, [Full()])


# ---------------------------------------------------------------- float32 on the wire


def test_sums_on_the_wire_stay_within_their_bound() -> None:
    """Neighbours differ by at most the stated bound after casts and float32 additions, near powers of two too."""
    torch.manual_seed(0)
    terms, m, bound = 4, 50, 1.0
    for _ in range(200):
        scale = 2.0 ** float(torch.randint(0, 9, ()))
        sums = [torch.randn(m, dtype=torch.float64) * scale for _term in range(terms)]
        step = torch.randn(m, dtype=torch.float64)
        other = [sums[0] + bound * step / step.norm(), *sums[1:]]
        sent = [
            [ClippedSum(x, 2, bound, dtype=torch.float32).narrowed(300, 1200, terms, 0.01) for x in each]
            for each in (sums, other)
        ]
        totals = [torch.stack([x.value for x in each]).sum(0, dtype=torch.float32).double() for each in sent]
        assert sent[0][0].value.dtype == torch.float32
        assert float((totals[0] - totals[1]).norm()) <= sent[0][0].bound
        assert all(float(x.value.double().norm()) <= 300 * (1 + 1e-6) for x in sent[0])


def test_float32_is_sent_only_where_its_error_is_small_and_public() -> None:
    bounded = ClippedSum(torch.ones(3, dtype=torch.float64), 2, 1.0, dtype=torch.float32)
    narrow = bounded.narrowed(100, 200, 2, 0.01)
    assert narrow.value.dtype == torch.float32
    assert narrow.bound - 1 >= 2 * 200 * gamma(2, torch.float32)
    l1, wide = (ClippedSum(bounded.value, *how) for how in ((1, 1.0, False, torch.float32), (2, 1.0, False)))
    for each, own in ((bounded, 1e6), (l1, 100), (wide, 100)):
        assert each.narrowed(own, 2 * own, 2, 0.01).value.dtype == torch.float64
    data = [ClippedSum(torch.full((3,), size).double(), 2, 1.0, dtype=torch.float32) for size in (1e-9, 1e9)]
    assert len({(x.narrowed(9, 18, 2, 0.01).bound, x.narrowed(9, 18, 2, 0.01).value.dtype) for x in data}) == 1


def test_fingerprints_tell_maps_apart() -> None:
    space = isthmus.base.space.Space.of({"a": (300, 40), "b": (5, 300)})
    same = [Kronecker(4, 4).draw(space, seed=1).fingerprint for _ in range(2)]
    used = Kronecker(4, 4).draw(space, seed=1)
    used.adjoint(used.forward(torch.ones(space.d)))
    assert {*same, used.fingerprint} == {same[0]}
    others = [
        Kronecker(4, 4).draw(space, seed=2),
        CountSketch(16).draw(space, seed=1),
        CountSketch(16).draw(space, seed=2),
    ]
    assert len({same[0], *(other.fingerprint for other in others)}) == 4


def test_a_group_is_needed() -> None:
    with pytest.raises(isthmus.InvalidInput, match="init_process_group"):
        AllReduce(LeastSquares(np.eye(2), np.ones(2)))
    assert key("a") != key("b")


AT = 3


def process(rank: int, size: int, folder: str, lost: int) -> None:
    """A run whose rank `lost` is killed after so many rounds; all others write down what they raised."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((20, 4))

    def killed(record: Any, state: Any) -> None:
        if rank == lost and state.t == AT:
            os.kill(os.getpid(), signal.SIGKILL)

    recipe = algorithms.dp_gd(epsilon=3.0, n="exact", step=1.0, clip=0.5)
    more: dict[str, Any] = {"ledger": Ledger(Path(folder, "ledger"))} if rank == 0 else {}
    try:
        problem = Logistic(X, (X[:, 0] > 0).astype(int), classes=[0, 1])
        minimize(problem, recipe, steps=20, record=1, callbacks=[killed], clients=AllReduce(), **more)
    except Exception as error:
        Path(folder, f"told-{rank}").write_text(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(("lost", "size"), [(0, 2), (2, 3)])
def test_a_killed_rank_ends_the_others(tmp_path: Path, lost: int, size: int) -> None:
    ranks = [FORKS.Process(target=process, args=(rank, size, str(tmp_path), lost)) for rank in range(size)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(300)
    assert [each.exitcode for each in ranks] == [-signal.SIGKILL if rank == lost else 0 for rank in range(size)]
    for rank in set(range(size)) - {lost}:
        text = Path(tmp_path, f"told-{rank}").read_text()
        assert text.startswith(f"{RankFailed.__name__}: a rank was lost")
    charged = Ledger.open(tmp_path / "ledger").rounds()["main"]
    assert charged >= AT  # some rounds are reserved at a time, and those of a killed process stay charged
    if lost:
        assert charged == AT
