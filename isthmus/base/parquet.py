"""Parquet and Feather files and folders of them, by pyarrow (extra `table`): names, types, some rows at a time.

Nothing here needs torch.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
        kind = ""
        with suppress(AttributeError):  # a dataset in memory
            kind = piece.format.default_extname
        validate.check(kind in ("parquet", "arrow"), "X", str(piece), "give a dataset of Parquet or Feather files")
        missing = [name for name in names if name not in piece.physical_schema.names]
        remedy = f"give files with the same columns: {piece.path} does not have these"
        validate.check(not missing, "X", f"columns {missing}", remedy)
        if kind == "arrow":
            batches = piece.to_batches(batch_size=rows, columns=names)
        else:
            file = parquet.ParquetFile(piece.open(), buffer_size=1 << 16, pre_buffer=False)
            groups = [group.id for group in piece.row_groups]
            batches = file.iter_batches(batch_size=rows, row_groups=groups, columns=names)
        for batch in batches:
            yield pyarrow.Table.from_batches([batch]).select(names)


def column_names(schema: Schema) -> list[str]:
    """The names of a file's columns; the row labels of a frame, which pandas saves under names of its own, are none."""
    return [str(name) for name in schema.names if not re.fullmatch(r"__index_level_\d+__", str(name))]


def matching(path: str | Path) -> list[Path]:
    """The file or folder of this name; where none has it, those that match it as a pattern, in the order of names.

    >>> matching("people.csv"), matching("nowhere/part-*.csv")
    ([PosixPath('people.csv')], [])
    """
    if not glob.has_magic(str(path)) or os.path.lexists(path):
        return [Path(path)]
    return [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]


def parquet_dataset(path: str | Path, argument: str = "X") -> Dataset:
    """The pyarrow dataset of Parquet or Feather files: one, all of a folder or of a pattern; errors name `argument`."""
    try:
        from pyarrow import ArrowException, dataset
    except ImportError:
        validate.refuse(argument, str(path), f"install pyarrow, which is needed to read it: {validate.extra('table')}")
    files, form = [str(file) for file in matching(path)], "parquet"
    validate.present(bool(files) and all(map(os.path.exists, files)), path, kind="File or folder")
    if str(path).lower().endswith((".feather", ".arrow")):
        form = "feather"
    try:
        data = dataset.dataset(files if len(files) > 1 else files[0], format=form)
    except (ArrowException, OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        validate.unreadable(path, f"give a folder of Parquet files and no others, or whole files ({why})")
    if not data.files:
        validate.unreadable(path, "give a folder with Parquet files; this one has none")
    return data
