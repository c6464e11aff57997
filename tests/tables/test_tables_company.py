"""What one entry is read as depends on no other entry of its column, whatever types a table gives to columns.

pandas gives a column the type that all of its entries fit, and finds entries equal that are written differently: both
would let one record decide how all others become numbers, which no clip bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from isthmus.base.validate import InvalidInput
from isthmus.tables.encode import encode, encode_target
from isthmus.tables.files import ParquetColumns, numbers_of, read
from isthmus.tables.schema import Schema, Target

KOLKATA = timezone(timedelta(hours=5, minutes=30))
BIG = [2**53 + 1 + 2 * k for k in range(6)]
HASH, ABSENT = {"type": "hash", "buckets": 1000}, {"absent": ["1", "1e3"], "missing": "indicator"}
DATES = {"type": "date", "bounds": ["1800-01-01", "2100-01-01"], "missing": "indicator", "absent": ["2000-05-05"]}
TABLES: dict[str, Callable[[list[Any]], Any]] = {
    "pandas": lambda entries: pandas.DataFrame({"a": entries}),
    "dict": lambda entries: {"a": entries},
}
CASES: dict[str, tuple[list[Any], Any, Any]] = {
    "truth before numbers, words": ([1, 1, 2], True, ["1", "2"]),
    "truth before numbers, hashed": ([1, 1, 2], True, HASH),
    "numbers before truth": ([True, False], 1, HASH),
    "a decimal before numbers": ([1, 1, 2], Decimal("1.00"), HASH),
    "two decimals": ([Decimal("1.0")] * 3, Decimal("1.00"), HASH),
    "a decimal that is a float": ([0.1, 0.2], Decimal(0.1), HASH),
    "one moment in two zones": ([datetime(2024, 1, 1, tzinfo=UTC)], datetime(2024, 1, 1, 5, 30, tzinfo=KOLKATA), HASH),
    "large numbers and a missing one": (BIG, None, HASH),
    "large numbers and a word": (BIG, "x", HASH),
    "large words and a missing number": (BIG, None, [str(BIG[0])]),
    "declared missing, truth values": ([True, False, True], None, {"type": "bool", **ABSENT}),
    "declared missing, numbers": ([1000.0, 2.0, 3.0], "x", {"bounds": [0, 2000], **ABSENT}),
    "declared missing, decimals": ([1000.0, 2.0, 3.0], Decimal(7), {"bounds": [0, 2000], **ABSENT}),
    "declared missing, dates": ([pandas.Timestamp("2000-05-05"), pandas.Timestamp("2024-01-02")] * 2, "x", DATES),
    "dates with a time": ([pandas.Timestamp("1960-03-01 01:02:03.123456789")] * 3, "x", DATES),
    "dates of a zone": ([pandas.Timestamp("2024-03-01 01:02:03", tz=KOLKATA)] * 3, "x", DATES),
    "numbers that numpy made": ([np.float32(0.5)] * 3, "x", {"bounds": [0, 1], "decimal": ",", "thousands": "."}),
    "numbers beyond float64": ([1, 2, 3], 10**400, HASH),
}


def others_read_alike(make: Callable[[list[Any]], Any], entries: list[Any], extra: Any, declared: Any, at: int) -> bool:
    """Whether one more entry leaves all others as they were; refused tables release nothing."""
    schema = Schema.from_dict({"columns": {"a": declared}})
    try:
        rows, more = (encode(make(column), schema) for column in (entries, [*entries[:at], extra, *entries[at:]]))
    except InvalidInput:
        return True
    return np.array_equal(rows, np.delete(more, at, axis=0))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("table", TABLES)
def test_one_entry_more_changes_no_other(name: str, table: str) -> None:
    entries, extra, declared = CASES[name]
    for at in (0, len(entries)):
        assert others_read_alike(TABLES[table], entries, extra, declared, at)
    rows = encode(TABLES[table]([*entries, extra]), Schema.from_dict({"columns": {"a": declared}}))
    assert len(rows) == len(entries) + 1  # none of these is refused


POOL: list[Any] = [0, 1, 2, 999, -1, *BIG[:2], 2**63, 2**64 + 5, 10**25, 0.0, 1.0, 1.5, 0.1, 1e20, 1e-7, float("inf")]
POOL += [True, False, np.int64(1), np.float32(0.1), np.True_, Decimal("1"), Decimal("1.00"), Decimal(0.1), None]
POOL += ["1", "1.0", "true", "x", "", "NA", "999", "2024-01-01", "1e3", float("nan"), pandas.NA, pandas.NaT]
POOL += [
    date(2000, 5, 5),
    datetime(2024, 1, 1),
    datetime(2024, 1, 1, tzinfo=KOLKATA),
    pandas.Timestamp("1930-02-03 4:05"),
]
DECLARED: list[Any] = [HASH, ["1", "2", "true"], {"bounds": [-1e30, 1e30], **ABSENT}, {"type": "bool", **ABSENT}, DATES]


@pytest.mark.parametrize("table", TABLES)
def test_no_entry_of_any_type_changes_another(table: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        kinds = rng.choice(len(POOL), size=rng.integers(1, 4), replace=False)
        entries = [POOL[k] for k in rng.choice(kinds, size=rng.integers(2, 8))]
        extra, declared = POOL[rng.integers(len(POOL))], DECLARED[rng.integers(len(DECLARED))]
        at = int(rng.integers(len(entries) + 1))
        assert others_read_alike(TABLES[table], entries, extra, declared, at), (entries, extra, declared, at)


def test_categories_of_pandas_are_read_one_by_one() -> None:
    column = pandas.Series(pandas.Categorical.from_codes([1, 0, 1], [Decimal("1.00"), Decimal("2.0")]))
    rows = encode(pandas.DataFrame({"a": column}), Schema.from_dict({"columns": {"a": ["1", "2"]}}))
    assert rows.argmax(1).tolist() == [1, 0, 1]


def test_large_numbers_of_parquet_do_not_notice_a_missing_one(tmp_path: Path) -> None:
    schema = Schema.from_dict({"columns": {"a": HASH}})
    rows = []
    for name, more in (("one", []), ("two", [None])):
        path = tmp_path / f"{name}.parquet"
        pandas.DataFrame({"a": pandas.array([*BIG, *more], dtype="Int64")}).to_parquet(path, index=False)
        rows += [numbers_of(read(path).frame, schema)[: len(BIG)]]
        rows += [np.concatenate([*ParquetColumns(path).encoded(schema)])[: len(BIG)]]
    assert all(np.array_equal(rows[0], other) for other in rows[1:])


def test_labels_do_not_notice_the_type_of_another() -> None:
    target = Target("y", "classification", ("true", "1", "0"))
    labels, _ = encode_target(pandas.Series([True, 1, 0, 1]), target)
    assert labels.tolist() == ["true", "1", "0", "1"]
    large = Target("y", "classification", (str(BIG[0]), "0"))
    for column in (BIG[:1] * 2, [*BIG[:1] * 2, None]):
        assert encode_target(pandas.Series(column), large)[0].tolist() == [str(BIG[0])] * 2
