"""How large the house is: code lines and habits by folder; calls and files behind one step, one fit, one import.

    python tools/house.py [--calls]

A code line is one that is not blank, not a comment and not part of a docstring; public are the functions and classes of
modules that begin with no underscore.  Calls are those of functions of the
package, counted on the thread that trains.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

HEADINGS = ("code", "files", "public", "Any", "getattr", "a if b else c", "functions")


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        for item in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                lines.update(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    return lines


def measured(text: str) -> tuple[int, ...]:
    """The figures of one file, in the order of `HEADINGS`."""
    tree = ast.parse(text)
    docs = docstring_lines(tree)
    lines = enumerate(text.splitlines(), 1)
    code = sum(bool(line.strip()) and not line.strip().startswith("#") and at not in docs for at, line in lines)
    public = sum(isinstance(s, ast.FunctionDef | ast.ClassDef) and not s.name.startswith("_") for s in tree.body)
    nodes = list(ast.walk(tree))
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    any_type = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    asked = sum(name in ("getattr", "hasattr") for name in called)
    chosen = sum(isinstance(node, ast.IfExp) for node in nodes)
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    return code, 1, public, any_type, asked, chosen, functions


def table(root: pathlib.Path) -> None:
    """Print the figures of a tree by its folders."""
    folders: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(HEADINGS))
    for path in sorted(root.rglob("*.py")):
        for name in (path.relative_to(root).parts[0], "ALL"):
            folders[name] = [a + b for a, b in zip(folders[name], measured(path.read_text()), strict=True)]
    print(f"{root!s:24}" + "".join(f"{heading:>14}" for heading in HEADINGS))
    for name, row in sorted(folders.items(), key=lambda item: -item[1][0]):
        print(f"{name:24}" + "".join(f"{value:14,}" for value in row))
    code, _, _, _, _, chosen, _ = folders["ALL"]
    print(f"conditional expressions in 1,000 lines: {1000 * chosen / code:.1f}\n")


def calls(work: Callable[[], object]) -> Counter[str]:
    """How many functions of the package a piece of work calls, by file."""
    files: Counter[str] = Counter()

    def count(frame: object, event: str, _: object) -> None:
        name = frame.f_code.co_filename  # type: ignore[attr-defined]
        if event == "call" and "/isthmus/" in name:
            files[name] += 1

    sys.setprofile(count)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.setprofile(None)
    return files


def steps() -> Iterable[tuple[str, Counter[str]]]:
    """One step of `minimize(dp_sgd)`, one of the engine, and a fit."""
    import torch
    from torch import nn

    from isthmus import LeastSquares, PrivacyEngine, PrivateClassifier, algorithms, minimize

    X = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    y = X.sum(1)

    def run(rounds: int) -> Callable[[], object]:
        recipe = algorithms.dp_sgd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, batch_size=20, n="exact")
        return lambda: minimize(LeastSquares(X, y), recipe, steps=rounds, record=None, progress=False)

    run(3)()
    short, long = calls(run(50)), calls(run(90))
    yield "a step of minimize(dp_sgd)", Counter({name: (long[name] - short[name]) // 40 for name in long - short})
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    data = torch.utils.data.TensorDataset(X.float(), (y > 0).long())
    loader = torch.utils.data.DataLoader(data, batch_size=20)
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )

    def passes(count: int) -> Callable[[], object]:
        def work() -> None:
            for _ in range(count):
                for rows, labels in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(module(rows), labels).backward()
                    optimizer.step()

        return work

    passes(1)()
    short, long = calls(passes(1)), calls(passes(5))
    yield (
        "a step of the engine",
        Counter({name: (long[name] - short[name]) // (4 * len(loader)) for name in long - short}),
    )
    table = X.numpy(), (y > 0).numpy()
    fit = PrivateClassifier(epsilon=1.0, delta=1e-5, classes=[0, 1], bounds=(-1, 1))
    fit.fit(*table)
    yield "PrivateClassifier.fit", calls(lambda: fit.fit(*table))


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", action="store_true", help="only what is called and imported")
    if not parser.parse_args().calls:
        for name in ("isthmus", "tests", "lab"):
            table(pathlib.Path(name))
    count = (
        "import sys; from isthmus import PrivacyEngine; print(sum(m.split('.')[0] == 'isthmus' for m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True).stdout.strip()
    print(f"modules behind `from isthmus import PrivacyEngine`: {found}")
    for name, files in steps():
        print(f"{name}: {files.total():,} calls in {sum(count > 0 for count in files.values())} files")


if __name__ == "__main__":
    main()
