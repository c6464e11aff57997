"""Event files where TensorBoard is installed, the error that names the extra where it is not."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from isthmus import InvalidInput
from isthmus.diagnostics import Spectrum, Tracker, noise_to_signal
from isthmus.tensorboard import TensorBoardWriter

INSTALLED = importlib.util.find_spec("tensorboard") is not None
SPECTRUM = Spectrum(torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64), n=4, d=9)


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve of the event files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def write(folder: Path) -> None:
    """A run with two rounds and one spectrum."""
    with TensorBoardWriter(folder) as writer:
        tracker = Tracker(sink=writer)
        tracker.observe(0, torch.tensor([3.0, 4.0]), noise_std=2.0)
        tracker.observe(5, torch.tensor([0.0, 1.0]), noise_std=2.0, clip_fraction=0.25)
        writer.spectrum(5, SPECTRUM, top=2)
        for wrong in (lambda: writer.scalars(-1, {"a": 1.0}), lambda: writer.spectrum(0, SPECTRUM, top=0)):
            with pytest.raises(InvalidInput):
                wrong()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    if not INSTALLED:
        with pytest.raises(ImportError, match=r"pip install -e '\.\[tensorboard\]'") as raised:
            write(tmp_path / "run")
        assert isinstance(raised.value.__cause__, ModuleNotFoundError)
        assert not (tmp_path / "run").exists()
        return
    write(tmp_path / "run")
    seen = read(tmp_path / "run")
    one = noise_to_signal(torch.tensor([3.0, 4.0]), 2.0)
    assert seen["diagnostics/released"] == [(0, 5.0), (5, 1.0)]
    assert seen["diagnostics/noise_to_signal"] == [(0, pytest.approx(one.ratio))]  # infinite in round 5: left out
    assert seen["diagnostics/clip_fraction"] == [(5, 0.25)]  # not paid for in round 0
    assert seen["diagnostics/spectrum/eigenvalue_001"] == [(5, 4.0)]
    assert seen["diagnostics/spectrum/share_002"] == [(5, 0.75)]
    assert seen["diagnostics/spectrum/stable_rank"] == [(5, 2.0)]
    assert seen["diagnostics/spectrum/effective_rank"] == [(5, pytest.approx(math.exp(1.75 * math.log(2)), rel=1e-6))]
    assert not [tag for tag in seen if tag.endswith("_003")]
