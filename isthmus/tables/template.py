"""A schema.toml to begin with: from the header of a file, what was declared, and public rows; free of charge.

No row of the file itself is read.  What nothing public tells is left open as "?", which a run refuses by name: a blank
that somebody has to fill in is better than a guess that nobody sees.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from isthmus.base import validate
from isthmus.tables.encode import as_words
from isthmus.tables.files import Reading, Table, columns_of, read, types_of
from isthmus.tables.infer import MOST_WORDS, identifies, infer
from isthmus.tables.numbers import Signs
from isthmus.tables.schema import FORMS, OPEN, VERSION, Column, Schema, Target, check_names, toml_value


@dataclass(frozen=True)
class Draft:
    """The text of a schema, and the names of what is still open in it."""

    text: str
    open: tuple[str, ...]


def draft(
    path: str | Path,
    declared: Schema,
    target: Target | None,
    *,
    reading: Reading | None = None,
    decimal: str | None = None,
    bounds: tuple[float, float] | None = None,
    sample: str | Path | None = None,
) -> Draft:
    """The schema of a file's columns: declared ones, then those that public rows of `sample` tell, the rest open.

    decimal, bounds   the decimal sign and the range of all numbers that have none of their own
    """
    names = columns_of(path, reading)
    if names is None:
        validate.present(os.path.isfile(path), path)
        validate.unreadable(path, "it has no named columns; a schema is for csv, tsv and parquet files")
    check_names(names, declared, None if target is None else target.name)
    own = sample is not None and Path(sample).resolve() == Path(path).resolve()
    validate.check(
        not own, "sample", str(sample), "give a file of rows that are public: the rows of this one are the private ones"
    )
    public = None if sample is None else _rows(sample, reading)
    types, columns = types_of(path, reading), {}
    why: dict[str, str] = {}
    for name in names:
        if target is not None and name == target.name:
            continue
        column = declared.get(name) or _from_public(name, public, decimal, why) or _typed(name, types)
        columns[name] = None if column is None else column.settled(bounds, decimal)
    target = target if target is None or public is None else _target_told(target, public)
    return _written(Path(path), columns, why, target, sampled=public is not None)


def _rows(sample: str | Path, reading: Reading | None) -> Table:
    table = read(sample, reading=reading)
    usable = table.frame is not None and table.n > 0
    validate.check(usable, "sample", str(sample), "give a csv, tsv or parquet file with rows that are public")
    return table


def _from_public(name: str, public: Table | None, decimal: str | None, why: dict[str, str]) -> Column | None:
    """What public rows tell of a column; where they do not settle it, why."""
    if public is None or name not in public.frame.columns:
        return None
    try:
        guess = infer(name, public.frame[name], public=True, signs=Signs.of(decimal, public.separator))
    except validate.InvalidInput as error:
        why[name] = str(error).partition(" is not allowed: ")[2]
        return None
    why |= {name: guess.why} if guess.why else {}
    return Column(name, "id") if guess.column.type == "drop" and identifies(name) else guess.column


def _typed(name: str, types: Mapping[str, str]) -> Column | None:
    """What a name or the type in the file says."""
    if identifies(name):
        return Column(name, "id", source="name")
    return Column(name, types[name]) if name in types else None


def _target_told(target: Target, public: Table) -> Target:
    """With the labels of public rows, where it is a classification."""
    if target.task != "classification" or target.classes or target.name not in public.frame.columns:
        return target
    words, absent = as_words(public.frame[target.name])
    labels = tuple(sorted(set(words[~absent])))
    return replace(target, classes=labels) if 2 <= len(labels) <= MOST_WORDS else target


# ---------------------------------------------------------------- the text


def _written(
    path: Path, columns: Mapping[str, Column | None], why: Mapping[str, str], target: Target | None, sampled: bool
) -> Draft:
    open_ones = [name for name, column in columns.items() if column is None]
    lines, missing = _target_lines(target)
    if open_ones:
        lines += ["[columns]", f"# {FORMS}"]
        width = max(len(toml_value(name)) for name in open_ones)
        for name in open_ones:
            lines.append(
                f"{toml_value(name):{width}} = {toml_value(OPEN)}" + (f"  # {why[name]}" if name in why else "")
            )
        lines.append("")
    for name, column in columns.items():
        if column is not None:
            note = [f"# {why[name]}"] if name in why else []
            lines += [*note, Schema((column,)).to_toml()]
    sources = ", the options and the public sample, whose words and ranges you may widen"
    source = sources if sampled else " and the options"
    header = [
        f"# The public rules that turn the columns of {path.name} into numbers.  No row of it was read: they come",
        f"# from its header{source}.",
    ]
    if open_ones or missing:
        header.append(f'# Fill in each "{OPEN}" with what is publicly known; never look it up in the private rows.')
    header += [f"# Then: isthmus train {path.name} --schema schema.toml", "", f"version = {VERSION}", ""]
    return Draft("\n".join([*header, *lines]).rstrip() + "\n", (*missing, *open_ones))


def _target_lines(target: Target | None) -> tuple[list[str], list[str]]:
    """The table [target], and what is open in it."""
    if target is None:
        return ["[target]", f'name = "{OPEN}"', f'task = "{OPEN}"  # classification or regression', ""], ["target"]
    lines, missing = Schema(target=target).to_toml().rstrip().splitlines(), []
    if target.task is None:
        lines.append(f'task = "{OPEN}"  # "classification", with classes = ["no", "yes"]; or "regression"')
        missing = ["target.task"]
    elif target.task == "classification" and not target.classes:
        lines.append(f'classes = "{OPEN}"  # all labels, such as ["no", "yes"]')
        missing = ["target.classes"]
    elif target.task == "regression" and target.bounds is None:
        lines.append("# bounds = [0, 100]  # the public range; without it, the range is bought from the budget")
    return [*lines, ""], missing
