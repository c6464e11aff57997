"""What importing the package means: no torch until it is needed, and one module under each name."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = [
    ("isthmus; dir(isthmus)", ["torch"]),
    ("isthmus.tensorboard", ["matplotlib", "torch.utils.tensorboard"]),
    ("isthmus.core.pipeline, isthmus.privacy", ["dp_accounting"]),
]


@pytest.mark.parametrize(("statement", "heavy"), HEAVY)
def test_importing_does_not_import_what_is_not_needed_yet(statement: str, heavy: list[str]) -> None:
    code = f"import sys, {statement}; assert not set({heavy}) & set(sys.modules); import isthmus; isthmus.L1Ball"
    subprocess.run([sys.executable, "-c", f"{code}; sys.modules['torch']"], check=True)


def test_the_package_runs_under_its_name() -> None:
    process = subprocess.run([sys.executable, "-m", "isthmus", "--version"], check=True, capture_output=True, text=True)
    assert "isthmus" in process.stdout
