"""The command line.

Nothing heavy is imported before a command runs: `isthmus --help` answers at once.  Exit codes:

| code | meaning |
|---|---|
| 0 | done |
| 1 | a promise was broken (`audit`) or something unforeseen happened |
| 2 | wrong usage or input; nothing was spent |
| 3 | the budget does not allow it; nothing beyond it was released |
| 4 | interrupted; `isthmus train --resume RUN` goes on |
| 5 | a run folder or a ledger is damaged |

With `--json` the only thing on standard output is one JSON object (an error is one too); progress, warnings and words
go to standard error.
"""

from __future__ import annotations

import itertools
import json
import time

import click

import isthmus
from isthmus.cli import commands

_FAILED, _WRONG, _OVER_BUDGET, _INTERRUPTED, _DAMAGED = 1, 2, 3, 4, 5
_CODES = {
    **{"InvalidInput": _WRONG, "BudgetExceeded": _OVER_BUDGET, "Interrupted": _INTERRUPTED},
    **{"LedgerCorrupt": _DAMAGED, "FolderDamaged": _DAMAGED, "RankFailed": _FAILED, "CannotWrite": _FAILED},
}
_EPILOG = """\b
Exit codes: 0 done, 1 a promise or a check failed, 2 wrong input, 3 over the
budget, 4 interrupted (train --resume goes on), 5 a damaged run or ledger."""


class Commands(click.Group):
    """Commands in the order of use, and errors as one line with a code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they were added."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look for `--json` before anything else: an option that cannot be read is answered in JSON too."""
        ctx.meta["isthmus.json"] = "--json" in itertools.takewhile(lambda word: word != "--", args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; what it refuses becomes a line on standard error (or a JSON object) and an exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            code, words = _INTERRUPTED, "interrupted"
        except click.ClickException as error:
            _answer(ctx, error.format_message(), error.exit_code)
            raise
        except click.exceptions.Exit:
            raise
        except Exception as error:
            exit_code = code_of(error)
            if exit_code is None:
                _answer(ctx, f"{type(error).__name__}: {error}", _FAILED)
                raise
            code, words = exit_code, str(error)
            if code == _OVER_BUDGET:  # what a run that a budget refuses may ask for instead
                delta: float = vars(error)["budget"][1] / 10
                words += f" Give a smaller --epsilon, or a --delta well below that of the budget, such as {delta:.0e}."
        if commands._rank():  # all ranks fail alike, and rank 0 says why before torchrun ends those that are left
            time.sleep(1)
        else:
            _answer(ctx, words, code)
            click.echo(f"error: {words}", err=True)
        ctx.exit(code)


def _answer(ctx: click.Context, words: str, code: int) -> None:
    """The JSON object of an error, where JSON was asked for."""
    if ctx.meta.get("isthmus.json"):
        click.echo(json.dumps({"error": words, "exit_code": code}))


def code_of(error: BaseException) -> int | None:
    """The exit code of an error that is no accident, without importing what raised it."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("isthmus.")]
    return next((_CODES[kind] for kind in kinds if kind in _CODES), None)


@click.group(
    cls=Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(isthmus.__version__, prog_name="isthmus")
def main() -> None:
    """Private models from tables, with low-dimensional gradients: train, predict, plan, audit, report."""


for _command in (
    *(commands.schema, commands.train, commands.predict, commands.describe, commands.plan),
    *(commands.budget, commands.audit, commands.report, commands.demo, commands.completion),
):
    main.add_command(_command)
