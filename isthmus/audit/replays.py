"""`replay`: a whole training on data and on a neighbour, with the same draws and the same released values.

    D   is trained on, and everything that is handed to a mechanism, and everything that comes out, is written down
    D   is trained on again: what differs now (times, names of runs) is not looked at
    D'  is trained on, with every draw about the common records as before, and the outputs of D in place of its own

What a mechanism is handed may then differ by one record's share and no more, in its norm; and everything that the
world sees of the two trainings must be equal to the bit: both know nothing of the data but the same noised values.  A
clip that is missing, a shape, a divisor, a message, a file or a number of rounds that follows the data shows as what it
is, whichever part of the training it comes from.  This finds mistakes.  It proves nothing about data that it was not
given, and it looks at no noise: `attack` does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import math
import pickle
import random
import re
import tempfile
import types
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, is_dataclass
from datetime import date, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from isthmus.base import randomness, secret, storage, validate
from isthmus.base.secret import Handed

Data = TypeVar("Data")
_LIMIT = 1 + 1e-9
"""Of movement over bound: the norm of a difference is itself computed."""
_REPEATS = 1e-6
"""How far, in bounds, two trainings on the same data may be apart: an accelerator adds up in any order."""
_WHILE = re.compile(r"\b\d+(\.\d+)? ?(ms|s|seconds|minutes)\b")
"""How long something took, in what is printed."""
_IN, _OUT, _NEVER = 2.0**-54, 1 - 2.0**-53, 1.0
"""Coins of a record that is always drawn, that is drawn where everybody is, and that never is."""


@dataclass(frozen=True)
class ReplayedRelease:
    """How far the record moved what one mechanism was handed, in the mechanism's norm, and by how much it may."""

    name: str
    moved: float
    bound: float
    ratio: float

    def __str__(self) -> str:
        return f"{self.name}: moved {self.moved:.6g} of {self.bound:.6g} ({self.ratio:.4f})"


@dataclass(frozen=True)
class Replayed:
    """What a replay saw.

    releases     everything that was noised, in its order
    differences  what the world sees and what is not equal: nothing, where a training is private
    unlike       what differs between two trainings on the same data, times for example: it was not compared
    refused      the error with which all trainings ended, or ""
    """

    releases: tuple[ReplayedRelease, ...]
    differences: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    refused: str = ""

    @property
    def holds(self) -> bool:
        """Whether every movement is within its bound and everything public is equal."""
        return self.ratio <= _LIMIT and not self.differences

    @property
    def ratio(self) -> float:
        """The largest movement, in bounds."""
        return max((release.ratio for release in self.releases), default=0.0)

    @property
    def worst(self) -> ReplayedRelease | None:
        """The release that moved furthest beyond, or closest to, its bound."""
        return max(self.releases, key=lambda release: release.ratio, default=None)

    def __str__(self) -> str:
        lines = [f"{len(self.releases)} releases were compared."]
        beyond = [release for release in self.releases if not release.ratio <= _LIMIT]
        if beyond:
            lines.append(f"One record moves {len(beyond)} of them by more than is stated:")
            lines += [f"  {release}" for release in beyond[:5]]
        elif self.worst is not None:
            lines.append(f"One record moves none of them by more than is stated; the furthest is {self.worst}.")
        if self.differences:
            lines.append(f"{len(self.differences)} public things differ, though the released values are the same:")
            lines += [f"  {difference}" for difference in self.differences[:10]]
        else:
            lines.append("Everything public is equal.")
        if self.refused:
            lines.append(f"All trainings ended alike: {self.refused}")
        return "\n".join(lines)


