"""describe."""

from __future__ import annotations

from typing import Any

import click

from isthmus.cli import parts
from isthmus.cli.output import Out, output_options
from isthmus.cli.training import _FILE, TABLE_OPTIONS, _all, options_of


@click.command()
@click.argument("data", type=_FILE)
@click.option("--epsilon", "-e", type=float, required=True, help="The privacy budget of the summary.")
@click.option("--delta", type=float, help="Default: that of the --budget, else 1e-6.")
@click.option("--adjacency", type=click.Choice(["add-remove", "replace-one"]), help="Who is protected.")
@click.option("--budget", type=_FILE, help="A budget shared with other runs on this data (see isthmus budget).")
@click.option("--bins", type=int, default=20, show_default=True, help="Parts of a range in a histogram.")
@_all(TABLE_OPTIONS)
@click.option("--schema", type=_FILE, help="A schema.toml: types, words and ranges of the columns, all public.")
@output_options
def describe(
    data: str, as_json: bool, quiet: bool, bins: int, delta: float | None, adjacency: str | None, **given: Any
) -> None:
    """Summarise the columns of DATA privately: counts, histograms, quantiles, means.

    \b
      isthmus describe people.csv --schema schema.toml --epsilon 0.5 --budget people.budget

    Only declared columns are looked at; the range of a number without one is bought. Every figure has noise, whose
    standard deviation is beside it, and the number of rows is one of them.
    """
    out = Out(as_json, quiet)
    options = options_of(**given)
    if given["budget"] and adjacency is None:
        adjacency = parts.budget.open_shared(given["budget"]).adjacency.value
    settings, declared = parts.config.load(None, {**options, "data": data, "adjacency": adjacency, "delta": delta})
    summary = parts.describe.describe(settings, declared, bins)
    out.result(summary.to_dict(), summary.table() if quiet else f"{summary.table()}\n\n{summary.privacy}")


COMMANDS = (describe,)
