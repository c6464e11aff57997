"""Every example runs at its small size, without any data set, and says what it guarantees."""

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "text_classifier": "made-up reviews",
    "public_images": "the 100 public images alone",
    "housing": "off by",
    "sparse_model": "CompSGD, sketches of a tenth",
    "choosing_epsilon": "accuracy in rehearsal",
    "auditing": "the claim is refuted",
    "lora": "weights are trained",
    "federated": "bytes sent by all clients",
}


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "federated":
        pytest.importorskip("flwr")
    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    for known in [module for module in sys.modules if module.split(".")[0] == name]:  # another test's, of that name
        monkeypatch.delitem(sys.modules, known)
    importlib.import_module(name).main(["--small"])
    said = capsys.readouterr().out
    assert SAID[name] in said
    promised = {"choosing_epsilon": "it read no private row", "auditing": "the claim, of both mechanisms"}
    assert promised.get(name, "The released results are differentially private with epsilon = ") in said


def test_every_example_is_listed() -> None:
    tested_elsewhere = {"make_notebooks", "mnist", "minilm", "private_table", "own_parts"}
    scripts = {path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith("_")}
    assert scripts == {*SAID, *tested_elsewhere}
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert {name for name in scripts if f"{name}.py" not in readme} == set()
