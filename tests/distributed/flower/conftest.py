"""Flower is an extra: without it these tests are left out, and say so."""

from importlib.util import find_spec

import pytest

collect_ignore = ["conftest.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("flwr") is None:
        for item in items:
            if "distributed/flower" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="flwr is not installed: pip install -e '.[flower]'"))
