"""Parquet files and folders of them, by pyarrow (extra `table`): names, types, some rows at a time; no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.base import validate

if TYPE_CHECKING:
    from pyarrow import Schema, Table
    from pyarrow.dataset import Dataset


def tables_of(dataset: Dataset, columns: Sequence[str], rows: int = 1 << 16) -> Iterator[Table]:
    """Some columns of a dataset of Parquet files as pyarrow tables of so many rows, in order; the first has none.

    Row groups are often large: they are read with a small buffer, and never held whole.
    """
    import pyarrow
    from pyarrow import parquet

    names = list(columns)
    yield pyarrow.schema([dataset.schema.field(name) for name in names]).empty_table()
    for piece in dataset.get_fragments():
        try:
            groups = [group.id for group in piece.row_groups]
        except AttributeError:
            validate.refuse("X", str(piece), "give a dataset of Parquet files")
        file = parquet.ParquetFile(piece.open(), buffer_size=1 << 16, pre_buffer=False)
        missing = [name for name in names if name not in file.schema_arrow.names]
        remedy = f"give files with the same columns: {piece.path} does not have these"
        validate.check(not missing, "X", f"columns {missing}", remedy)
        for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=names):
            yield pyarrow.Table.from_batches([batch]).select(names)


def column_names(schema: Schema) -> list[str]:
    """The names of a file's columns; the row labels of a frame, which pandas saves under names of its own, are none."""
    return [str(name) for name in schema.names if not re.fullmatch(r"__index_level_\d+__", str(name))]


def parquet_dataset(path: str | Path, argument: str = "X") -> Dataset:
    """The pyarrow dataset of a Parquet file or a folder of them; `argument` is what errors name."""
    try:
        from pyarrow import ArrowException, dataset
    except ImportError:
        validate.refuse(argument, str(path), f"install pyarrow, which is needed to read it: {validate.extra('table')}")
    validate.present(os.path.exists(path), path, kind="File or folder")
    try:
        data = dataset.dataset(str(path), format="parquet")
    except (ArrowException, OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        validate.unreadable(path, f"give a folder of Parquet files and no others, or one file ({why})")
    if not data.files:
        validate.unreadable(path, "give a folder with Parquet files; this one has none")
    return data
