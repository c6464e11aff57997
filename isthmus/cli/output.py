"""What every command says, and where: JSON on standard output, words for people, all else on standard error."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json` and `--quiet`."""
    json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print results and errors only.")
    return json_option(quiet_option(command))


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

    def result(self, data: Any, words: str) -> None:
        """The outcome: as JSON, or in words."""
        click.echo(json.dumps(plain(data), allow_nan=False, ensure_ascii=False) if self.as_json else words)

    def say(self, words: str = "") -> None:
        """Something a person may want to know; on standard error beside JSON."""
        if not self.quiet:
            click.echo(words, err=self.as_json)

    def warn(self, words: str) -> None:
        """Something a person must know: always, on standard error."""
        click.echo(f"warning: {words}", err=True)


def warn_of_plan(out: Out, plan: Any) -> None:
    """Warn of a delta that would allow publishing whole records."""
    if plan.facts.epsilon < float("inf"):
        caution = late("privacy.leaks").large_delta(plan.facts.delta, plan.facts.n)
        if caution:
            out.warn(caution)


def plain(value: Any) -> Any:
    """What JSON can hold: infinity as text, NaN as null, arrays as lists."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
