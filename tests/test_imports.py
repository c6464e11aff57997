"""What importing the package means: no torch until it is needed, and one module under each name."""

import subprocess
import sys
from pathlib import Path

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


def test_a_schema_is_begun_without_torch_and_scikit_learn(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    code = (
        "import sys; from isthmus.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, "schema", str(tmp_path / "t.csv"), "--target", "b"], check=True)


def test_the_package_runs_under_its_name() -> None:
    process = subprocess.run([sys.executable, "-m", "isthmus", "--version"], check=True, capture_output=True, text=True)
    assert "isthmus" in process.stdout
