"""Noise drawn on a device: ChaCha20 against its standard, one key a call, and what happens without it."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from isthmus.base.validate import InvalidInput
from isthmus.privacy import FastSource, Gaussian
from isthmus.privacy import noise as noise_module
from isthmus.privacy.chacha import LANES, PER_BLOCK, triton
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.noise import _KNOWN_KEY, _KNOWN_NORMALS, CHUNK, _add_there, _sfc64

WORD = np.uint32
SIZES = [1, 7, 1023, 1024, 1025, 5000]
gpu = pytest.mark.skipif(not torch.cuda.is_available() or triton is None, reason="no GPU with Triton here")


def blocks(key: bytes, counters: list[int] | range, nonce: tuple[int, int] = (0, 0)) -> NDArray[np.uint32]:
    """(16, n) words of ChaCha20, as RFC 8439 writes it but with a block number of 64 bits."""
    count = np.array(counters, np.uint64)
    state = np.zeros((16, len(count)), WORD)
    state[:4] = np.frombuffer(b"expand 32-byte k", "<u4")[:, None]
    state[4:12] = np.frombuffer(key, "<u4")[:, None]
    state[12], state[13] = count.astype(WORD), (count >> np.uint64(32)).astype(WORD)
    state[14], state[15] = nonce
    x = state.copy()

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for to, add, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[to] += x[add]
            mixed = x[turned] ^ x[to]
            x[turned] = (mixed << WORD(by)) | (mixed >> WORD(32 - by))

    for _ in range(10):
        for j in range(4):
            quarter(j, 4 + j, 8 + j, 12 + j)
        for j in range(4):
            quarter(j, 4 + (j + 1) % 4, 8 + (j + 2) % 4, 12 + (j + 3) % 4)
    return x + state


def normals(key: bytes, count: int) -> NDArray[np.float64]:
    """What the kernel must give: eight normals a block, those of one program interleaved."""
    programs = -(-count // (PER_BLOCK * LANES))
    words = blocks(key, range(programs * LANES)).astype(np.uint64)
    pairs = (words[0::2] | (words[1::2] << np.uint64(32))).reshape(4, 2, -1)
    radius = np.sqrt(-2 * np.log((pairs[:, 0].astype(float) + 0.5) * 2.0**-64))
    angle = (pairs[:, 1] >> np.uint64(11)).astype(float) * 2.0**-53 * 2 * np.pi
    drawn = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(8, programs, LANES)
    return drawn.transpose(1, 0, 2).reshape(-1)[:count]


class Reference:
    """The kernel on the CPU, with the keys it was given."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def __call__(self, out: torch.Tensor, scale: float, key: bytes) -> None:
        self.keys.append(key)
        out.copy_(out.double() + scale * torch.from_numpy(normals(key, len(out))))


def test_the_reference_is_the_published_cipher() -> None:
    """RFC 8439, section 2.3.2: key 00..1f, block 1, nonce 00000009 0000004a 00000000."""
    values = blocks(bytes(range(32)), [1 | (0x09000000 << 32)], (0x4A000000, 0))[:, 0].tolist()
    assert values == [
        0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3, 0xC7F4D1C7, 0x0368C033, 0x9AAA2204, 0x4E6CD4C3,
        0x466482D2, 0x09AA9F07, 0x05D7C214, 0xA2028BD9, 0xD19C12B5, 0xB94E16DE, 0xE883D0CB, 0x4E3C50A2,
    ]  # fmt: skip


def test_a_device_is_asked_for_the_right_normals() -> None:
    """What every GPU must give before its noise is used is what the cipher gives."""
    np.testing.assert_allclose(_KNOWN_NORMALS, normals(_KNOWN_KEY, 1024)[::LANES], rtol=1e-14)


def test_normals_of_the_cipher_have_the_law_at_its_scale_and_no_other() -> None:
    for key in (bytes(32), bytes(range(32))):
        draws = normals(key, 100_000)
        assert stats.kstest(draws, "norm").pvalue > 1e-3
        assert all(stats.kstest(draws * f, "norm").pvalue < 1e-9 for f in (0.95, 1.05))
        lags = [abs(np.corrcoef(draws[lag:], draws[: len(draws) - lag])[0, 1]) for lag in (1, 2, LANES, 8 * LANES)]
        assert max(lags) < 5 / math.sqrt(len(draws))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_added_in_place_at_the_scale_under_a_key_of_its_own(dtype: torch.dtype) -> None:
    given, add = torch.full((3, 7000), 2.0, dtype=dtype), Reference()
    for _ in range(2):
        out = given.clone()
        where = out.data_ptr()
        _add_there(out, 0.5, add)
        assert out.data_ptr() == where and out.dtype == dtype
        want = 2.0 + 0.5 * torch.from_numpy(normals(add.keys[-1], out.numel()))
        torch.testing.assert_close(out.view(-1), want.to(dtype), rtol=0, atol=0)
    assert len(set(add.keys)) == 2 and all(len(key) == 32 for key in add.keys)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 40.0])
