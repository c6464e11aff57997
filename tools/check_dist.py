"""A wheel as a stranger meets it: installed in a fresh environment, measured, and run with the network off.

    python tools/check_dist.py dist/isthmus-*.whl --python python3.13

Prints the versions that were installed, whether they go together, what they take on the disk, how long imports take,
and what the command line and the demo say.  Exits with 1 where a step fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SHOWN = ("torch", "numpy", "scipy", "scikit-learn", "dp-accounting", "pandas", "pyarrow")
FIT = """
import numpy as np
from isthmus import PrivateClassifier
X = np.linspace(-1, 1, 400)[:, None]
model = PrivateClassifier(epsilon=1.0, bounds=(-1, 1), classes=[0, 1]).fit(X, (X[:, 0] > 0).astype(int))
assert model.privacy_.epsilon <= 1.0 and model.score(X, (X[:, 0] > 0).astype(int)) > 0.8
print(model.privacy_)
"""


def run(command: list[str], folder: Path) -> str:
    """What a command prints; its end is shown where it fails."""
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    process = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{process.stdout[-2000:]}{process.stderr[-4000:]}")
    return process.stdout + process.stderr


def without_network() -> list[str]:
    """What stands before a command so that it has no network; nothing where the system cannot take it away."""
    tool = shutil.which("unshare")
    for options in (["-n"], ["-r", "-n"]):
        if tool and subprocess.run([tool, *options, "true"], capture_output=True).returncode == 0:
            return [tool, *options]
    return []


def size(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def sizes(packages: Path) -> str:
    """What the largest packages take, and all together."""
    parts = sorted(((size(path), path.name) for path in packages.iterdir() if path.is_dir()), reverse=True)
    largest = ", ".join(f"{name} {taken / 1e6:,.0f}" for taken, name in parts[:8])
    own = next(taken for taken, name in parts if name == "isthmus")
    return f"{sum(taken for taken, _ in parts) / 1e6:,.0f} MB (isthmus {own / 1e6:.1f}; the largest: {largest})"


def import_seconds(python: str, statement: str, folder: Path) -> float:
    """Of the second of two imports in processes of their own: the first one writes the byte code."""
    for _ in range(2):
        result = run([python, "-X", "importtime", "-c", statement], folder)
    lines = re.findall(r"import time:\s+(\d+) \|\s+\d+ \|", result)
    return sum(map(int, lines)) / 1e6


def check(wheel: Path, python: str, constraint: Path | None, demo: bool, folder: Path) -> None:
    """All steps, in a folder of their own."""
    run([python, "-m", "venv", "env"], folder)
    own = str(folder / "env" / "bin" / "python")
    pip = [own, "-m", "pip", "--disable-pip-version-check"]
    given = [] if constraint is None else ["-c", str(constraint.resolve())]
    run([*pip, "install", "--quiet", *given, f"isthmus[table] @ {wheel.resolve().as_uri()}"], folder)
    frozen = run([*pip, "list", "--format=freeze"], folder).split()
    listed = dict(line.split("==", 1) for line in frozen if "==" in line)
    print(run([own, "--version"], folder).strip() + ":", ", ".join(f"{name} {listed[name]}" for name in SHOWN))
    print("pip check:", run([*pip, "check"], folder).strip())
    print("on the disk:", sizes(next((folder / "env" / "lib").glob("python*/site-packages"))))
    for statement in ("import isthmus", "from isthmus import PrivateClassifier", "from isthmus import PrivacyEngine"):
        print(f"{statement}: {import_seconds(own, statement, folder):.2f} s")
    alone = without_network()
    print("the network is off from here on" if alone else "the network cannot be taken away here, and stays on")
    command = str(folder / "env" / "bin" / "isthmus")
    print(run([*alone, command, "--version"], folder).strip())
    print(run([*alone, own, "-c", FIT], folder).strip())
    if demo:
        print(run([*alone, command, "demo"], folder).strip())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the Python of the fresh environment")
    parser.add_argument("--constraint", type=Path, help="versions to install, as pip's -c takes them")
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo, which takes a minute")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check(arguments.wheel, arguments.python, arguments.constraint, not arguments.no_demo, Path(folder))


if __name__ == "__main__":
    main()