def replay(
    run: Callable[[Data], object],
    data: Data,
    neighbour: Data | None = None,
    *,
    at: int | None = None,
    takes_part: bool = True,
    seed: int = 0,
    catch: tuple[type[Exception], ...] = (),
) -> Replayed:
    """Train on data and on a neighbour, with one record more, one less, or one replaced, and compare what left them.

    run         trains on what it is given, through any of this library's doors, and returns what is made public: a
                model, its weights, a statement.  Prints, warnings and files in the working folder (a temporary one)
                are compared too.  What it needs beside the data it makes anew: a model, an optimiser, a ledger
    data        the records: an array, a tuple of arrays, a list, a table, a dict of arrays, a torch data set
    neighbour   the same with one record added, removed or replaced.  None: the same records, of which the one at `at`
                is in every random batch of the first training and in none of the second, for runs that take the number
                of records as public (the engine does)
    at          the place of that record; unless given, the first at which the two differ
    takes_part  whether the record is in every random batch of all records, or in none
    seed        of everything that is random: the same seed repeats a replay
    catch       errors that both trainings may end with; others are raised where both do

    Nothing of it is private: the noise comes from `seed`, and the statements and ledgers of these trainings say so.

    >>> from isthmus import PrivateRegressor
    >>> def run(rows):
    ...     model = PrivateRegressor(algorithm="dp_gd", bounds=(-3, 3), target_bounds=(-1, 1), n=50, max_iter=5)
    ...     return model.fit(rows[:, :2], rows[:, 2])
    >>> rows = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    >>> found = replay(run, rows, rows[1:])
    >>> found.holds, len(found.releases), 0.3 < found.ratio <= 1
    (True, 8, True)
    >>> def careless(rows):
    ...     print(f"the mean is {rows.mean():.3f}")
    ...     return run(rows)
    >>> print(replay(careless, rows, rows[1:]).differences[0])
    output['line 1']: 'the mean is 0.075' against 'the mean is 0.084'
    """
    validate.non_negative_int(seed=seed)
    place = _place(data, neighbour, at)
    if neighbour is None:
        neighbour = data
    beginning = [(get(), put) for get, put in _GENERATORS.values()]
    first = _Tape(seed, place, takes_part, present=place.more >= 0)
    again, other = first.again(present=place.more >= 0), first.again(present=place.more <= 0)
    for given, tape in ((data, first), (data, again), (neighbour, other)):
        try:
            _watched(run, given, tape)
        finally:
            for state, put in beginning:
                put(state)
    remedy = (
        "draw from the global generators of torch, NumPy and Python or from a seed, and make everything anew inside "
        "run: on the same data it handed other values to its mechanisms"
    )
    apart = max((release.ratio for release in again.moved), default=0.0)
    validate.check(apart <= _REPEATS, "run", f"a run that comes {apart:.3g} bounds apart", remedy)
    remedy = "put the record that differs first or last: the run draws about parts of the records"
    validate.check(not other.lost, "at", place.at, remedy)
    remedy = (
        "give a neighbour with a record replaced instead: random numbers were drawn by the place in a batch (dropout, "
        "augmentation), where a record more shifts those of the others; they are secret, so that this harms nobody"
    )
    validate.check(place.more == 0 or not other.by_place, "neighbour", "one record more or less", remedy)
    refused = ""
    if first.error is not None:
        if first.ended == other.ended and not isinstance(first.error, catch):
            raise first.error
        refused = first.ended
    unlike = _unequal(first.facts, again.facts)
    differing = [path for path in _unequal(again.facts, other.facts) if path not in set(unlike)]
    words = tuple(_told(path, again.facts, other.facts) for path in differing)
    return Replayed(tuple(other.moved), words, tuple(unlike), refused)


# ---------------------------------------------------------------- one training


_GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's": (lambda: torch.get_rng_state().numpy(), lambda state: torch.set_rng_state(torch.from_numpy(state))),
    "NumPy's": (np.random.get_state, np.random.set_state),
    "Python's": (random.getstate, random.setstate),
}
"""The public generators: every training begins with them as they were, and afterwards they are the user's."""


