"""Headers and arrays that a long fuzz found: refused by name, where they ended in an error of a library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isthmus.base.validate import InvalidInput
from isthmus.tables.files import columns_of, read


def test_a_sparse_matrix_without_a_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, indptr=np.array([0, 1]), indices=np.array([0]), shape=np.array([], np.int64))
    with pytest.raises(InvalidInput, match="no CSR matrix"):
        read(path)


def test_names_in_broken_quotes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'\x00i,city,oi,c",",7\n')
    with pytest.raises(InvalidInput):
        columns_of(path)
