"""Fits by ranks: real gloo processes, each with its own rows, one model, one ledger, errors for everybody."""

import math
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gloo import caught, once, together
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from isthmus import InvalidInput, PrivateClassifier, PrivateRegressor, PrivateSearch, private_score
from isthmus.distributed.parts import fit_part, joined
from isthmus.estimators.linear import _RoundNotes
from isthmus.privacy import Ledger

SIZE, N = 2, 600
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 4)).clip(-4, 4)
Y = np.where(X[:, 0] + 0.3 * RNG.standard_normal(N) > 0, "yes", "no")
T = X @ [2.0, -1.0, 0.0, 0.0] + RNG.standard_normal(N)
TESTED: dict[str, Any] = {"noise_seed": 3, "random_state": 1}
KNOWN: dict[str, Any] = {**TESTED, "bounds": (-4, 4), "classes": ["no", "yes"]}

MODELS: dict[str, tuple[Any, np.ndarray]] = {
    "planned": (PrivateClassifier(**KNOWN), Y),
    "bought": (PrivateRegressor(**TESTED), T),
    "read off": (PrivateClassifier(**TESTED, bounds="data", max_iter=3, algorithm="dp_gd"), Y),
    "target read off": (PrivateRegressor(**TESTED, bounds=(-4, 4), target_bounds="data", max_iter=3), T),
    "sketched": (PrivateClassifier(**KNOWN, algorithm="dp_comp_gd", max_iter=3), Y),
    "public": (PrivateClassifier(epsilon=math.inf, class_weight="balanced", max_iter=5, random_state=1), Y),
    "public target": (PrivateRegressor(epsilon=math.inf, max_iter=5, random_state=1), T),
}
"""Models whose fit on ranks is that of one process, and their targets."""
HALF: dict[str, Any] = {"partial_calls": 2, "algorithm": "dp_gd", "max_iter": 3, "epsilon": 1e4}
"""Two calls; where n is declared coins are drawn from the seed too: runs are alike only where noise is small."""


def mine(rank: int, cut: str = "half") -> Any:
    """Which rows a rank has: every second one, a few and all others, or all and none."""
    border = {"few": 7, "none": N}.get(cut, 0)
    return slice(rank, None, SIZE) if cut == "half" else (slice(border), slice(border, None))[rank]


def fresh(model: Any, **more: Any) -> Any:
    return type(model)(**(model.get_params(deep=False) | more))


def fitted(model: Any, y: np.ndarray, rows: Any, **more: Any) -> dict[str, Any]:
    made = fit_part(fresh(model, **more), lambda: (X[rows], y[rows]))
    pickle.loads(pickle.dumps(made.set_params(ledger=None)))  # nothing of the group is left in it
    statement = None if made.privacy_ is None else made.privacy_.to_json()
    return {"coef": made._straight()[0], "intercept": made._straight()[1], "statement": statement, "n": made.n_iter_}


