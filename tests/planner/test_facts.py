"""What the planner may know: checked, frozen, and public."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from cells import rows, targets

from isthmus import InvalidInput, L1Ball
from isthmus.diagnostics import captured_energy
from isthmus.gradients import Dense
from isthmus.planner import Facts, plan, read_public
from isthmus.privacy import noise_multiplier

GOOD: dict[str, Any] = {"n": 1000, "d": 20, "epsilon": 1.0}


WRONG: dict[str, list[Any]] = {
    "n": [0, 10.5],
    "d": [-3],
    "epsilon": [0.0, -1.0, math.nan],
    "delta": [0.0, 1.0],
    "loss": ["cubic"],
    "classes": [1, 3],
    "adjacency": ["both"],
    "scale": ["rows"],
    "density": [2.0],
    "max_passes": [0],
    "max_dims": [0],
    "sparsity": [0],
    "bound": [-1.0],
    "before": [1.0, "half"],
    "clip": [0.0],
    "rounds": [0],
    "batch_size": [2000],
    "constraint": ["ball"],
    "smoothness": [[1.0, 2.0], [-1.0] * 20],
    "public": [np.ones((5, 3))],
    "algorithms": ["adam", 3],
    "sparse": ["yes"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_facts_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan(**{**GOOD, name: value})
    assert (f"{name}={value!r}" if np.ndim(value) == 0 else name) in str(caught.value)


def test_an_unknown_fact_is_refused_by_its_name_alone() -> None:
    """Whoever gives private rows under some name does not find them in the words of the error."""
    words = r"plan\(\) got .* 'max_dim': 'max_dims' may be meant; .* n, d, epsilon"
    with pytest.raises(TypeError, match=words) as caught:
        plan(**GOOD, max_dim=123456)
    assert "123456" not in str(caught.value)


def test_facts_are_frozen_and_fill_in_what_follows() -> None:
    facts = Facts(n=100_000, d=30, epsilon=2.0, loss="softmax", classes=4, adjacency="replace-one")
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.n = 3  # type: ignore[misc]
    assert facts.delta == pytest.approx(100_000**-1.1)
    assert facts.parameters == 120 and facts.outputs == 4
    assert facts.the_clip == pytest.approx(math.sqrt(3 / 4))
    # replacing one record moves a sum by two clips
    assert facts.mu == pytest.approx(1 / (2 * noise_multiplier(epsilon=2.0, delta=facts.delta)))
    assert facts.b == pytest.approx(facts.n * facts.mu)


def test_a_set_or_a_penalty_keeps_columns_as_they_are() -> None:
    assert Facts(**GOOD).free
    assert not Facts(**GOOD, penalty=True).free and not Facts(**GOOD, constraint=L1Ball(1.0)).free


def test_tau_grows_with_fewer_columns_and_is_larger_for_labels() -> None:
    few, many = Facts(n=1000, d=4, epsilon=1.0), Facts(n=1000, d=4000, epsilon=1.0, sparse=True)
    assert few.tau == 3.0 and many.tau == 0.3
    assert Facts(n=1000, d=4, epsilon=1.0, loss="squared").tau == 1.0


# ---------------------------------------------------------------- public rows


def test_the_energy_curve_is_that_of_two_halves_of_the_public_rows() -> None:
    x = rows(40, 6)
    seen = read_public(x, "logistic", 2)
    assert seen is not None and seen.curve is not None
    order = np.random.default_rng(0).permutation(40)
    halves = [Dense(torch.from_numpy(x[part])) for part in (order[:20], order[20:])]
    assert seen.curve.shares == pytest.approx(captured_energy(*halves).shares)
    assert seen.moments == pytest.approx((x**2).mean(0)) and not seen.labelled


def test_the_curve_of_one_output_needs_no_labels_that_of_several_does() -> None:
    x = rows(40, 6)
    plain, labelled = read_public(x, "logistic", 2), read_public((x, targets(x, "logistic")), "logistic", 2)
    assert plain is not None and labelled is not None and plain.curve == labelled.curve
    bare, told = read_public(x, "softmax", 3), read_public((x, targets(x, "softmax")), "softmax", 3)
    assert bare is not None and bare.curve is None
    assert told is not None and told.curve is not None and max(told.curve.ks) <= 18


def test_csr_rows_say_the_same_as_dense_ones() -> None:
    x = rows(40, 6) * (np.random.default_rng(3).random((40, 6)) < 0.4)
    dense, csr = read_public(x, "logistic", 2), read_public(sp.csr_matrix(x), "logistic", 2)
    assert dense is not None and csr is not None and dense.curve is not None and csr.curve is not None
    assert csr.curve.shares == pytest.approx(dense.curve.shares) and csr.moments == pytest.approx(dense.moments)


def test_k_is_where_public_directions_stop_beating_random_ones() -> None:
    rng, d = np.random.default_rng(0), 100
    basis = np.linalg.qr(rng.standard_normal((d, 7)))[0]
    x = rows(400, 7) @ basis.T + rows(400, d, 5)
    seen = read_public(x, "logistic", 2)
    assert seen is not None and seen.directions(d, d) == 7
    assert seen.directions(4, d) == 4  # no more than may leave
    assert 0.4 < seen.beyond(7, d) < 0.6
    noise = read_public(rows(400, d), "logistic", 2)
    assert noise is not None and noise.beyond(noise.directions(d, d), d) < 0.1


def test_too_few_public_rows_have_no_curve() -> None:
    seen = read_public(rows(3, 6), "logistic", 2)
    assert seen is not None and seen.curve is None and seen.rows == 3
    assert read_public(None, "logistic", 2) is None


def test_public_labels_must_match_rows_and_classes() -> None:
    x = rows(10, 3)
    with pytest.raises(InvalidInput, match="len"):
        plan(n=100, d=3, epsilon=1.0, public=(x, [1, 0]))
    with pytest.raises(InvalidInput, match="classes"):
        plan(n=100, d=3, epsilon=1.0, loss="softmax", classes=3, public=(x, np.arange(10)))
