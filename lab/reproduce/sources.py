"""What a run's numbers follow from: the code that it reaches, so that a line of older code is not taken for a new one.

A run is a function of a module.  It reaches the definitions that it names, those that they name, and so on, in all
modules of `lab.reproduce`.  Verdicts, plots, claims, comments and docstrings move no number and are not part of
it: to write them anew does not make a day's runs stale.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = "lab.reproduce"
FRAME = tuple(f"{HERE}.{name}" for name in ("experiment", "figures"))
"""What hands numbers on and draws them: it makes none."""


@dataclass(frozen=True)
class Sources:
    """A module taken apart."""

    definitions: dict[str, list[ast.stmt]]
    """Functions, classes and assignments, by the name they bind."""
    imports: dict[str, tuple[str, str]]
    """Names that come from elsewhere: the module, and what they are called there ("" for the module itself)."""
    rest: list[ast.stmt]
    """Statements that bind nothing: they run whoever is called."""


@cache
def code_of(run: Callable[..., Any], within: str = HERE) -> str:
    """A fingerprint of all that a function of a module reaches in it and in a package.

    >>> code_of(code_of) == code_of(taken_apart)
    False
    """
    module = run.__module__
    own = taken_apart(module)
    # a lambda, or what another function made: all there is
    names = [run.__qualname__] if run.__qualname__ in own.definitions else list(own.definitions)
    reached: dict[tuple[str, str], str] = {}
    for name in names:
        _reach(module, name, reached, within)
    text = "\n".join(f"{module}:{name}\n{code}" for (module, name), code in sorted(reached.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def code_of_files(files: tuple[Path, ...]) -> str:
    """A fingerprint of whole files: what they say without comments and docstrings."""
    made = hashlib.sha256()
    for path in files:
        made.update(ast.dump(_Bare().visit(ast.parse(path.read_text(encoding="utf-8")))).encode())
    return made.hexdigest()[:12]


@cache
def taken_apart(module: str) -> Sources:
    """The sources of a module that can be imported."""
    path = getattr(sys.modules.get(module), "__file__", None) or getattr(find_spec(module), "origin", None)
    made = Sources({}, {}, [])
    for node in ast.parse(Path(str(path)).read_text(encoding="utf-8")).body:
        names = list(_bound(node))
        for name in names:
            made.definitions.setdefault(name, []).append(node)
        if isinstance(node, ast.ImportFrom | ast.Import):
            _note_imports(node, made.imports)
        elif not names and not _is_words(node):
            made.rest.append(node)
    return made


def _reach(module: str, name: str, reached: dict[tuple[str, str], str], within: str = HERE) -> None:
    """Note a definition and all that it names; "" is the whole module."""
    sources = taken_apart(module)
    if (module, name) in reached:
        return
    nodes = (
        sources.definitions.get(name, [])
        if name
        else [node for nodes in sources.definitions.values() for node in nodes]
    )
    nodes = [*nodes, *sources.rest]
    reached[(module, name)] = "\n".join(ast.unparse(_Bare().visit(_copy(node))) for node in nodes)
    for used in sorted({part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}):
        if used in sources.definitions:
            _reach(module, used, reached, within)
        elif used in sources.imports:
            there, what = sources.imports[used]
            whole = f"{there}.{what}" if what and f"{there}.{what}" in sys.modules else ""
            if (whole or there).startswith(within) and (whole or there) not in FRAME:
                _reach(whole or there, "" if whole else what, reached, within)


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module gives."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


def _note_imports(node: ast.ImportFrom | ast.Import, imports: dict[str, tuple[str, str]]) -> None:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            imports[alias.asname or alias.name] = str(node.module), alias.name
        else:
            imports[alias.asname or alias.name.split(".")[0]] = alias.name, ""


def _copy(node: ast.stmt) -> ast.stmt:
    return ast.parse(ast.unparse(node)).body[0]


def _is_words(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class _Bare(ast.NodeTransformer):
    """Without docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return ast.Pass() if _is_words(node) else node