def _watched(run: Callable[[Data], object], data: Data, tape: _Tape) -> None:
    """One training, and everything that the world sees of it."""
    output, errors, result, raised = io.StringIO(), io.StringIO(), None, warnings.catch_warnings(record=True)
    with tempfile.TemporaryDirectory(prefix="isthmus-replay-") as parent, secret.standing_in(tape), raised as warned:
        folder = Path(parent) / "work"  # with the same name every time
        folder.mkdir()
        warnings.simplefilter("always")
        with contextlib.chdir(folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                result = run(data)
            except Exception as problem:
                tape.error, tape.ended = problem, f"{type(problem).__name__}: {problem}"
        tape.facts |= {"ended": tape.ended, "number of releases": tape.count}
        for name, (get, _) in _GENERATORS.items():
            tape.facts[f"state of {name} generator"] = _digest(pickle.dumps(get()))
        for name, text in (("output", output), ("errors", errors)):
            lines = _WHILE.sub("(a while)", text.getvalue()).splitlines()
            tape.facts |= _facts_of({f"line {k}": line for k, line in enumerate(lines, 1)}, name)
        for number, warning in enumerate(warned, 1):
            tape.facts[f"warning {number}"] = f"{warning.category.__name__}: {warning.message}"
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_dir():
                tape.facts[f"folder {name}"] = "here"
            else:
                tape.facts[f"file {name}"] = "here"
                tape.facts |= dict(_contents(f"contents of {name}", path.read_bytes()))
        tape.facts |= _facts_of(result)


# ---------------------------------------------------------------- which record differs


@dataclass(frozen=True)
class _Place:
    """Where the record is that differs: in which of n records, and who has it.

    more   1 where the data have it and the neighbour does not, -1 the other way, 0 where both have one
    at     None where the two are equal
    both   whether both have it, and it is drawn in one only
    """

    at: int | None
    n: int
    more: int
    both: bool = False

    def among(self, n: int) -> int | None:
        """Its place in a draw of n of the records: of some of them it must be the first or the last."""
        if self.at is None or n == self.n or self.at == 0:
            return self.at
        if self.at == self.n - 1:
            return n - 1
        return None


def _place(data: object, neighbour: object, at: int | None) -> _Place:
    if neighbour is None:
        n, remedy = _size(data), "give the place of the record that is drawn in one training and not in the other"
        if at is None or not -n <= at < n:
            validate.refuse("at", at, remedy)
        return _Place(at % n, n, 1, both=True)
    sizes = _size(data), _size(neighbour)
    more, n = sizes[0] - sizes[1], max(sizes)
    remedy = f"give one record more, one less or one replaced: the data have {sizes[0]} and this has {sizes[1]}"
    validate.check(abs(more) <= 1, "neighbour", f"{sizes[1]} records", remedy)
    if at is not None:
        validate.check(-n <= at < n, "at", at, f"give a place among {n} records")
        return _Place(at % n, n, more)
    both = _columns(data), _columns(neighbour)
    for k in range(min(sizes)):
        ours, theirs = (_facts_of([column[k] for column in columns]) for columns in both)
        if _unequal(ours, theirs):
            return _Place(k, n, more)
    if more == 0:
        return _Place(None, n, more)
    return _Place(n - 1, n, more)


def _size(data: object) -> int:
    column = _columns(data)[0]
    if sp.issparse(column):
        return int(column.shape[0])
    if not isinstance(column, Sized) or not hasattr(column, "__getitem__"):
        kinds = "an array, a tuple or dict of arrays, a list, a table or a torch data set"
        validate.refuse("data", type(column).__name__, f"give {kinds}, whose records can be compared")
    return len(column)


def _columns(data: Any) -> list[Any]:
    """What has the records by their places: one array, or those of a tuple or a dict of them."""
    if isinstance(data, Mapping):
        data = tuple(data.values())
    if isinstance(data, tuple):
        return [column for part in data for column in _columns(part)]
    if sp.issparse(data):
        return [data.tocsr()]
    if hasattr(data, "to_numpy"):  # a table, of any library
        return [data.to_numpy()]
    return [data]


# ---------------------------------------------------------------- what stands in


@dataclass
class _Tape:
    """Stands in for secret draws and mechanisms: of the first training it keeps, of the others it gives and compares.

    Draws are numbered by their kind and, but for those about records, by the releases before them, so that a training
    that draws more noise than another meets the same draws again.
    """

    seed: int
    place: _Place
    takes_part: bool
    present: bool
    """Whether this training has the record."""
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Of every release of the first training what was handed to its mechanism, and what came out."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Of how many records the first training drew, by draw."""
    first: bool = True
    count: int = 0
    by_place: bool = False
    lost: bool = False
    """Whether a draw was about some of the records, and where the one that differs is among them is not known."""
    moved: list[ReplayedRelease] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    _noising: bool = False
    _before: int | None = None
    """How many records of the latest batch are in front of the one that differs."""
    error: Exception | None = None
    ended: str = "well"

    def again(self, present: bool) -> _Tape:
        """For another training, after the first."""
        return _Tape(self.seed, self.place, self.takes_part, present, self.kept, self.sizes, False)

    # ------------------------------------------------------------ draws

    def bytes(self, count: int) -> bytes:
        """Bytes by the number of releases and of draws since: noise apart from all others."""
        return self._generator(f"bytes {self.count} {self._noising}").bytes(count)

    def uniform(self, n: int) -> Tensor:
        """Numbers in (0, 1), one for each of n records."""
        if self._noising:
            return torch.from_numpy(self._cells(self._generator("noise"), n))
        return torch.from_numpy(self._of_records("uniform", n, self._cells, self.place.among))

    def mask(self, n: int, q: float) -> Tensor:
        """Which of n records are in a batch."""
        member = self.uniform(n) < q
        at = self.place.among(max(n, self.sizes[f"uniform {self._numbers['uniform']}"]))
        self._before = None
        if at is not None:
            self._before = int(member[:at].sum())
        return member

    def integers(self, high: int, size: int) -> Tensor:
        """Whole numbers, one for each record of the latest batch."""
        draw = lambda rng, count: rng.integers(high, size=count)  # noqa: E731
        if self._noising:
            return torch.from_numpy(draw(self._generator("noise"), size))
        return torch.from_numpy(self._of_records("integers", size, draw, self._in_batch, forced=False))

    def _in_batch(self, count: int) -> int | None:
        """The place of the record that differs in the latest batch."""
        if self._before is None:
            return self.place.among(count)
        return min(self._before, count - 1)

    def subset(self, n: int, k: int) -> Tensor:
        """k of n records, the one that differs always or never among them."""
        order = np.argsort(self._of_records("subset", n, self._cells, self.place.among))
        return torch.from_numpy(np.sort(order[:k]))

    def drew_by_place(self) -> None:
        """Random numbers were drawn by the place in a batch."""
        self.by_place = True

    def _generator(self, kind: str) -> np.random.Generator:
        self._numbers[kind] += 1
        return randomness.generator(self.seed, "replay", kind, self._numbers[kind])

    @staticmethod
    def _cells(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.clip(rng.random(n), _IN, _OUT)

    def _of_records(
        self,
        kind: str,
        n: int,
        draw: Callable[[np.random.Generator, int], np.ndarray],
        where: Callable[[int], int | None],
        forced: bool = True,
    ) -> np.ndarray:
        """Draws about n records: those of the first training, without or with one for the record that differs."""
        generator = self._generator(kind)
        name = f"{kind} {self._numbers[kind]}"
        size = self.sizes.setdefault(name, n)
        drawn = draw(generator, size)
        own: float = _OUT
        if not forced:
            own = draw(generator, 1)[0]
        elif self.place.both and not self.present:
            own = _NEVER
        elif self.takes_part:
            own = _IN
        longer = max(n, size)
        at = where(longer)
        if abs(n - size) == 1 and at is None:
            self.lost, at = True, longer - 1  # said when the run is over: it may catch errors
        if at is not None and n == size - 1:
            drawn = np.delete(drawn, at)
        elif at is not None and n == size + 1:
            drawn = np.insert(drawn, at, own)
        elif n != size:
            drawn = draw(generator, n)
        known = self.place.more >= 0  # else it is in no draw of the first training, and comes in by the insertion
        if forced and known and at is not None and n == longer and (n == self.place.n or not self.place.both):
            drawn[at] = own
        return drawn

    # ------------------------------------------------------------ releases

    def answer(self, name: str, handed: Handed, make: Callable[[], Tensor]) -> Tensor:
        """What the first training released, whatever was handed."""
        value = handed.value.detach().cpu().clone()
        told_of = f"release {self.count + 1} ({name})"
        self.facts |= {f"{told_of}: norm": handed.ord, f"{told_of}: bound": handed.bound}
        self.facts |= {f"{told_of}: shape": tuple(value.shape), f"{told_of}: dtype": str(handed.dtype or value.dtype)}
        place, self.count = self.count, self.count + 1
        if not self.first and place < len(self.kept) and self.kept[place][0].shape == value.shape:
            before, released = self.kept[place]
            moved, bound = _distance(before, value, handed.ord), handed.bound * (1 + (self.place.more == 0))
            ratio = math.inf
            if moved == 0:
                ratio = 0.0
            elif math.isfinite(bound):
                ratio = moved / bound
            self.moved.append(ReplayedRelease(told_of, moved, bound, ratio))
            return released.clone()
        self._noising = True
        try:
            made = make()
        finally:
            self._noising = False
        if self.first:
            self.kept.append((value, made.detach().clone()))
        else:
            self.moved.append(ReplayedRelease(told_of, math.inf, handed.bound, math.inf))
        return made


def _distance(one: Tensor, other: Tensor, ord: float) -> float:
    """How far two values are apart; what is no finite number is apart from everything."""
    if not (torch.isfinite(one).all() and torch.isfinite(other).all()):
        return math.inf
    gap = (one.double() - other.double()).abs().reshape(-1)
    if not gap.any():
        return 0.0
    largest = float(gap.max())
    return float(torch.linalg.vector_norm(gap / largest, ord)) * largest


# ---------------------------------------------------------------- what the world sees, taken apart

Facts = dict[str, object]
"""Texts, numbers and arrays by the path on which they were found."""
_Parts = list[tuple[str, object]]
_PLAIN = (str, int, float, complex, bool, bytes, type(None), np.generic)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial)
_TABLES = frozenset(("_parameters", "_buffers", "_modules"))
_MODULE = frozenset(vars(nn.Module())) - _TABLES - {"training"}
"""What torch keeps in every module: hooks, which are no facts about the data."""
_LONG = 160
_DAYS = "|".join((date.today() + timedelta(days=k)).isoformat() for k in (-1, 0, 1))
_MOMENT = re.compile(rf"({_DAYS})[T ]\d\d:\d\d:\d\d[0-9.:+Z]*")
_NAMES = re.compile("[0-9a-f]{16,}")
"""Names drawn at random: in a path they stand for themselves, whatever they are."""


def _facts_of(value: object, name: str = "result") -> Facts:
    """Everything in a value, whatever it is made of.

    >>> _facts_of({"w": np.ones(2), "privacy": ("yes", 1.0)})["result['privacy'][1]"]
    1.0
    """
    found: Facts = {}
    seen: dict[int, object] = {}  # kept alive, so that no other gets its place in memory
    waiting = [(name, value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, Enum) or not isinstance(item, _PLAIN):
            if id(item) in seen and not isinstance(item, (Tensor, np.ndarray, Enum)):
                found[path] = "seen elsewhere"
                continue
            seen[id(item)] = item
        leaf, parts = _opened(item)
        found[_NAMES.sub("...", path)] = leaf
        waiting += [(path + suffix, part) for suffix, part in parts]
    return found


def _opened(item: object) -> tuple[object, _Parts]:
    """What is said of a value itself, and its parts."""
    if isinstance(item, Enum):
        return str(item), []
    if isinstance(item, str):
        return _text(item)
    if isinstance(item, _PLAIN):
        return item, []
    if isinstance(item, Tensor):
        numbers = item.detach().cpu().to_dense()
        if numbers.dtype is torch.bfloat16:  # which numpy does not have
            numbers = numbers.to(torch.float64)
        return numbers.numpy().copy(), []
    if isinstance(item, np.ndarray):
        if item.dtype == object:
            return f"array of {item.shape}", [(f"[{i}]", part) for i, part in enumerate(item.reshape(-1).tolist())]
        return item.copy(), []
    if isinstance(item, torch.Generator):
        return _digest(item.get_state().numpy().tobytes()), []
    if isinstance(item, np.random.Generator):
        return json.dumps(item.bit_generator.state, default=str), []
    if isinstance(item, Mapping):
        keys = [repr(key) for key in item]
        return f"{type(item).__name__} of {keys}", [(f"[{key!r}]", part) for key, part in item.items()]
    if isinstance(item, (list, tuple)):
        return f"{type(item).__name__} of {len(item)}", [(f"[{i}]", part) for i, part in enumerate(item)]
    if isinstance(item, (set, frozenset)):
        return f"{sorted(map(repr, item))}", []
    if isinstance(item, _NAMED):
        return getattr(item, "__qualname__", type(item).__name__), []
    if isinstance(item, nn.Module):
        return type(item).__qualname__, [(f".{k}", v) for k, v in vars(item).items() if k not in _MODULE]
    attributes: Mapping[str, object] = {}
    if hasattr(item, "__dict__"):
        attributes = vars(item)
    elif is_dataclass(item):  # with slots
        attributes = storage.fields_of(item)
    return type(item).__qualname__, [(f".{name}", part) for name, part in attributes.items()]


def _text(text: str) -> tuple[str, _Parts]:
    """A text, its moments of today left out: they tick between one training and the next; JSON in it is read."""
    if text[:1] in "{[":
        with contextlib.suppress(ValueError):
            return "JSON", [("", json.loads(text))]
    return _MOMENT.sub("(a moment ago)", text), []


def _digest(data: bytes) -> str:
    """A short name for many bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def _contents(name: str, data: bytes) -> Iterator[tuple[str, object]]:
    """What is in a file: archives are opened, JSON is read, of other texts every line is compared by itself."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from _contents(f"{name}/{member}", archive.read(member))
        return
    size = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and 8 < size <= len(data) - 8:  # safetensors, whose header is in any order
        header = json.loads(json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True))
        yield from _facts_of(header, f"{name}, header").items()
        yield f"{name}, tensors", data[8 + size :]
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield name, data
        yield f"{name}, size", len(data)
        return
    if _text(text)[1]:  # JSON
        yield from _facts_of(text, name).items()
        return
    yield f"{name}, lines", text.count("\n")
    for number, line in enumerate(text.splitlines(), 1):
        yield from _facts_of(line, f"{name}, line {number}").items()


def _unequal(ours: Facts, theirs: Facts) -> list[str]:
    """The paths on which two runs differ, in the order of the first."""
    paths = dict.fromkeys([*ours, *theirs])
    return [path for path in paths if not (path in ours and path in theirs and _same(ours[path], theirs[path]))]


def _same(one: object, other: object) -> bool:
    """Equal to the bit, in type and shape too; NaN equals NaN, and 0 is not -0."""
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        alike = type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    return type(one) is type(other) and repr(one) == repr(other)


def _told(path: str, ours: Facts, theirs: Facts) -> str:
    """A difference in words."""
    if path not in ours:
        return f"{path}: only with the neighbour, {_short(theirs[path])}"
    if path not in theirs:
        return f"{path}: not with the neighbour, {_short(ours[path])}"
    one, other = ours[path], theirs[path]
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape and one.shape:
        for place, (first, second) in enumerate(zip(one.reshape(-1), other.reshape(-1), strict=True)):
            if not _same(first, second):
                return f"{path}: at place {place} {first!r} against {second!r}"
    return f"{path}: {_short(one)} against {_short(other)}"


def _short(value: object) -> str:
    text = repr(value)
    return text[:_LONG] + "..." * (len(text) > _LONG)
