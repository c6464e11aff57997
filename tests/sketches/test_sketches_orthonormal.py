"""Orthonormal bases and the top directions of public gradients, against QR and SVD."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from grids import pairs
from sketch_cases import normal
from test_sketches_public_subspace import kinds

from isthmus.base.space import Space
from isthmus.gradients import Dense, Stack
from isthmus.sketches import base
from isthmus.sketches import dense as module
from isthmus.sketches.dense import orthonormal, random_rows
from isthmus.sketches.public import _completed, _leaf_pieces, _side_directions, _top_right, learned


def projector(columns):
    return columns @ torch.linalg.pinv(columns)


def exact_gram(rows):
    wide = rows.numpy().astype(np.longdouble)
    return torch.from_numpy((wide @ wide.T).astype(np.float64))


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (40, 3), (3000, 20)])
def test_orthonormal_is_the_unique_qr(shape):
    x = normal(*shape)
    q, r = torch.linalg.qr(x)
    torch.testing.assert_close(orthonormal(x), q * r.diagonal().sign(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(exact_gram(orthonormal(x).T), torch.eye(shape[1], dtype=x.dtype), rtol=0, atol=4e-15)


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e7, 1e12])
def test_ill_conditioned_columns_are_orthonormal_all_the_same(condition):
    decay = torch.logspace(0, -np.log10(condition), 6, dtype=torch.float64)
    x = normal(200, 6) @ torch.diag(decay) @ normal(6, 6, seed=1)
    torch.testing.assert_close(exact_gram(orthonormal(x).T), torch.eye(6, dtype=x.dtype), rtol=0, atol=4e-15)
    assert torch.linalg.svdvals(x - projector(orthonormal(x)) @ x)[0] < 1e-12 * torch.linalg.svdvals(x)[0]


def test_float32_columns_stay_float32():
    q = orthonormal(normal(500, 7).float())
    assert q.dtype == torch.float32
    torch.testing.assert_close(q.T @ q, torch.eye(7), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("rank", "size"), [(3, 3), (5, 1023), (64, 1024), (65, 1024), (20, 5000)])
def test_drawn_rows_are_orthonormal_and_repeatable(rank, size):
    rows = random_rows(rank, size, 5)
    assert rows.shape == (rank, size)
    torch.testing.assert_close(exact_gram(rows), torch.eye(rank, dtype=rows.dtype), rtol=0, atol=4e-15)
    assert torch.equal(rows, random_rows(rank, size, 5)) and not torch.equal(rows, random_rows(rank, size, 6))


def test_long_drawn_rows_cover_every_coordinate_alike():
    v, draws, size = normal(1024), 400, 1024
    values = torch.stack([(random_rows(8, size, key) @ v).square().sum() for key in range(draws)])
    share = values / v.square().sum()
    error = float(share.std()) / draws**0.5
    assert abs(float(share.mean()) - 8 / size) < 4.5 * error
    assert abs(float(share.mean()) - 1.5 * 8 / size) > 4.5 * error
    spread = 2 * (size - 8) * 8 / (size**2 * (size + 2))
    assert 2 / 3 < float(share.var()) / spread < 3 / 2


KINDS = ["one", "many", "bias", "many-bias", "sparse", "dense", "lazy", "lookup"]


@pytest.mark.parametrize("kind, n, chunk", pairs(KINDS, [4, 30], [1 << 9, 1 << 26]))
def test_top_directions_are_those_of_the_svd(kind, n, chunk, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", chunk)
    rows = Stack([("first", kinds(n, 0)[kind]), ("second", Dense(normal(n, 7, seed=8)))])
    space = Space.flat(rows.d)
    directions = learned(space, rows, 3)["basis"]
    top = np.linalg.svd(rows.dense().numpy())[2][:3].T
    signs = torch.from_numpy(np.sign((top * directions.numpy()).sum(0)))
    torch.testing.assert_close(directions * signs, torch.from_numpy(top.copy()), rtol=1e-8, atol=1e-9)
    assert learned(space, rows, 3, torch.float32)["basis"].dtype == torch.float32


@pytest.mark.parametrize("kind, n, chunk", pairs(KINDS, [1, 30], [1 << 9, 1 << 26]))
def test_sides_are_those_of_both_unfoldings(kind, n, chunk, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", chunk)
    rows = kinds(n, 0)[kind]
    cube = rows.dense().view(n, 4, 5)
    moments = torch.einsum("nij,nkj->ik", cube, cube), torch.einsum("nij,nik->jk", cube, cube)
    for found, moment in zip(_side_directions(rows, (4, 5), (2, 3)), moments, strict=True):
        top = torch.linalg.eigh(moment)[1][:, -found.shape[1] :]
        torch.testing.assert_close(found @ found.T, top @ top.T, rtol=1e-8, atol=1e-9)


def test_wide_dense_leaves_never_need_the_moment_of_their_long_side():
    whole = normal(2, 3 * 400)
    left, right = _side_directions(Dense(whole), (3, 400), (2, 4))
    top = np.linalg.svd(whole.view(-1, 400).numpy(), full_matrices=False)[2][:4].T
    np.testing.assert_allclose(projector(right), top @ top.T, atol=1e-10)
    assert left.shape == (3, 2)


def test_top_right_of_sparse_and_dense_matrices():
    for shape in ((4, 30), (30, 4)):
        x = normal(*shape) * (normal(*shape, seed=1) > 0)
        top = np.linalg.svd(x.numpy(), full_matrices=False)[2][:2].T
        for given in (x, sp.csr_array(x.numpy())):
            np.testing.assert_allclose(projector(_top_right(given, 2)), top @ top.T, atol=1e-9)


def test_completed_directions_start_with_the_given_ones():
    given = orthonormal(normal(12, 3))
    whole = _completed(given, 12, key=1)
    assert torch.equal(whole[:, :3], given) and _completed(given, 2, key=1) is given
    torch.testing.assert_close(whole.T @ whole, torch.eye(12, dtype=torch.float64))


def test_rows_without_leaves_are_cut():
    space = Space.of({"a": (2, 3), "b": (1, 4)})
    pieces = _leaf_pieces(space, Dense(normal(3, 10)))
    assert [(piece.n, piece.d) for piece in pieces.values()] == [(3, 6), (3, 4)]


@pytest.mark.parametrize("rank, size", [(1, 300), (16, 256), (30, 700)])
def test_the_root_of_a_device_whitens_signs_as_a_factor_does(rank, size):
    """Products alone, as on a device, against the Cholesky factor of the host: orthonormal, of the same span."""
    signs = torch.randint(0, 2, (3, rank, size), generator=torch.Generator().manual_seed(4)).double() * 2 - 1
    found = module._inverse_root(signs @ signs.mT / size) @ signs / size**0.5
    torch.testing.assert_close(found @ found.mT, torch.eye(rank).double().expand(3, -1, -1), rtol=0, atol=1e-12)
    host = module._whitened_signs(signs)
    torch.testing.assert_close(found.mT @ found, host.mT @ host, rtol=0, atol=1e-12)
