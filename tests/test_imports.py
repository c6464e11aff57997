"""What importing the package means: no torch until it is needed, and one module under each name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, isthmus; dir(isthmus); assert 'torch' not in sys.modules; isthmus.L1Ball; sys.modules['torch']"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_schema_is_begun_without_torch_and_scikit_learn(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    code = (
        "import sys; from isthmus.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, "schema", str(tmp_path / "t.csv"), "--target", "b"], check=True)


def test_the_names_that_users_import_are_the_modules_themselves() -> None:
    code = (
        "import isthmus, isthmus.sets.balls as one, isthmus.sets.balls as two\n"
        "assert one is two and isthmus.L1Ball is one.L1Ball\n"
        "assert two.__spec__.name == two.__name__ == 'isthmus.sets.balls'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_run_under_the_names_that_users_know() -> None:
    for name in ("isthmus", "isthmus.cli"):
        process = subprocess.run([sys.executable, "-m", name, "--version"], check=True, capture_output=True, text=True)
        assert "isthmus" in process.stdout
