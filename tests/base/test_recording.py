"""Recorded work of a device is what it computes; the parts of it that need no device are tested everywhere."""

import pytest
import torch
from torch import Tensor

from isthmus.base import recording
from isthmus.base.recording import Replay
from isthmus.gradients import fused

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def near(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b)


def test_without_a_device_everything_is_computed():
    calls: list[int] = []

    def compute() -> Tensor:
        calls.append(1)
        return torch.ones(2)

    replay = Replay(Tensor.clone, near)
    x = torch.zeros(3)
    for _ in range(10):
        assert torch.equal(replay("key", [x], compute), torch.ones(2))
    assert len(calls) == 10 and replay.runs == 0


def test_a_kernel_of_our_own_that_reads_what_is_no_input_is_refused(monkeypatch):
    ran: list[object] = []
    kernel = fused._joined
    monkeypatch.setattr(kernel, "launcher", {(1,): lambda *known, **options: ran.append(known)})
    x, other = torch.ones(3), torch.ones(3)
    with recording._Watch([x]):
        kernel[1,](other, 3)  # nothing is recorded
        monkeypatch.setattr(recording._HERE, "recording", object(), raising=False)
        kernel[1,](x, torch.empty(3), 3, block=4)
        with pytest.raises(recording._Unrecordable, match="no input"):
            kernel[1,](x, other, 3)
    assert len(ran) == 2


@gpu
def test_work_is_recorded_when_its_memory_comes_back():
    x, calls = torch.zeros(1000, device="cuda"), []

    def compute() -> Tensor:
        calls.append(1)
        return (x * 2).cumsum(0)

    replay = Replay(Tensor.clone, near)
    results = []
    for number in range(40):
        x.fill_(float(number))
        results.append(replay("key", [x], compute))
    assert replay.runs == 40 - recording.AGAIN and len(calls) < 12
    for number, result in enumerate(results):
        torch.testing.assert_close(result, torch.full_like(x, 2.0 * number).cumsum(0))


@gpu
def test_another_shape_key_or_place_is_computed():
    x = torch.ones(64, device="cuda")
    replay = Replay(Tensor.clone, near)
    for number in range(30):
        part = x[: 8 + number % 8]
        assert float(replay(number, [part], lambda part=part: part.sum()[None])) == len(part)
    assert replay.runs == 0


@gpu
@pytest.mark.parametrize("kind", ["foreign", "kernel", "host", "copy"])
def test_what_cannot_be_recorded_is_computed(kind: str):
    x, other, square = torch.ones(8, device="cuda"), torch.ones(8, device="cuda"), torch.ones(8, 8, device="cuda")

    def compute() -> Tensor:
        if kind == "foreign":
            return x + other
        if kind == "kernel":  # no operation of torch reads it
            return x + (fused.square_sums(square)[:, 0] if fused.can_sum(x.device, x.dtype) else square[0])
        if kind == "host":
            return x * float(x.sum())
        return x + torch.ones(8).cuda()

    replay = Replay(Tensor.clone, near)
    values = [replay("key", [x], compute) for _ in range(8)]
    assert replay.runs == 0 and replay.why
    assert all(torch.equal(value, values[0]) for value in values)


@gpu
def test_a_recording_that_goes_wrong_is_found():
    x, wrong = torch.ones(8, device="cuda"), []

    def compute() -> Tensor:
        return x * (2.0 if wrong else 1.0)  # depends on something that the key does not have

    replay = Replay(Tensor.clone, near)
    for _ in range(recording.AGAIN):
        replay("key", [x], compute)
    replay("key", [x], compute)
    wrong.append(1)
    with pytest.raises(RuntimeError, match="recorded"):
        for _ in range(8):
            replay("key", [x], compute)
