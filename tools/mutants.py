"""`make mutants`: change the code that privacy rests on, one place at a time, and see whether the tests notice.

Every mutant is one small change of one module: a comparison, an operator, a number, min for max, a condition turned
round, an empty return, a statement left out.  The package is copied to a temporary folder, the changed module is
written there, and only the quick tests that belong to the module are run.  A mutant is killed where they fail or never
end; one that survives is a line that could be wrong without anybody noticing, or a change that changes nothing
(`SAME` names those, with the reason).

    python tools/mutants.py --list
    python tools/mutants.py --sample 100 --seed 1
    python tools/mutants.py --only privacy/noise privacy/clips
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from mutants_map import LEFT_OUT, SAME, SLOW, TESTS

ROOT = Path(__file__).parents[1]
WARM = ("pytest", "_pytest.doctest", "torch", "scipy.stats", "scipy.sparse", "sklearn.base", "pandas")
WARM += ("dp_accounting", "dp_accounting.pld", "dp_accounting.rdp", "cvxpy", "opendp.prelude")
"""Packages that are imported once, before a process for each mutant is forked."""

COMPARED: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
TWINS = {"min": "max", "minimum": "maximum", "any": "all", "floor": "ceil", "amin": "amax"}
TWINS |= {other: name for name, other in TWINS.items()}

Change = Callable[[], None]


@dataclass(frozen=True)
class Mutant:
    """One change: the node (its number in `ast.walk`) and which of the changes that the node allows."""

    module: str
    where: str
    words: str
    node: int
    choice: int
    again: int = 0

    @property
    def name(self) -> str:
        """Its name, which other lines of the file do not change."""
        return f"{self.module}:{self.where}: {self.words}" + (f" ({self.again + 1})" if self.again else "")


def changes(node: ast.AST) -> list[tuple[str, Change]]:
    """What a node can be turned into: words, and a function that changes the node in place."""
    collected: list[tuple[str, Change]] = []

    def offer(change: Change) -> None:
        collected.append((_short(node), change))

    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            for other in COMPARED[type(op)]:
                offer(lambda place=place, other=other: node.ops.__setitem__(place, other()))
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in COMPUTED:
        offer(lambda: setattr(node, "op", COMPUTED[type(node.op)]()))
    elif isinstance(node, ast.BoolOp):
        offer(lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        offer(lambda: setattr(node, "op", ast.UAdd()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        offer(lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        offer(lambda: setattr(node, "value", _other(node.value)))
    elif isinstance(node, ast.Call) and _called(node) in TWINS:
        offer(lambda: setattr(node.func, "id" if isinstance(node.func, ast.Name) else "attr", TWINS[_called(node)]))
    elif isinstance(node, ast.Return) and node.value is not None and not _is(node.value, None):
        offer(lambda: setattr(node, "value", ast.Constant(None)))
    turned = isinstance(getattr(node, "test", None), ast.Compare | ast.UnaryOp)  # changed by itself
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not turned and not _is(node.test, True):
        collected.append((f"if {_short(node.test)}", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))))
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        for place, line in enumerate(block if isinstance(block, list) else []):
            if _removable(line):
                collected.append((_short(line), lambda block=block, place=place: block.__setitem__(place, ast.Pass())))
    return collected


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module, by name."""
    tree = ast.parse(source)
    places, mutants, counted = dict(_places(tree)), [], Counter[str]()
    for number, node in enumerate(ast.walk(tree)):
        where, line = places.get(node, (None, ""))
        if where is None or any(where == left or where.startswith(left + ".") for left in LEFT_OUT.get(module, {})):
            continue
        for choice, (before, _) in enumerate(changes(node)):
            after = _after(node, choice)
            words = f"{before} -> {after}" + ("" if after == "(nothing)" or line.startswith(before) else f" in {line}")
            again = counted[f"{where} {words}"]
            counted[f"{where} {words}"] += 1
            mutants.append(Mutant(module, where, words, number, choice, again))
    return mutants


def is_same(mutant: Mutant) -> bool:
    """Whether it is known to change nothing."""
    return any(fnmatchcase(mutant.name, pattern) for pattern in SAME)


def mutated(source: str, mutant: Mutant) -> str:
    """The module with the change."""
    tree = ast.parse(source)
    node = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.node)
    changes(node)[mutant.choice][1]()
    return ast.unparse(ast.fix_missing_locations(tree))


