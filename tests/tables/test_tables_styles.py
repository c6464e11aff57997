"""Tables written in every style: read exactly where the style is declared, else read exactly or refused."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import prepared

from isthmus.base.validate import InvalidInput

NUMBERS = {
    "price": lambda rng: rng.lognormal(3, 2, 60).round(2),
    "ratio": lambda rng: rng.uniform(0, 1, 60).round(3),
    "weight": lambda rng: rng.uniform(10, 999, 60).round(3),
    "people": lambda rng: rng.integers(1, 10**7, 60).astype(float),
    "balance": lambda rng: rng.normal(0, 5000, 60).round(1),
    "count": lambda rng: rng.integers(0, 900, 60).astype(float),
}
STYLES = [
    (separator, decimal, thousands)
    for separator, decimal, thousands in itertools.product(",;\t|", ".,", ["", ".", ",", "'", "\u202f"])
    if thousands != decimal
]


def written(value: float, decimal: str, thousands: str) -> str:
    """A number as a spreadsheet writes it: three digits a group, as many decimals as it has."""
    whole, _, rest = f"{value:,.3f}".partition(".")
    rest = rest.rstrip("0")
    return whole.replace(",", thousands) + (decimal + rest if rest else "")


def write(path: Path, columns: dict[str, np.ndarray], separator: str, decimal: str, thousands: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([*columns, "y"])
        for k in range(60):
            entries = [written(values[k], decimal, thousands) if k % 17 else "" for values in columns.values()]
            writer.writerow([*entries, k % 2])


def read(path: Path, **options: Any) -> np.ndarray:
    return np.asarray(prepared(path, target="y", classes=["0", "1"], **options).x)


def expected(columns: dict[str, np.ndarray]) -> np.ndarray:
    rows = np.column_stack(list(columns.values()))
    rows[::17] = 0.0  # nothing was there
    return rows


@pytest.mark.parametrize(("separator", "decimal", "thousands"), STYLES)
def test_a_style_is_read_exactly_or_refused(tmp_path: Path, separator: str, decimal: str, thousands: str) -> None:
    rng = np.random.default_rng(3)
    columns = {name: make(rng) for name, make in NUMBERS.items()}
    path = tmp_path / "t.csv"
    write(path, columns, separator, decimal, thousands)
    assert np.array_equal(read(path, decimal=decimal), expected(columns))
    ranges = {name: [-1e9, 1e9] for name in columns}
    assert np.array_equal(read(path, decimal=decimal, columns=ranges), expected(columns))
    refused = []
    for given in ({}, {"columns": ranges}):
        try:
            assert np.array_equal(read(path, **given), expected(columns))
        except InvalidInput as error:
            assert "--decimal" in str(error)
            refused.append(error)
    comma = "," in (decimal, thousands)
    assert len(refused) == (2 if decimal == "," or (comma and separator != ",") else 0)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(("separator", "decimal", "thousands"), STYLES[::3])
def test_a_column_alone_too(tmp_path: Path, name: str, separator: str, decimal: str, thousands: str) -> None:
    """Without others that would give the style away."""
    columns, path = {name: NUMBERS[name](np.random.default_rng(4))}, tmp_path / "t.csv"
    write(path, columns, separator, decimal, thousands)
    if name != "weight" or (separator, decimal) != (",", ","):  # there 31,275 counts as a thousand: the docs say so
        try:
            assert np.array_equal(read(path), expected(columns))
        except InvalidInput as error:
            assert "--decimal" in str(error)
    assert np.array_equal(read(path, decimal=decimal), expected(columns))