def scenario(rank: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    by_name: dict[str, Any] = {name: fitted(model, y, mine(rank)) for name, (model, y) in MODELS.items()}
    known, cheap = MODELS["planned"][0], {"algorithm": "dp_gd", "max_iter": 3}
    by_name |= {cut: fitted(known, Y, mine(rank, cut)) for cut in ("few", "none")}
    book = Ledger()
    secret = fresh(known, noise_seed=None, random_state=None, algorithm="dp_sgd", batch_size=50, max_iter=4)
    by_name["secret"] = fitted(secret, Y, mine(rank), ledger=book) | {"rounds": book.rounds()}
    model = fit_part(fresh(known, **cheap), (X[mine(rank)], Y[mine(rank)], np.full(N // SIZE, 0.5)))
    scores = private_score(model, X[mine(rank)], Y[mine(rank)], epsilon=3.0, noise_seed=1, group=True)
    by_name["scores"] = scores.words(), scores.privacy.epsilon
    half = fresh(known, **HALF)
    for _ in range(2):
        half.partial_fit(X[mine(rank)], Y[mine(rank)], group=True)
    by_name["partial"] = half._straight()[0], half.privacy_.nominal
    by_name["refused"] = refused(rank, known, cheap)
    return by_name


def refused(rank: int, known: Any, cheap: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What is refused, on every rank, before anything is charged; rank 1 is the one that is wrong."""
    rows, wrong = mine(rank), Y[mine(rank)].copy()
    wrong[0] = "maybe" if rank else wrong[0]

    def fit(x: Any = X[rows], y: Any = wrong, **more: Any) -> Any:
        return lambda: fresh(known, **cheap, **more).fit(x, y, group=True)

    def unread() -> Any:
        if rank:
            raise OSError("the disk is gone")
        return X[rows], Y[rows]

    empty = X[:0]
    good = {"y": Y[rows]}
    piped = make_pipeline(StandardScaler(), fresh(known))
    facts = {
        "label": fit(),
        "columns": fit(X[rows, : 4 - rank], **good),
        "kind": fit(X[rows].astype("f4" if rank else "f8"), **good),
        "epsilon": fit(epsilon=1.0 + rank, **good),
        "clip": fit(clip=0.5 + rank, **good),
        "rounds": lambda: fresh(known, algorithm="dp_gd", max_iter=3 + rank).fit(X[rows], Y[rows], group=True),
        "budget": fit(ledger=Ledger(budget=(0.1, 1e-5)), **good),
        "disk": lambda: fit_part(fresh(known), unread),
        "empty": fit(empty, Y[:0]),
        "step": lambda: fit_part(piped, (X[rows], Y[rows])),
    }
    return {name: caught(make) for name, make in facts.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> list[dict[str, Any]]:
    return once(scenario, tmp_path_factory, SIZE)


def same(ranks: list[dict[str, Any]], name: str, model: Any, y: np.ndarray) -> None:
    """Equal to the bit on all ranks, and to rounding to one process with all rows, with its statement."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = fresh(model).fit(X, y)
    first, *others = (rank[name] for rank in ranks)
    np.testing.assert_allclose(first["coef"], whole._straight()[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(first["intercept"], whole._straight()[1], rtol=0, atol=1e-9)
    assert first["statement"] == (None if whole.privacy_ is None else whole.privacy_.to_json())
    for other in others:
        assert np.array_equal(first["coef"], other["coef"]) and np.array_equal(first["intercept"], other["intercept"])
        assert first["statement"] == other["statement"]


@pytest.mark.parametrize("name", [*MODELS, "few", "none"])  # parts of any size
def test_ranks_fit_what_one_process_fits(ranks: list[dict[str, Any]], name: str) -> None:
    same(ranks, name, *MODELS.get(name, MODELS["planned"]))


def test_one_ledger_and_equal_models_under_secret_noise(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["secret"] for rank in ranks)
    assert first["rounds"] == {"main": 4} and second["rounds"] == {}
    assert np.array_equal(first["coef"], second["coef"]) and first["statement"] == second["statement"]


def test_scores_of_all_ranks_rows(ranks: list[dict[str, Any]]) -> None:
    model = fresh(MODELS["planned"][0], algorithm="dp_gd", max_iter=3).fit(X, Y, np.full(N, 0.5))
    whole = private_score(model, X, Y, epsilon=3.0, noise_seed=1)
    assert [rank["scores"] for rank in ranks] == [(whole.words(), whole.privacy.epsilon)] * SIZE


def test_partial_fits_share_the_budget(ranks: list[dict[str, Any]]) -> None:
    whole = fresh(MODELS["planned"][0], **HALF)
    for _ in range(2):
        whole.partial_fit(X, Y)
    first, second = (rank["partial"] for rank in ranks)
    assert np.array_equal(first[0], second[0]) and first[1] == second[1] == whole.privacy_.nominal
    np.testing.assert_allclose(first[0], whole._straight()[0], rtol=0, atol=0.02)


WRONG = [
    ("label", "InvalidInput", "a label that is not among"),
    ("columns", "InvalidInput", "give all ranks rows with the same columns"),
    ("kind", "InvalidInput", "give all ranks rows with the same columns"),
    ("epsilon", "InvalidInput", "give all ranks the same budget"),
    ("clip", "InvalidInput", "the ranks differ"),
    ("rounds", "InvalidInput", "give all ranks the same budget"),
    ("budget", "BudgetExceeded", "in total"),
    ("empty", "InvalidInput", "give at least one rank some rows"),
    ("step", "InvalidInput", "steps that learn nothing"),
]


@pytest.mark.parametrize(("name", "kind", "told"), WRONG)
def test_what_is_wrong_on_one_rank_is_refused_on_all(
    ranks: list[dict[str, Any]], name: str, kind: str, told: str
) -> None:
    for rank in ranks:
        assert rank["refused"][name][0] == kind and told in rank["refused"][name][1]


def test_rows_that_cannot_be_read(ranks: list[dict[str, Any]]) -> None:
    assert ranks[1]["refused"]["disk"] == ("OSError", "the disk is gone")
    assert ranks[0]["refused"]["disk"] == ("RankFailed", "rank 1 failed with OSError: the disk is gone")


# ---------------------------------------------------------------- interruptions


def stopped(rank: int, folder: str) -> dict[str, Any]:
    """A fit whose rank 1 fails in a round, and one that goes on from rank 0's checkpoint; other ranks have no disk."""
    warnings.simplefilter("ignore")
    path = Path(folder, "run") if rank == 0 else Path("/nowhere/run")
    classifier = PrivateClassifier(**KNOWN, algorithm="dp_gd", max_iter=6, checkpoint=path)
    watch = _RoundNotes.__call__

    def failing(self: Any, record: Any, state: Any) -> bool:
        if rank and state.t == 3:
            raise OSError("out of memory")
        return watch(self, record, state)

    _RoundNotes.__call__ = failing  # type: ignore[method-assign]
    told = caught(lambda: classifier.fit(X[mine(rank)], Y[mine(rank)], group=True))
    _RoundNotes.__call__ = watch  # type: ignore[method-assign]
    classifier.fit(X[mine(rank)], Y[mine(rank)], group=True)
    return {
        "told": told,
        "coef": classifier._straight()[0],
        "statement": classifier.privacy_.to_json(),
        "files": path.exists(),
    }


def test_a_stopped_fit_goes_on_from_rank_0(tmp_path: Path) -> None:
    first, second = together(partial(stopped, folder=str(tmp_path)), SIZE)
    assert second["told"] == ("OSError", "out of memory")
    assert first["told"] == ("RankFailed", "rank 1 failed with OSError: out of memory")
    assert np.array_equal(first["coef"], second["coef"]) and first["statement"] == second["statement"]
    assert first["files"] and not second["files"]
    whole = PrivateClassifier(**KNOWN, algorithm="dp_gd", max_iter=6).fit(X, Y)
    ledger = Ledger.open(tmp_path / "run.ledger")
    assert sum(ledger.rounds().values()) >= whole.n_iter_
    assert f'"nominal":{whole.privacy_.nominal}' not in first["statement"] or ledger.spent(1e-5) <= 1.0 + 1e-9


# ---------------------------------------------------------------- arguments


def test_what_needs_a_group_says_so() -> None:
    model = PrivateClassifier(**KNOWN)
    with pytest.raises(InvalidInput, match="init_process_group"):
        model.fit(X, Y, group=True)
    with pytest.raises(InvalidInput, match="True for the default one"):
        model.fit(X, Y, group="gloo")
    with pytest.raises(InvalidInput, match="give a process group"):
        fit_part(model, (X, Y), group=None)
    with pytest.raises(InvalidInput, match="a search runs in one process"):
        PrivateSearch(model, {"max_iter": [1, 2]}).fit(X, Y, group=True)
    for wrong in ({"address": "localhost:29500"}, {"rank": 2}, {"seconds": 0.0}):
        with (
            pytest.raises(InvalidInput, match=next(iter(wrong))),
            joined(**{"address": "env://", "rank": 0, "size": 2, **wrong}),
        ):
            pass


def test_a_group_of_one(tmp_path: Path) -> None:
    model = make_pipeline(Normalizer(), PrivateClassifier(**KNOWN, algorithm="dp_gd", max_iter=2))
    with joined(f"file://{tmp_path}/store", 0, 1):
        coef = fit_part(model, (X, Y))[-1]._straight()[0]
    np.testing.assert_allclose(coef, model.fit(X, Y)[-1]._straight()[0], rtol=0, atol=1e-12)
