"""The rows of a table as numbers, for an estimator: in memory, or in slices where they are many."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
import torch

from isthmus.base.streamed import ChosenRows, Streamed, kept_on_disk
from isthmus.tables.encode import NamedColumns, encode
from isthmus.tables.files import ParquetColumns
from isthmus.tables.schema import Schema

_LARGE = 1 << 28
"""Parquet files of so many bytes are read in slices."""

Rows: TypeAlias = np.ndarray | sp.csr_matrix | Streamed
"""Rows as numbers."""


def numbers_of(frame: NamedColumns, schema: Schema) -> np.ndarray | Streamed:
    """The encoded rows of a table: an array; of a folder or a large file, slices that are kept in a scratch file."""
    if not isinstance(frame, ParquetColumns) or frame.file.is_file() and frame.file.stat().st_size < _LARGE:
        return encode(frame, schema)
    on_disk = kept_on_disk(frame.encoded(schema), len(schema.features))
    if len(frame) == on_disk.shape[0]:
        return on_disk
    return ChosenRows(on_disk, torch.from_numpy(frame.kept))
