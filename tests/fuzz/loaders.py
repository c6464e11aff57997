"""Files of rows: every file is read as a table that can be used, or refused; a private entry is never quoted."""

from __future__ import annotations

import bz2
import gzip
import io

import numpy as np
import scipy.sparse as sp

from fuzz.target import Target, a_file, check
from isthmus.runs import config
from isthmus.tables.files import Reading, Table, _types_of, columns_of, read
from isthmus.tables.infer import infer
from isthmus.tables.schema import Schema

ROWS = b'age,city,income\n31,Rome,"1,200.5"\n,Oslo,-3e2\n27,"a ""b""",7\n'


def _table(name: str, data: bytes, reading: Reading | None = None) -> Table:
    """The table in a file of this name: its parts agree."""
    with a_file(name, data) as path:
        names = columns_of(path, reading)
        _types_of(path)
        table = read(path, reading=reading)
        if table.frame is not None:
            check(
                names is not None and list(table.frame.columns) == names, "the header and the rows name other columns"
            )
        else:
            x = table.x
            check(x.ndim == 2 and (table.y is None or len(table.y) == x.shape[0]), "rows and targets differ")
            if sp.issparse(x):
                x.check_format()
                check(x.nnz == 0 or int(x.indices.max()) < x.shape[1], "an index beyond the columns")
        first, _ = table.part(0, 2)
        second, before = table.part(1, 2)
        check(first.n + second.n == table.n and before == first.n, "the parts are not the whole")
    return table


SEPARATORS = (None, ",", ";", "\t")
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16")


def csv(data: bytes) -> None:
    """The first byte says how to read it, and whether it is packed."""
    how = data[0] if data else 0
    reading = Reading(separator=SEPARATORS[how & 3], encoding=ENCODINGS[how >> 2 & 3])
    table = _table("rows.csv" + ("", ".gz", ".bz2", "")[how >> 4 & 3], data[1:], reading)
    for name in table.frame.columns if table.n else ():
        infer(name, table.frame[name], separator=table.separator)


def libsvm(data: bytes) -> None:
    """The first byte says how to read it."""
    how = data[0] if data else 0
    _table("rows.svm", data[1:], Reading(features=(None, 5, 10**9, 0)[how & 3], zero_based=bool(how & 4)))


def npz(data: bytes) -> None:
    """As it stands."""
    _table("rows.npz", data)


def parquet(data: bytes) -> None:
    """As it stands."""
    _table("rows.parquet", data)


def schema(data: bytes) -> None:
    """A schema that is read is written and read again as itself."""
    with a_file("schema.toml", data) as path:
        read = Schema.load(path)
    check(Schema.from_toml(read.to_toml()) == read, "a schema changes on the way through its text")


def configuration(data: bytes) -> None:
    """A configuration that is read is a dictionary that is read again."""
    with a_file("train.toml", data) as path:
        settings, _ = config.load(path, {})
    check(config.Settings.from_dict(settings.to_dict()) == settings, "settings change on the way through their text")


# ---------------------------------------------------------------- real files


def _csv_seeds() -> list[bytes]:
    return [
        b"\0" + ROWS,
        b"\2" + ROWS.replace(b",", b";"),
        b"\x10" + gzip.compress(ROWS, mtime=0),
        b"\x20" + bz2.compress(ROWS),
    ]


def _libsvm_seeds() -> list[bytes]:
    return [bytes([0]) + b"1 1:0.5 3:2\n-1 2:1 # c\n", bytes([4]) + b"1 qid:3 0:1\n"]


def _npz_seeds() -> list[bytes]:
    x, seeds = np.arange(6.0).reshape(3, 2), []
    rows = sp.csr_matrix(x)
    pieces = {"indptr": rows.indptr, "indices": rows.indices, "data": rows.data, "shape": np.array(rows.shape)}
    for arrays in ({"X": x, "y": np.arange(3)}, {"x_train": x, "y_train": np.arange(3)}, pieces | {"y": np.arange(3)}):
        for save in (np.savez, np.savez_compressed):
            out = io.BytesIO()
            save(out, **arrays)
            seeds.append(out.getvalue())
    return seeds


def _parquet_seeds() -> list[bytes]:
    import pandas

    out = io.BytesIO()
    frame = pandas.DataFrame({"a": [1.5, 2, 3], "b": ["x", None, "z"], "c": [True, False, True]})
    frame.to_parquet(out, index=False)
    return [out.getvalue()]


def _schema_seeds() -> list[bytes]:
    text = b'[target]\nname = "income"\ntask = "classification"\nclasses = ["a", "b"]\n[columns.age]\ntype = "number"\n'
    more = b'bounds = [0, 100]\n[columns.city]\ntype = "category"\ncategories = ["Rome", "Oslo"]\n'
    return [text + more, b'[columns."a.b"]\ntype = "date"\nbounds = [2020-01-01, 2021-01-01]\nformat = "%d/%m/%Y"\n']


def _config_seeds() -> list[bytes]:
    return [
        b'data = "a.csv"\ntarget = "income"\nepsilon = 1.5\nclasses = ["a", "b"]\nbounds = [-1, 1]\nseparator = ";"\n',
        b'data = "a.csv"\nepsilon = "inf"\nmax_iter = 5\n[target]\nname = "y"\n[columns.age]\ntype = "number"\n',
    ]


WORDS = [b"columns", b"bounds", b"categories", b"classes", b"target", b"type", b"buckets", b"format", b"source"]

TARGETS = [
    Target("csv", csv, _csv_seeds, (b"\r\n", b'""', b"\xef\xbb\xbf", b"\x1f\x8b", b"BZh9"), slow=4),
    Target("libsvm", libsvm, _libsvm_seeds, (b"qid:", b":")),
    Target("npz", npz, _npz_seeds, (b"PK\x03\x04", b"\x93NUMPY", b"'descr': '|O'", b"'shape': ("), slow=2),
    Target("parquet", parquet, _parquet_seeds, (b"PAR1",), slow=4),
    Target("schema", schema, _schema_seeds, WORDS),
    Target("config", configuration, _config_seeds, [*WORDS, b"epsilon", b"options", b"constraint"]),
]
