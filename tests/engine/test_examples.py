"""The example runs as a user runs it, on real digits where they are there and on scikit-learn's own otherwise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from isthmus import datasets

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mnist_example", ROOT / "examples" / "mnist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with mnist.npz: the real one, or 8 x 8 digits made 28 x 28."""
    if datasets.available("mnist"):
        return str(datasets.folder())
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] * (255 / 16)
    large = torch.nn.functional.interpolate(images, (28, 28), mode="bilinear").squeeze(1).to(torch.uint8).numpy()
    folder = tmp_path_factory.mktemp("digits")
    parts = {
        "x_train": large[:1500],
        "y_train": found.target[:1500],
        "x_test": large[1500:],
        "y_test": found.target[1500:],
    }
    np.savez(folder / "mnist.npz", **parts)
    return str(folder)


def test_the_digits_example(
    script: ModuleType, digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "weights.pt"
    options = ["--data-root", digits, "--records", "1000", "-b", "50", "-n", "2", "--lr", "1.0", "--sigma", "0.5"]
    accuracies = script.main([*options, "--device", "cpu", "--save-model", str(weights)])
    assert accuracies[0] > 0.3  # 0.1 by chance
    printed = capsys.readouterr().out
    spent = [float(line.split("epsilon = ")[1].split(",")[0]) for line in printed.splitlines() if "epsilon" in line]
    assert 0 < spent[0] < spent[1] < 20
    state = torch.load(weights, weights_only=True)
    script.SampleConvNet().load_state_dict(state)  # the names of the plain module


def test_the_digits_example_without_privacy(
    script: ModuleType, digits: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    options = ["--data-root", digits, "--records", "1000", "-b", "20", "-n", "1", "--disable-dp", "--device", "cpu"]
    assert script.main([*options, "--lr", "0.1"])[0] > 0.25
    assert "epsilon" not in capsys.readouterr().out


def test_the_example_differs_from_an_opacus_script_in_its_import_alone() -> None:
    text = (ROOT / "examples" / "mnist.py").read_text()
    assert [line for line in text.splitlines() if "isthmus" in line.lower() and "ISTHMUS_DATA" not in line] == [
        "from isthmus import PrivacyEngine"
    ]