def _after(node: ast.AST, choice: int) -> str:
    """The changed node in words: itself, or the condition or statement that was changed in it."""
    fresh = copy.deepcopy(node)
    change = changes(fresh)[choice][1]
    old_test = ast.unparse(fresh.test) if isinstance(fresh, ast.If | ast.IfExp | ast.While) else ""
    change()
    if isinstance(fresh, ast.If | ast.IfExp | ast.While) and ast.unparse(fresh.test) != old_test:
        return _short(fresh.test)
    blocks = isinstance(getattr(fresh, "body", None), list)
    return "(nothing)" if blocks else _short(fresh)


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, tuple[str, str]]]:
    """Nodes that may be changed, with the function, class or constant they stand in and their line; words are left."""

    def visit(node: ast.AST, where: str, line: str) -> Iterator[tuple[ast.AST, tuple[str, str]]]:
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            return
        if isinstance(node, ast.stmt):
            line = _short(node, first=True)
        name = getattr(node, "name", "") if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
        if not where and isinstance(node, ast.Assign | ast.AnnAssign):
            name = _short(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        where = f"{where}.{name}".strip(".")
        if name in ("describe", "__repr__") or "Protocol" in map(_short, getattr(node, "bases", [])):
            return
        yield node, (where, line)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list", "bases"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from visit(child, where, line)

    yield from visit(tree, "", "")


def _short(node: ast.AST, first: bool = False) -> str:
    """The code of a node on one line, or its first line only."""
    text = ast.unparse(node)
    text = text.splitlines()[0] if first else " ".join(text.split())
    return text if len(text) <= 90 else text[:87] + "..."


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _is(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _other(value: float) -> float:
    """Another number: False for True, one more than an integer, 1 for 0.0, and twice as much."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2 * value or 1.0


def _removable(line: ast.stmt) -> bool:
    """Whether the file is still a module without it: a call, a change of what exists, a refusal."""
    if isinstance(line, ast.Expr):
        return isinstance(line.value, ast.Call)
    plain = isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name | ast.Tuple)
    return isinstance(line, ast.AugAssign | ast.Assign | ast.Raise | ast.Break) and not plain


# ---------------------------------------------------------------- running


class Bench:
    """A copy of the package with its tests, and a process for every run of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("isthmus", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        os.environ.update(PYTHONPATH=str(folder), OMP_NUM_THREADS="1")
        for name in WARM:
            try:
                importlib.import_module(name)
            except ImportError:
                pass  # its tests are skipped, or it is imported by whoever needs it

    def source(self, module: str) -> str:
        """The module as it is."""
        return (ROOT / "isthmus" / f"{module}.py").read_text()

    def write(self, module: str, source: str) -> None:
        """A module as it is to be tested, without what Python remembers of the one before."""
        path = self.folder / "isthmus" / f"{module}.py"
        path.write_text(source)
        for old in path.parent.glob(f"__pycache__/{path.stem}.*"):
            old.unlink()

    def run(self, module: str, limit: float, remember: bool = False) -> tuple[str, float]:
        """What became of the tests of a module ("pass", "fail" or "never ends"), and the seconds they took."""
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            self._child(module, remember)
        while time.monotonic() - began < limit:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                if code == 97:
                    raise RuntimeError("the tests would not have seen the copy of the package")
                return ("pass" if code == 0 else "fail"), time.monotonic() - began
            time.sleep(0.02)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "never ends", time.monotonic() - began

    def _child(self, module: str, remember: bool) -> None:
        """In a process of its own: run the tests, and end."""
        code = 98
        try:
            os.setsid()
            os.chdir(self.folder)
            out = os.open(self.folder / "out.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            sys.path.insert(0, str(self.folder))
            sys.dont_write_bytecode = not remember
            os.environ["PYTHONDONTWRITEBYTECODE"] = "" if remember else "1"
            import pytest

            spec = importlib.util.find_spec("isthmus")
            if spec is None or not str(spec.origin).startswith(str(self.folder)):
                os._exit(97)
            left = [flag for test in SLOW for flag in ("--deselect", test)]
            flags = ["-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
            flags += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins were imported before the fork
            code = int(pytest.main([*flags, *left, *TESTS[module], f"isthmus/{module}.py"]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)


def main() -> int:
    """0 where every mutant that was run is killed, or known to change nothing."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, default=0, help="run so many, drawn at random (0: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(TESTS), help="modules, such as privacy/noise")
    parser.add_argument("--match", nargs="*", default=[""], help="only mutants whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    arguments = parser.parse_args()
    known = {module: mutants_of(module, (ROOT / "isthmus" / f"{module}.py").read_text()) for module in arguments.only}
    every = [
        mutant
        for mutants in known.values()
        for mutant in mutants
        if any(text in mutant.name for text in arguments.match)
    ]
    todo = [mutant for mutant in every if not is_same(mutant)]
    if arguments.list:
        print(*(mutant.name for mutant in every), sep="\n")
        return 0
    chosen = random.Random(arguments.seed).sample(todo, min(arguments.sample or len(todo), len(todo)))
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        return report(run_all(Bench(Path(folder)), chosen), len(todo), len(every) - len(todo))


def run_all(bench: Bench, chosen: list[Mutant]) -> dict[Mutant, str]:
    """What became of each, module by module; the tests must pass before anything is changed."""
    results: dict[Mutant, str] = {}
    for module in [module for module in TESTS if any(mutant.module == module for mutant in chosen)]:
        became, took = bench.run(module, 600, remember=True)
        if became != "pass":
            print((bench.folder / "out.txt").read_text()[-2000:])
            raise SystemExit(f"{module}: its tests do not pass as it is")
        own = [mutant for mutant in chosen if mutant.module == module]
        print(f"{module}: {len(own)} mutants; its tests take {took:.1f} s", flush=True)
        for mutant in own:
            bench.write(module, mutated(bench.source(module), mutant))
            results[mutant], _ = bench.run(module, 20 + 3 * took)
            print(f"  {'killed  ' if results[mutant] != 'pass' else 'SURVIVED'} {mutant.name}", flush=True)
        bench.write(module, bench.source(module))
    return results


def report(results: dict[Mutant, str], possible: int, same: int) -> int:
    """The score, by module, and the survivors."""
    ran, killed = Counter(m.module for m in results), Counter(m.module for m, b in results.items() if b != "pass")
    print(f"\n{'module':32} {'run':>5} {'killed':>7} {'score':>7}")
    for module, count in [*ran.items(), ("all", len(results))]:
        dead = killed[module] if module != "all" else killed.total()
        print(f"{module:32} {count:5} {dead:7} {100 * dead / count:6.1f}%")
    print(f"{len(results)} of {possible} mutants were run; {same} more are known to change nothing")
    survivors = [mutant.name for mutant, became in results.items() if became == "pass"]
    print(*(f"survived: {name}" for name in survivors), sep="\n")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
