"""What every drawn sketch promises, against its own dense matrix."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.sparse as sp
import torch
from sketch_cases import CASES, draw, fingerprint

from isthmus.sketches import base, hashed

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=list(CASES))
def name(request):
    return request.param


@pytest.fixture
def sketch(name):
    return draw(name)


@pytest.fixture
def phi(sketch):
    return sketch.dense()


def sample(*shape, sparse=False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if sparse:
        x = x * (torch.rand(*shape, generator=torch.Generator().manual_seed(2)) < 0.3)
    return x


def close(a, b):
    torch.testing.assert_close(a, b, **TOLERANCE)


def test_norm_and_gains_are_never_below_the_true_ones(sketch, phi):
    true = {2: float(torch.linalg.svdvals(phi)[0]), 1: float(phi.abs().sum(0).max())}
    true[math.inf] = float(phi.abs().sum(1).max())
    for ord, value in true.items():
        assert sketch.gain(ord) >= value
        assert sketch.gain(ord) <= 1.5 * value * (1.0001 if ord == 2 else 1)
    assert sketch.gain(2) <= sketch.norm * (1 + 2e-5), "the certificate costs next to nothing"


def test_a_map_is_its_matrix_and_tight_maps_alone_have_a_pseudo_inverse(sketch, phi):
    v, y = sample(sketch.d), sample(sketch.m)
    assert phi.shape == (sketch.m, sketch.d)
    close(sketch.forward(v), phi @ v)
    close(sketch.adjoint(y), phi.T @ y)
    if sketch.tight:  # orthogonal rows of one length
        close(phi @ phi.T, sketch.norm**2 * torch.eye(sketch.m, dtype=phi.dtype))
        assert sketch.norm <= float(torch.linalg.svdvals(phi)[0]) * (1 + 1e-9)
        close(sketch.pinv(y), torch.linalg.pinv(phi) @ y)
    else:
        for lift in (sketch.pinv, lambda y: sketch.pinv_leaf(sketch.space.leaves[0].name, y)):
            with pytest.raises(TypeError, match="not tight"):
                lift(y)
    leaves = torch.cat([sketch.adjoint_leaf(leaf.name, y) for leaf in sketch.space.leaves])
    close(leaves, sketch.adjoint(y))


def test_rows_of_some_columns(sketch, phi):
    assert sketch.rows(sample(5, sketch.d)[:0]).shape == (0, sketch.m)
    for lo, hi in ((0, sketch.d), (sketch.d // 3, sketch.d // 2 + 1), (sketch.d - 1, sketch.d)):
        x = sample(4, hi - lo, sparse=True)
        close(sketch.rows(x, lo), x @ phi[:, lo:hi].T)
        close(sketch.rows(sp.csr_array(x.numpy()), lo), x @ phi[:, lo:hi].T)


@pytest.mark.parametrize("positions", [None, 1, 3])
def test_codes_of_outer_products(sketch, phi, positions):
    q, p = (3, 7) if sketch.d > 30 else (1, sketch.d)
    lo, middle = min(5, sketch.d - q * p), () if positions is None else (positions,)
    a, b = sample(6, *middle, p, sparse=True), sample(6, *middle, q)
    product = torch.einsum("ntq,ntp->nqp", b.reshape(6, -1, q), a.reshape(6, -1, p)).reshape(6, -1)
    want = product @ phi[:, lo : lo + q * p].T
    close(sketch.outer(a, b, lo), want)
    if positions is None:
        close(sketch.outer(sp.csr_array(a.numpy()), b, lo), want)


def test_float32_is_the_float64_map_cast(name, phi):
    torch.testing.assert_close(draw(name).dense(torch.float32), phi.float(), rtol=2e-7, atol=0)


def test_chunks_do_not_change_the_map(name, phi, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(base, "CACHE_BYTES", 0)
    monkeypatch.setattr(hashed, "KEEP", 0)
    monkeypatch.setattr(hashed, "STREAMED", 300)
    monkeypatch.setattr(hashed, "RANGE", 70)
    sketch = draw(name)
    torch.testing.assert_close(sketch.dense(), phi, rtol=1e-12, atol=1e-12)
    x = sample(5, sketch.d, sparse=True)
    close(sketch.rows(x), x @ phi.T)
    close(sketch.rows(sp.csr_array(x.numpy())), x @ phi.T)
    close(sketch.forward(x[0]), phi @ x[0])
    assert sketch.gain(1) >= float(phi.abs().sum(0).max())


def test_another_process_draws_the_same_maps():
    program = (
        "import json; from sketch_cases import *; print(json.dumps({n: fingerprint(draw(n).dense()) for n in CASES}))"
    )
    root, here = Path(__file__).parents[3], Path(__file__).parent
    path = {"PYTHONPATH": f"{root}:{here}", "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    process = subprocess.run([sys.executable, "-c", program], env=path, capture_output=True, text=True, check=True)
    theirs = json.loads(process.stdout)
    ours = {name: fingerprint(draw(name).dense()) for name in CASES}
    assert [name for name in CASES if ours[name] != theirs[name]] == []


def test_wrong_lengths_are_refused(sketch):
    with pytest.raises(ValueError, match="give vectors of length"):
        sketch.forward(torch.zeros(sketch.d + 1))
    with pytest.raises(ValueError, match="give vectors of length"):
        sketch.adjoint(torch.zeros(sketch.m + 1))
    with pytest.raises(ValueError, match="columns"):
        sketch.rows(torch.zeros(2, sketch.d), 1)