def test_without_the_cipher_the_law_is_the_same(scale: float) -> None:
    """Two keys of torch's generator for every chunk: two-sided in the scale, nothing repeated, chunks independent."""
    out = torch.zeros(2 * CHUNK + 11, dtype=torch.float64)
    _add_there(out, scale, None)
    draws, root = out / scale, math.sqrt(out.numel())
    assert abs(float(draws.std()) - 1) < 6 / (math.sqrt(2) * root) and abs(float(draws.mean())) < 6 / root
    assert stats.kstest(draws[:20000].numpy(), "norm").pvalue > 1e-6
    assert len(draws.unique()) == len(draws)
    chunks = torch.corrcoef(torch.stack([draws[:CHUNK], draws[CHUNK : 2 * CHUNK]]))
    assert abs(float(chunks[0, 1])) < 6 / math.sqrt(CHUNK)


def test_a_second_key_is_drawn_for_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []

    def recorded(bits: int) -> int:
        collected.append(bits)
        return len(collected)

    monkeypatch.setattr(noise_module.secret, "randbits", recorded)
    _add_there(torch.zeros(CHUNK + 1), 1.0, None)
    assert collected == [64] * 4


def test_every_bit_of_the_state_on_the_cpu_comes_from_the_kernel() -> None:
    seeds = _sfc64().bit_generator.seed_seq
    assert 32 * seeds.pool_size >= 192 and seeds.entropy.bit_length() > 192  # type: ignore[union-attr]


def test_the_kernel_in_the_interpreter_is_the_reference() -> None:
    """Triton's own interpreter runs on the CPU, where Triton is installed; without Triton the remedy is named."""
    if triton is None:
        with pytest.raises(ImportError, match="pip install triton"):
            noise_module.importlib.import_module("isthmus.privacy.chacha").add_normals(torch.zeros(3), 1.0, _KNOWN_KEY)
        return
    code = (
        "import torch, numpy as np; from isthmus.privacy.chacha import add_normals\n"
        f"for n in {SIZES}:\n"
        "    out = torch.zeros(n, dtype=torch.float64); add_normals(out, 1.5, bytes(range(32))); print(float(out[-1]))"
    )
    env = os.environ | {"TRITON_INTERPRET": "1"}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert process.returncode == 0, process.stderr
    want = 1.5 * normals(_KNOWN_KEY, max(SIZES))[np.array(SIZES) - 1]
    np.testing.assert_allclose([float(line) for line in process.stdout.split()], want, rtol=1e-12)


@gpu
@pytest.mark.parametrize("size", [*SIZES, 3_000_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gpu_draws_what_the_reference_draws(size: int, dtype: torch.dtype) -> None:
    add = noise_module._chacha(torch.device("cuda", 0))
    assert add is not None
    out = torch.ones(size + 5, dtype=dtype, device="cuda")
    key = os.urandom(32)
    add(out[:size], 3.0, key)
    want = torch.from_numpy(1 + 3.0 * normals(key, size)).to(dtype)
    torch.testing.assert_close(out[:size].cpu(), want, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=1e-12)
    assert bool((out[size:] == 1).all())


@gpu
def test_releases_on_the_gpu_share_nothing_and_have_the_scale() -> None:
    size, given = 4_000_003, Gaussian(2.0)
    outs = [given.release(ClippedSum(torch.zeros(size, device="cuda"), 2, 1.5), FastSource()) for _ in range(3)]
    for out in outs:
        assert abs(float(out.double().std()) / 3.0 - 1) < 6 / math.sqrt(2 * size)
        assert abs(float(out.double().mean()) / 3.0) < 6 / math.sqrt(size)
    rows = torch.corrcoef(torch.stack(outs).double())
    assert float((rows - torch.eye(3, device="cuda")).abs().max()) < 6 / math.sqrt(size)
    drawn = FastSource().normal((3, 100_000), device="cuda")
    assert len(drawn.unique()) == drawn.numel()


@gpu
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_graph_may_not_hold_noise() -> None:
    FastSource().normal(8, device="cuda")
    out, graph = torch.zeros(100, device="cuda"), torch.cuda.CUDAGraph()
    with pytest.raises(InvalidInput, match="same noise at every replay"), torch.cuda.graph(graph):
        FastSource().add_normal(out, 1.0)


def _wrong(out: torch.Tensor, scale: float, key: bytes) -> None:
    out.add_(torch.randn(out.shape, dtype=out.dtype))  # normal, but not those of the key


def _broken(out: torch.Tensor, scale: float, key: bytes) -> None:
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(("add", "used"), [(Reference(), True), (_wrong, False), (_broken, False)])
def test_a_device_that_gives_other_normals_is_not_used(monkeypatch: pytest.MonkeyPatch, add, used) -> None:  # type: ignore[no-untyped-def]
    class Kernel:
        add_normals = staticmethod(add)

    monkeypatch.setattr(noise_module.importlib, "import_module", lambda name: Kernel)
    found = noise_module._chacha.__wrapped__(torch.device("cpu"))
    assert found is (add if used else None)
