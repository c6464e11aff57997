"""docs/tables.md: its schema is one, its table of readings is true."""

import re
from pathlib import Path

from isthmus.tables.columns import _without_marks, number
from isthmus.tables.schema import Schema

TEXT = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


def test_the_schema_is_one() -> None:
    schema = Schema.from_toml(TEXT.split("```toml\n")[1].split("```")[0])
    assert schema.target is not None and schema.target.classes == ("low", "high")
    types = [column.type for column in schema.columns]
    assert types == ["number", "category", "hash", "bool", "id", "drop", "date", "number", "date"]


def test_the_table_of_readings_is_true() -> None:
    lines = TEXT.split("| entry | read as | |")[1].splitlines()
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in lines if line.startswith("| `")}
    for entries, values in rows.items():
        signs = (
            (",", None) if "with `--decimal ,`" in entries else (".", "") if "semicolons" in entries else (".", None)
        )
        words = [word for word in re.findall(r"`([^`-]*|-€3|729.5-)`", entries) if "/" not in word]
        read = [number(_without_marks(word), *signs) for word in words]
        if "beside" in entries:  # told by the whole column
            continue
        told = [float(value) for value in re.findall(r"-?\d+(?:\.\d+)?", values)]
        assert [value for value in read if value == value] == told, entries
