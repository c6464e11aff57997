"""Secret draws and noised values: the only two things that a replay (`isthmus.audit.replay`) takes the place of.

What nobody may guess comes from the operating system's generator, through the functions here, and every value that is
noised passes `released`.  A replay trains twice, draws alike twice and puts the outputs of the first training in place
of the second's: it stands in for both.  Nothing it does is private, and the ledgers and statements of such a training
say so (`rehearsed`).  Nothing but `standing_in`, around a block of code, brings a stand-in here: no option does.

>>> len(token_bytes(8)), len(token_hex(8)), 0 <= randbelow(3) < 3, rehearsed()
(8, 16, True, False)
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # ledgers load no torch
    from torch import Tensor, dtype


class _StandIn(Protocol):
    """What a replay does in place of the operating system's generator and of mechanisms.

    bytes               the same bytes in both trainings
    mask, uniform, integers, subset    draws about n records, the same for those that both trainings have
    drew_by_place       told that random numbers were drawn by the place in a batch
    answer              the value that the world sees, in place of what `make` returns
    """

    def bytes(self, count: int) -> bytes: ...

    def mask(self, n: int, q: float) -> Tensor: ...

    def uniform(self, n: int) -> Tensor: ...

    def integers(self, high: int, size: int) -> Tensor: ...

    def subset(self, n: int, k: int) -> Tensor: ...

    def drew_by_place(self) -> None: ...

    def answer(self, name: str, handed: Handed, make: Callable[[], Tensor]) -> Tensor: ...


class Handed(Protocol):
    """What a mechanism is handed: a value, and by how much one record may move it in which norm."""

    @property
    def value(self) -> Tensor: ...
    @property
    def ord(self) -> float: ...
    @property
    def bound(self) -> float: ...
    @property
    def dtype(self) -> dtype | None: ...


_HERE: ContextVar[_StandIn | None] = ContextVar("isthmus_replay", default=None)


@contextmanager
def standing_in(stand_in: _StandIn) -> Iterator[None]:
    """A replay in this thread, for the length of a block."""
    token = _HERE.set(stand_in)
    try:
        yield
    finally:
        _HERE.reset(token)


def stand_in() -> _StandIn | None:
    """Who stands in here: nobody, but in a replay."""
    return _HERE.get()


def rehearsed() -> bool:
    """Whether this is a replay, whose noise can be taken away."""
    return _HERE.get() is not None


def token_bytes(count: int) -> bytes:
    """Bytes that nobody can guess."""
    here = _HERE.get()
    return os.urandom(count) if here is None else here.bytes(count)


def token_hex(count: int) -> str:
    """The same as text."""
    return token_bytes(count).hex()


def randbits(count: int) -> int:
    """A whole number of so many bits."""
    return int.from_bytes(token_bytes(-(-count // 8)), "little") >> (-count % 8)


def randbelow(high: int) -> int:
    """A whole number of 0, ..., high - 1, all alike."""
    return secrets.randbelow(high) if _HERE.get() is None else randbits(128) % high


def released(name: str, handed: Handed, make: Callable[[], Tensor]) -> Tensor:
    """What a mechanism made of what it was handed: every value that is noised passes here."""
    here = _HERE.get()
    return make() if here is None else here.answer(name, handed, make)
