"""Folders of Parquet files, and single ones that are large: columns by name, read when they are asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.arrow import ArrowTable, parquet_dataset
from isthmus.base.streamed import ChosenRows, DerivedRows, Streamed, kept_on_disk
from isthmus.tables.encode import encode
from isthmus.tables.schema import Schema

LARGE = 1 << 28
"""Parquet files of so many bytes are read in slices."""


def in_slices(path: Path) -> bool:
    """Whether a Parquet file is large, or a folder of files: by what the file system says of it."""
    return os.path.isdir(path) or path.stat().st_size >= LARGE


def stripped_names(column_names: Iterable[Any], file: Path) -> list[str]:
    """The names without the blanks around them, each of them once; one that is all blanks is named by its place.

    >>> stripped_names(["age", " city ", ""], Path("people.csv"))
    ['age', 'city', 'Unnamed: 2']
    """
    names = [str(name).strip() or f"Unnamed: {place}" for place, name in enumerate(column_names)]
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        validate.unreadable(file, f"the column names {twice} occur twice; rename these columns")
    return names


class ParquetFrame:
    """A table whose columns are read one at a time and whose rows are encoded a slice at a time.

    `rows_kept` are the rows that count, all where it is None.
    """

    def __init__(self, path: Path, table: ArrowTable | None = None, rows_kept: np.ndarray | None = None) -> None:
        self.path, self.rows_kept = path, rows_kept
        self.table = ArrowTable(parquet_dataset(path, "data")) if table is None else table
        self._names = dict(zip(stripped_names(self.table.names, path), self.table.names, strict=True))

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._names)

    def __len__(self) -> int:
        return self.table.n if self.rows_kept is None else len(self.rows_kept)

    def __getitem__(self, chosen: Any) -> Any:
        """A whole column as a pandas Series, or the table with the rows that a mask keeps."""
        if isinstance(chosen, str):
            name = self._names[chosen]
            series = self.table.table(0, self.table.n, [name]).to_pandas()[name].rename(chosen)
            return series if self.rows_kept is None else series.iloc[self.rows_kept].reset_index(drop=True)
        rows = np.flatnonzero(chosen) if self.rows_kept is None else self.rows_kept[np.asarray(chosen)]
        return ParquetFrame(self.path, self.table, rows)

    def encoded(self, schema: Schema) -> Streamed:
        """The rows as numbers, each by itself and by public rules: encoded in slices, kept in a scratch file."""
        names = [column.name for column in schema.columns if column.features and column.name in self._names]
        rows = _Frames(self.table, [self._names[name] for name in names], names)

        def numbers(frame: Any, where: Any) -> Tensor:
            return torch.from_numpy(encode(frame, schema))

        on_disk = kept_on_disk(DerivedRows(rows, numbers, len(schema.features), torch.float64))
        return on_disk if self.rows_kept is None else ChosenRows(on_disk, torch.from_numpy(self.rows_kept))


class _Frames:
    """Rows of a table as pandas frames, by range."""

    def __init__(self, table: ArrowTable, columns: list[str], names: list[str]) -> None:
        self.table, self.columns, self.names = table, columns, names
        self.shape = (table.n, len(columns))

    def __getitem__(self, span: slice) -> Any:
        frame = self.table.table(span.start, span.stop, self.columns).to_pandas()
        frame.columns = self.names
        return frame

    def take(self, index: Tensor) -> Any:
        """Some rows, in the given order: from the range that holds them."""
        if not len(index):
            return self[0:0]
        low = int(index.min())
        return self[low : int(index.max()) + 1].iloc[(index - low).numpy()].reset_index(drop=True)


def numbers_of(frame: Any, schema: Schema) -> Any:
    """The encoded rows of a frame: an array, or a matrix that is read in slices."""
    return frame.encoded(schema) if isinstance(frame, ParquetFrame) else encode(frame, schema)
