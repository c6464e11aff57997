"""What every command says, and where: JSON on standard output, words for people, all else on standard error."""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from isthmus.planner import Plan


def output_options(command: Callable[..., object]) -> Callable[..., object]:
    """`--json` and `--quiet`, as the `Out` that the command is called with."""

    @functools.wraps(command)
    def speaking(as_json: bool, quiet: bool, **given: object) -> object:
        return command(Out(as_json, quiet), **given)

    json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print results and errors only.")
    return json_option(quiet_option(speaking))


def late(module: str) -> ModuleType:
    """A module of the package, loaded when a command first asks for it: `isthmus --help` answers at once."""
    return importlib.import_module(f"isthmus.{module}")


class Out:
    """Where a command writes.

    >>> Out(as_json=True, quiet=False).result({"epsilon": float("inf")}, "words")
    {"epsilon": "inf"}
    """

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet

    def result(self, data: object, words: str, brief: str | None = None) -> None:
        """The outcome: as JSON, or in words, which are `brief` where only results are asked for."""
        if self.quiet and brief is not None:
            words = brief
        if self.as_json:
            words = json.dumps(plain(data), allow_nan=False, ensure_ascii=False)
        click.echo(words)

    def say(self, words: str = "") -> None:
        """Something a person may want to know; on standard error beside JSON."""
        if not self.quiet:
            click.echo(words, err=self.as_json)

    def warn(self, words: str) -> None:
        """Something a person must know: always, on standard error."""
        click.echo(f"warning: {words}", err=True)


def warn_of_plan(screen: Out, plan: Plan) -> None:
    """Warn of a delta that would allow publishing whole records."""
    if plan.facts.epsilon < float("inf"):
        if caution := late("privacy.leaks").large_delta(plan.facts.delta, plan.facts.n):
            screen.warn(caution)


def plain(value: Any) -> object:
    """What JSON can hold: infinity as text, NaN as null, arrays as lists."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value
