"""The app of examples/flower, over a grid in this process."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from isthmus.distributed.flower import LocalGrid, SketchStrategy

FOLDER = Path(__file__).parents[3] / "examples" / "flower"


def test_the_example_learns_from_a_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in [module for module in sys.modules if module.split(".")[0] == "federated"]:
        del sys.modules[name]
    from federated.client_app import app
    from federated.task import federation, objective

    config = {"clients": 10, "rounds": 10, "numbers": 100, "protects": "nobody", "epsilon": 8.0}
    plan, test = federation(config), objective(10_000)
    strategy = SketchStrategy(plan, wait=0.0)
    strategy.start(LocalGrid(app, 10, config=config))
    assert test.score(strategy.found.x) > 0.65
    assert strategy.clients.traffic.up < 10 * 10 * plan.whole.d * 4 / 50


def test_flower_can_run_the_example_from_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `flwr run` would fetch by itself is on an index, the variable that keeps it from trying is Flower's own, and
    the two apps are where the configuration says.
    """
    config = tomllib.loads((FOLDER / "pyproject.toml").read_text())
    assert [name.split("[")[0] for name in config["project"]["dependencies"]] == ["flwr"]
    variable = importlib.import_module("flwr.common.constant").FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION
    assert f"export {variable}=1" in (FOLDER / "README.md").read_text()
    monkeypatch.syspath_prepend(str(FOLDER))
    places, kinds = config["tool"]["flwr"]["app"]["components"], {"serverapp": "ServerApp", "clientapp": "ClientApp"}
    for part, kind in kinds.items():
        module, _, name = places[part].partition(":")
        app = getattr(importlib.import_module(module), name)
        assert isinstance(app, getattr(importlib.import_module(f"flwr.{part}"), kind))
