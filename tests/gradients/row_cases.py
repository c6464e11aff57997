"""The one list of row kinds that every contract test runs over: name -> (n, dtype) -> (rows, float64 reference)."""

import numpy as np
import scipy.sparse as sp
import torch
from reference import DenseSketch, orthonormal, outer_rows, wide

from isthmus.gradients import Computed, Dense, Glm, Lazy, Lookup, Outer, ResidualRows, Stack, Sum
from isthmus.gradients.rows import difference, regrouped

P, Q, T = 9, 4, 3
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def draw(*shape, dtype, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def csr(n, p, dtype, seed=5):
    number = np.float32 if dtype != torch.float64 else np.float64
    return sp.random_array((n, p), density=0.4, random_state=np.random.default_rng(seed), dtype=number, format="csr")


def dense(n, dtype):
    values = draw(n, P, dtype=dtype, seed=1)
    return Dense(values), wide(values)


def glm(n, dtype):
    r, X = draw(n, dtype=dtype, seed=1), draw(n, P, dtype=dtype, seed=2)
    return Glm(r, X), outer_rows(X, r[:, None])


def glm_csr(n, dtype):
    r, X = draw(n, dtype=dtype, seed=1), csr(n, P, dtype)
    return Glm(r, X), outer_rows(X, r[:, None])


def softmax_csr(n, dtype):
    b, X = draw(n, Q, dtype=dtype, seed=1), csr(n, P, dtype)
    return Outer(X, b), outer_rows(X, b)


def outer(n, dtype):
    a, b = draw(n, P, dtype=dtype, seed=1), draw(n, Q, dtype=dtype, seed=2)
    return Outer(a, b), outer_rows(a, b)


def outer_one_position(n, dtype):
    a, b = draw(n, 1, P, dtype=dtype, seed=1), draw(n, 1, 1, dtype=dtype, seed=2)
    return Outer(a, b), outer_rows(a, b)


def outer_direct(n, dtype):
    a, b = draw(n, T, P, dtype=dtype, seed=1), draw(n, T, Q, dtype=dtype, seed=2)
    return Outer(a, b), outer_rows(a, b)


def outer_ghost(n, dtype):
    a, b = draw(n, 2, 17, dtype=dtype, seed=1), draw(n, 2, 13, dtype=dtype, seed=2)
    return Outer(a, b), outer_rows(a, b)


def mixed_dtypes(n, dtype):
    a, b = draw(n, T, P, dtype=torch.float32, seed=1), draw(n, T, Q, dtype=dtype, seed=2)
    return Outer(a, b), outer_rows(a, b)


def stack(n, dtype):
    parts = [make(n, dtype) for make in (outer_direct, glm_csr, dense)]
    names = ("hidden", "sparse", "rest")
    items = [(name, rows) for name, (rows, _) in zip(names, parts, strict=True)]
    return Stack(items), torch.cat([truth for _, truth in parts], dim=1)


def difference_glm(n, dtype):
    X, r, s = csr(n, P, dtype), draw(n, dtype=dtype, seed=1), draw(n, dtype=dtype, seed=2)
    return difference(Glm(r, X), Glm(s, X.copy())), outer_rows(X, r[:, None]) - outer_rows(X, s[:, None])


def difference_csr(n, dtype):
    X, Y, r, s = csr(n, P, dtype), csr(n, P, dtype, 8), draw(n, Q, dtype=dtype, seed=1), draw(n, Q, dtype=dtype, seed=2)
    return difference(Outer(X, r), Outer(Y, s)), outer_rows(X, r) - outer_rows(Y, s)


def difference_outer(n, dtype):
    (one, first), (two, second) = outer(n, dtype), outer_direct(n, dtype)
    return difference(one, two), first - second


def difference_stack(n, dtype):
    (one, first), other = stack(n, dtype), stack(n, dtype)[0].scaled(0.5)
    return difference(one, other), first / 2


def difference_unlike(n, dtype):
    (one, first), second = outer(n, dtype), draw(n, P * Q, dtype=dtype, seed=7)
    return difference(one, Dense(second)), first - wide(second)


def residual(n, dtype):
    rows, truth = outer_direct(n, dtype)
    number = torch.float64 if dtype == torch.float64 else torch.float32
    basis = orthonormal(5, P * Q, torch.Generator().manual_seed(3))
    sketch = DenseSketch(basis.to(number))
    return ResidualRows(rows, rows.through(sketch), sketch), truth - truth @ basis.T @ basis


def means(rows, size):
    return torch.stack([g.mean(0) for g in rows.split(size)]) if len(rows) else rows


def grouped(n, dtype):
    rows, truth = outer_direct(n, dtype)
    return regrouped(rows, torch.arange(n) // 4), means(truth, 4)


def grouped_stack(n, dtype):
    rows, truth = stack(n, dtype)
    return regrouped(rows, torch.arange(n) // 2), means(truth, 2)


def grouped_lazy(n, dtype):
    rows, truth = lazy(n, dtype)
    return regrouped(rows, torch.arange(n) // 2), means(truth, 2)


def lazy(n, dtype):
    values = draw(n, P, dtype=dtype, seed=1)
    return Lazy(lambda lo, hi: values[lo:hi], n, P, dtype=dtype), wide(values)


def lookup(n, dtype):
    index = torch.randint(Q, (n, T), generator=torch.Generator().manual_seed(1))
    values, places = draw(n, T, P, dtype=dtype, seed=2), torch.nn.functional.one_hot(index, Q).double()
    return Lookup(index, values, Q), outer_rows(values, places)


def tied_ghost(n, dtype):
    a, b = draw(n, 2, 17, dtype=dtype, seed=1), draw(n, 2, 13, dtype=dtype, seed=2)
    index, values = torch.arange(2 * n).view(n, 2) % 13, draw(n, 2, 17, dtype=dtype, seed=3)
    places = torch.nn.functional.one_hot(index, 13).double()
    return Sum([Outer(a, b), Lookup(index, values, 13)]), outer_rows(a, b) + outer_rows(values, places)


def tied_direct(n, dtype):
    (one, first), (two, second) = outer_direct(n, dtype), lookup(n, dtype)
    return Sum([two, one]), first + second


def computed(n, dtype):
    rows, truth = outer_ghost(n, dtype)
    return Computed([rows]), truth


def computed_bias(n, dtype):
    a, b = draw(n, T, P, dtype=dtype, seed=1), draw(n, T, Q, dtype=dtype, seed=2)
    ones = torch.cat([a, torch.ones(n, T, 1, dtype=dtype)], 2)
    return Computed([Outer(a, b, ones=True)], factor=-0.5), -0.5 * outer_rows(ones, b)


def computed_tied(n, dtype):
    (one, first), (two, second) = outer_direct(n, dtype), lookup(n, dtype)
    return Computed([one, two]), first + second


def lookup_distinct(n, dtype):
    rows, truth = lookup(n, dtype)
    return rows.distinct, truth


def scaled(n, dtype):
    rows, truth = stack(n, dtype)
    return rows.scaled(-0.25), truth * -0.25


EXACT = [dense, glm, glm_csr, softmax_csr, outer, outer_one_position, outer_direct, outer_ghost, mixed_dtypes, stack]
EXACT += [lazy, lookup, tied_ghost, tied_direct]
"""Kinds whose rows are exactly what their factors say."""
DERIVED = [difference_glm, difference_csr, difference_outer, difference_stack, difference_unlike, residual, scaled]
DERIVED += [grouped, grouped_stack, grouped_lazy, computed, computed_bias, computed_tied, lookup_distinct]
"""Kinds made from others by one or two roundings in float32 or better."""
