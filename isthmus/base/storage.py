"""Trees of plain values and tensors as files and as messages: without pickle, and nothing in them is run.

A file (safetensors) is the bytes of its tensors behind a JSON header with three entries: the name of its format, the
tree (in which tensors are references), and a seal: the SHA-256 of the tree and of every tensor.  The seal shows damage;
it is no signature, for whoever may write the file can forge a whole one.  A file is there whole or not at all.

Objects other than values and tensors are stored by the class that `register`s how.  Nothing that a file names is
ever imported: `isthmus.base.class_registry` finds a class only among those that are already there.

A message for a wire is one string of bytes:

    4 bytes   ISTH
    2 bytes   version
    8 bytes   length of the JSON
    8 bytes   length of the arrays
    16 bytes  BLAKE2b of all that follows: it shows damage on the way, and is no signature
    JSON      {"kind", "tree", "arrays": [[name, dtype, shape], ...]}
    arrays    their raw little-endian bytes, one after the other, in the order of the list

Whoever reads one trusts nothing: lengths must agree with the bytes that came before anything is allocated, kinds of
numbers and tags of the tree are the few that are written here, and every other string of bytes is refused with
`InvalidInput`.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from isthmus.base import class_registry, validate
from isthmus.base.atomic import atomic_write

Kind = TypeVar("Kind")

Made = TypeVar("Made")

Tensors = dict[str, Tensor]

Fields = dict[str, Any]


@dataclass(frozen=True)
class Format:
    """One kind of file: its name, who writes it, and the earlier formats that are still read.

    >>> import tempfile
    >>> notes = Format("notes-1", "the example")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     notes.write(folder + "/a", {"t": 3, "pair": (1.0, math.inf), "names": {1: None}, "w": torch.ones(2)})
    ...     tree = notes.read(folder + "/a", dict)
    ...     Path(folder, "a").write_bytes(Path(folder, "a").read_bytes()[:-1])
    ...     notes.read(folder + "/a", dict)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: path=... give a file written by the example; ... cut short, altered ...
    >>> tree["t"], tree["pair"], tree["names"], tree["w"]
    (3, (1.0, inf), {1: None}, tensor([1., 1.]))
    """

    name: str
    writer: str
    sealed: tuple[str, ...] = ()
    unsealed: tuple[str, ...] = ()

    def write(self, path: str | Path, tree: Mapping[str, object]) -> None:
        """Write the tree to one file; what cannot be stored is refused before the file is touched."""
        tensors: Tensors = {}
        text = json.dumps({name: _encode(value, name, tensors) for name, value in tree.items()}, allow_nan=False)
        with atomic_write(path) as partial:
            try:
                save_file(tensors, partial, metadata={"format": self.name, "tree": text, "seal": _seal(text, tensors)})
            except SafetensorError as error:  # its only trouble with tensors of ours is the disk
                raise OSError(str(error).rpartition("I/O error: ")[2]) from error

    def read(self, path: str | Path, make: Callable[[Fields], Made]) -> Made:
        """What `make` makes of the tree in a file; one that is missing, damaged or of another kind is refused."""
        remedy = f"give a file written by {self.writer}; this one is missing, cut short, altered or of another kind"
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # not a view of the file
            kind, text = header.get("format"), header.get("tree", "")
            whole = kind in self.unsealed or header.get("seal") == _seal(text, tensors)
            reads = (self.name, *self.sealed, *self.unsealed)
            if isinstance(kind, str) and kind.rpartition("-")[0] == self.name.rpartition("-")[0]:
                validate.known_format(f"path={str(path)!r}", kind, reads)
            validate.check(kind in reads and whole, "path", str(path), remedy)
            return make({name: _decode(value, tensors) for name, value in json.loads(text).items()})
        except validate.InvalidInput:
            raise
        except (OSError, SafetensorError, MemoryError, *validate.UNREADABLE) as error:
            raise validate.InvalidInput(f"path={str(path)!r} is not allowed: {remedy} ({error})") from error


# ---------------------------------------------------------------- objects that say how


_OBJECTS: dict[str, tuple[type, Callable[[Any], tuple[str | None, Fields]], Callable[[str | None, Fields], Any]]] = {}
"""By tag: a kind, an object as (a name or None, values), and the object that they are."""


def register(
    tag: str,
    kind: type[Kind],
    take: Callable[[Kind], tuple[str | None, Fields]] | None = None,
    make: Callable[[str | None, Fields], Kind] | None = None,
) -> None:
    """Store the dataclasses that are a `kind`, by the name of their class and their fields unless told otherwise.

    take, make  an object as (a name or None, values), and the object that they are

    A subclass needs nothing: it is found by its name among those that are imported when the file is read.
    """
    _OBJECTS[f"@{tag}"] = (
        kind,
        take or (lambda value: (class_registry.address(type(value)), fields_of(value))),
        make or (lambda name, inner: class_registry.imported(kind, str(name))(**inner)),
    )


def fields_of(value: Any) -> Fields:
    """The fields of a dataclass by name.

    >>> fields_of(Format("a", "b"))
    {'name': 'a', 'writer': 'b', 'sealed': (), 'unsealed': ()}
    """
    return {member.name: getattr(value, member.name) for member in fields(value)}


# ---------------------------------------------------------------- values


def _encode(value: object, path: str, tensors: Tensors) -> object:
    """A value as JSON; tensors and arrays become references into `tensors`, named by their path.

    >>> _encode({"a": [1, (2.5, None)], "b": -math.inf}, "x", {})
    {'a': [1, {'@tuple': [2.5, None]}], 'b': {'@float': '-inf'}}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"@float": repr(value)}
    if isinstance(value, (Tensor, np.ndarray)):
        return _encode_array(value, path, tensors)
    if isinstance(value, (list, tuple)):
        items = [_encode(item, f"{path}/{k}", tensors) for k, item in enumerate(value)]
        return items if isinstance(value, list) else {"@tuple": items}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("@") for key in value):
            return {key: _encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
        pairs = enumerate(value.items())
        return {"@dict": [[_encode(item, f"{path}/{k}.{j}", tensors) for j, item in enumerate(p)] for k, p in pairs]}
    for tag, (kind, take, _) in _OBJECTS.items():
        if isinstance(value, kind) and is_dataclass(value):
            name, inner = take(value)
            tree = {key: _encode(item, f"{path}/{key}", tensors) for key, item in inner.items()}
            return {tag: tree} if name is None else {tag: name, "fields": tree}
    remedy = (
        "give numbers, strings, arrays, lists, dicts, or sets that are dataclasses of them: nothing else can be stored"
    )
    validate.refuse(path, type(value).__name__, remedy)


def _encode_array(value: Tensor | np.ndarray, path: str, tensors: Tensors) -> Fields:
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        return {"@array": _encode(value.tolist(), path, tensors), "dtype": value.dtype.str}
    if isinstance(value, Tensor):
        tag, tensor = "@tensor", value
    else:
        numeric, remedy = value.dtype.kind in "fiub", "give an array of numbers or strings: others cannot be stored"
        validate.check(numeric, f"{path}.dtype", str(value.dtype), remedy)
        tag, tensor = "@numpy", torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    while path in tensors:  # {"a/b": x, "a": {"b": y}}
        path += "'"
    tensors[path] = tensor.detach().to("cpu", copy=True).contiguous()
    return {tag: path}


def _decode(tree: Any, tensors: Mapping[str, Tensor], tags: Collection[str] | None = None) -> Any:
    """What `encode` made a tree of; what is sent has no tags but some, for nothing that is sent names a class."""
    if isinstance(tree, list):
        return [_decode(branch, tensors, tags) for branch in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    inner: Any = tree.get(tag)
    if not tag.startswith("@"):
        return {key: _decode(branch, tensors, tags) for key, branch in tree.items()}
    validate.require(tags is None or tag in tags, f"what it holds ({tag[:20]})")
    if tag == "@float":
        return float(inner)
    if tag in ("@list", "@tuple", "@dict"):  # lists have no tag since format 2 of estimators
        return {"@list": list, "@tuple": tuple, "@dict": dict}[tag](_decode(branch, tensors, tags) for branch in inner)
    if tag == "@array":
        values, kind = _decode(inner, tensors), np.dtype(tree["dtype"])
        array = np.array(values, dtype=object if kind.kind == "O" else str)  # as wide as its texts, whatever is said
        fits = kind.kind in "OU" and array.dtype.itemsize <= kind.itemsize
        validate.check(fits, "path", tree["dtype"], "give a file as it was written: this array was altered")
        return array
    if tag == "@tensor":
        return tensors[inner]
    if tag == "@numpy":
        return tensors[inner].numpy()
    remedy = "use the version of Isthmus that wrote this file: this one cannot read what it holds"
    validate.check(tag in _OBJECTS, "path", tag, remedy)
    make = _OBJECTS[tag][2]
    if isinstance(inner, str):
        return make(inner, _decode(tree["fields"], tensors))
    return make(None, _decode(inner, tensors))


def _seal(text: str, tensors: Mapping[str, Tensor]) -> str:
    """One hash of the header's tree and of every tensor with its name and kind."""
    whole = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        whole.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        if value.numel():
            whole.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


MAGIC, VERSION = b"ISTH", 1

HEAD = struct.Struct("<4sHQQ16s")

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    + (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
}

TAGS = ("@float", "@tuple", "@tensor")
"""What may stand in a tree beside plain values: numbers that JSON has not, tuples, and references to arrays."""

_MAX_JSON_BYTES = 1 << 26
"""The JSON of a message is never longer than this."""


def pack(kind: str, tree: object) -> bytes:
    """A tree of values and tensors as bytes.

    >>> data = pack("note", {"t": 3, "w": torch.ones(2), "far": math.inf})
    >>> unpack(data, "note")
    {'t': 3, 'w': tensor([1., 1.]), 'far': inf}
    >>> unpack(data[:-1], "note")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: data=165 bytes ... is not allowed: give what was packed as a note: ... length
    """
    tensors: dict[str, Tensor] = {}
    encoded = _encode(tree, "", tensors)
    arrays = []
    for name, value in tensors.items():
        dtype = str(value.dtype).removeprefix("torch.")
        validate.check(dtype in DTYPES, name or "tensor", dtype, f"send one of {sorted(DTYPES)}")
        arrays.append([name, dtype, list(value.shape)])
    text = json.dumps({"kind": kind, "tree": encoded, "arrays": arrays}, allow_nan=False).encode()
    raw = b"".join(_raw(value) for value in tensors.values())
    return HEAD.pack(MAGIC, VERSION, len(text), len(raw), _digest(text + raw)) + text + raw


def unpack(data: bytes, kind: str) -> Any:
    """The tree that was packed as this kind; anything else is refused, whatever it is."""
    data = bytes(data)
    try:
        return _unpacked(data, kind)
    except (MemoryError, *validate.UNREADABLE) as error:
        what = f"its contents ({type(error).__name__})"
        if isinstance(error, validate.InvalidInput):
            what = str(error)
        remedy = f"give what was packed as a {kind}: what does not fit is {what}"
        raise validate.InvalidInput(f"data={len(data)} bytes {data[:8]!r}... is not allowed: {remedy}") from error


def checksum(w: Tensor) -> int:
    """64 bits of a hash of a vector's bytes.

    >>> checksum(torch.tensor([1.0, 2.0])) == checksum(torch.tensor([2.0, 1.0]))
    False
    """
    raw = w.detach().reshape(-1).contiguous().cpu().view(torch.uint8)
    return int.from_bytes(hashlib.sha256(raw.numpy().data).digest()[:8], "little")


@runtime_checkable
class Fingerprinted(Protocol):
    """What brings a digest of its own."""

    @property
    def fingerprint(self) -> str: ...


def fingerprint(value: object) -> str:
    """A digest of a value and of all tensors in it, to tell whether two machines have the same.

    >>> fingerprint({"a": torch.ones(2)}) == fingerprint({"a": torch.ones(2)}) != fingerprint({"a": torch.ones(3)})
    True
    """
    whole = hashlib.blake2b(digest_size=16)
    _add(value, whole.update)
    return whole.hexdigest()


def _add(value: object, update: Callable[[bytes], None]) -> None:
    """A value as bytes: tensors, numbers, words, tables of them, and what has a fingerprint of its own."""
    if isinstance(value, Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        update(_raw(value.detach().cpu()))
    elif isinstance(value, Fingerprinted):
        update(str(value.fingerprint).encode())
    elif isinstance(value, Mapping):
        for name, item in value.items():
            update(str(name).encode())
            _add(item, update)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(item, update)
    elif value is None or isinstance(value, (bool, int, float, str)):
        update(repr(value).encode())
    elif is_dataclass(value):
        update(f"{type(value).__name__} {value}".encode())
    else:
        update(f"{type(value).__name__} ".encode())


def _unpacked(data: bytes, kind: str) -> Any:
    validate.require(len(data) >= HEAD.size and data[:4] == MAGIC, "its first bytes")
    _, version, words, size, seal = HEAD.unpack_from(data)
    validate.require(version == VERSION, f"its version, {version}: this one reads version {VERSION}")
    validate.require(words <= _MAX_JSON_BYTES and HEAD.size + words + size == len(data), "its length")
    validate.require(seal == _digest(data[HEAD.size :]), "its digest: it was damaged on the way")
    tree = json.loads(data[HEAD.size : HEAD.size + words])
    validate.require(tree["kind"] == kind, "its kind")
    tensors, at = {}, HEAD.size + words
    for name, dtype, shape in tree["arrays"]:
        plain = isinstance(name, str) and name not in tensors and all(type(n) is int and n >= 0 for n in shape)
        validate.require(plain, "its list of arrays")
        length = math.prod(shape) * DTYPES[dtype].itemsize
        validate.require(at + length <= len(data), "the length of its arrays")
        tensors[name] = _tensor_of(data[at : at + length], DTYPES[dtype], shape)
        at += length
    validate.require(at == len(data), "the length of its arrays")
    return _decode(tree["tree"], tensors, TAGS)


def _tensor_of(raw: bytes, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if not raw:
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool and set(raw) - {0, 1}:
        raise ValueError("a truth value is 0 or 1")
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def _raw(value: Tensor) -> bytes:
    if value.numel() == 0:
        return b""
    return value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
