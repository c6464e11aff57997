"""Every argument check of the package, one line each at the call.

An error names the argument, the value it had and the remedy, and is raised before any data is read or
budget is spent.  All of them are `InvalidInput`, a `ValueError`.

>>> positive(radius=-1.0)
Traceback (most recent call last):
isthmus.base.validate.InvalidInput: radius=-1.0 is not allowed: give a finite number above 0
"""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

if TYPE_CHECKING:  # a ledger checks its arguments where torch is not loaded
    from torch import Tensor


class InvalidInput(ValueError):
    """A wrong argument: the message has its name, its value and what to do instead."""


def refuse(argument: str, value: object, remedy: str) -> NoReturn:
    """Raise `InvalidInput` in the package's one form."""
    raise InvalidInput(f"{argument}={_short(value)} is not allowed: {remedy}")


def check(ok: bool, argument: str, value: object, remedy: str) -> None:
    """Refuse `value` unless `ok`."""
    if not ok:
        refuse(argument, value, remedy)


UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)  # torch's are the last
"""What contents that nobody wrote raise while they are taken apart."""


@contextlib.contextmanager
def reading(argument: str, value: object, remedy: str) -> Iterator[None]:
    """Refuse a text or a tree that cannot be taken apart; nothing but its reading belongs inside.

    >>> with reading("plan", "{}", "give what to_json wrote"):
    ...     {}["items"]
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: plan='{}' is not allowed: give what to_json wrote (KeyError: 'items')
    """
    try:
        yield
    except InvalidInput:
        raise
    except UNREADABLE as error:
        advice = f"{remedy} ({type(error).__name__}: {error})"
        raise InvalidInput(f"{argument}={_short(value)} is not allowed: {advice}") from error


def require(ok: bool, sentence: str) -> None:
    """Refuse, in a sentence of its own, what cannot be shown as a value: an entry of private data, say."""
    if not ok:
        raise InvalidInput(sentence)


def extra(name: str) -> str:
    """How to install the packages of an extra: no package index has Isthmus, so a clone of it is where they are named.

    >>> extra("table")
    "in a clone of Isthmus, run: pip install -e '.[table]'"
    """
    return f"in a clone of Isthmus, run: pip install -e '.[{name}]'"


def present(exists: bool, path: object, remedy: str = "", kind: str = "File") -> None:
    """Refuse a file or folder that is not there; without a remedy, name what may have been meant.

    >>> present(False, "x.csv", "check the path")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: File not found: x.csv (check the path)
    """
    if not exists:
        raise InvalidInput(f"{kind} not found: {path} ({remedy or _meant(Path(str(path)))})")


def unreadable(path: object, why: str) -> NoReturn:
    """Refuse a file that is there and cannot be read, or does not hold what is needed.

    >>> unreadable("x.csv", "it is not utf-8 text; give its encoding, such as --encoding latin-1")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: Cannot read x.csv: it is not utf-8 text; give its encoding, such as \
--encoding latin-1
    """
    raise InvalidInput(f"Cannot read {path}: {why}")


def _meant(path: Path) -> str:
    """A file of a similar name in the same folder, or the folder that was searched."""
    try:
        there = list(path.parent.iterdir())
    except OSError:
        return f"there is no folder {path.parent} that can be read: check the path"
    stems = difflib.get_close_matches(path.stem, [entry.stem for entry in there], 1)  # ".csv" makes no names alike
    near = difflib.get_close_matches(path.name, [entry.name for entry in there if entry.stem in stems], 1, cutoff=0)
    if near:
        return f"did you mean {path.parent / near[0]}?"
    return f"check the name and the folder, {path.parent.resolve()}"


def known_format(where: str, written: object, reads: Iterable[object]) -> None:
    """Refuse what was written in a format that this version does not read: an earlier one, or a later one.

    >>> known_format("statement", "isthmus-statement-9", ["isthmus-statement-1"])
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: statement has the format 'isthmus-statement-9', and this version of Isthmus \
reads 'isthmus-statement-1': use the version of Isthmus that wrote it, or write it again
    """
    formats = list(reads)
    if written not in formats:
        readable = " or ".join(map(repr, formats))
        raise InvalidInput(
            f"{where} has the format {_short(written)}, and this version of Isthmus reads {readable}: "
            "use the version of Isthmus that wrote it, or write it again"
        )


def _numbers(kind: _Kinds, fits: Callable[[float], bool], remedy: str, /, **arguments: float) -> None:
    """Refuse each argument that is no number of this kind, or does not fit."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, kind) or not fits(value):
            refuse(name, value, remedy)


_Kinds = tuple[type, ...]
_WHOLE: _Kinds = (int, np.integer)
_REAL: _Kinds = (*_WHOLE, float, np.floating)
# each takes arguments by their names, such as positive(clip=1.0, step=0.1)
positive = partial(_numbers, _REAL, lambda value: 0 < value < math.inf, "give a finite number above 0")
non_negative = partial(_numbers, _REAL, lambda value: 0 <= value < math.inf, "give a finite number of at least 0")
open_unit = partial(_numbers, _REAL, lambda value: 0 < value < 1, "give a number strictly between 0 and 1")
probability = partial(_numbers, _REAL, lambda value: 0 < value <= 1, "give a number above 0 and at most 1")
positive_int = partial(_numbers, _WHOLE, lambda value: value >= 1, "give a whole number of at least 1")
non_negative_int = partial(_numbers, _WHOLE, lambda value: value >= 0, "give a whole number of at least 0")


def one_of(choices: Iterable[object], **arguments: object) -> None:
    """Each argument is one of `choices`."""
    allowed = tuple(choices)
    for name, value in arguments.items():
        check(value in allowed, name, value, f"choose one of {list(allowed)}")


def at_most(bound: float, what: str, **arguments: float) -> None:
    """Each argument is at most `bound`, which `what` names (m <= d, say)."""
    for name, value in arguments.items():
        check(value <= bound, name, value, f"give at most {bound}, which is {what}")


def shape(expected: tuple[int, ...], **arguments: Tensor) -> None:
    """Each tensor has the expected shape."""
    for name, value in arguments.items():
        found, wanted = tuple(value.shape), tuple(expected)
        check(found == wanted, f"{name}.shape", found, f"give a tensor of shape {wanted}")


def finite(**arguments: Tensor) -> None:
    """No tensor holds NaN or infinity."""
    for name, value in arguments.items():
        if not value.is_floating_point() or math.isfinite(float(value.detach().sum())):
            continue  # one sum in place of a mask: entries are counted only where it is not finite
        bad = int((~value.isfinite()).sum())
        if bad:
            raise InvalidInput(f"{name} holds {bad} NaN or infinite entries: remove or impute them first")


def as_tensor(name: str, value: object, *, ndim: int | None = None) -> Tensor:
    """A floating tensor from a tensor, array or sequence, without a copy where possible; NaN and inf refused."""
    import torch  # here alone: reports and ledgers are read without it

    wanted = torch.get_default_dtype()
    if not isinstance(value, torch.Tensor):
        wanted = torch.float64
        try:
            array = np.asarray(value)
        except Exception as error:  # ragged lists and the like
            raise InvalidInput(
                f"{name} cannot be read as an array ({type(error).__name__}): give a tensor or an array of numbers"
            ) from error
        check(array.dtype.kind in "fiub", f"{name}.dtype", str(array.dtype), "give real numbers")
        if not array.flags.writeable or any(stride < 0 for stride in array.strides):
            array = array.copy()
        if ndim:
            array = np.atleast_1d(array)
        value = torch.from_numpy(array)
    check(not value.is_complex(), f"{name}.dtype", value.dtype, "give real numbers")
    if not value.is_floating_point():
        value = value.to(wanted)
    check(ndim in (None, value.ndim), f"{name}.shape", tuple(value.shape), f"give {ndim} dimension(s)")
    finite(**{name: value})
    return value


def _short(value: object) -> str:
    text = repr(value)
    if len(text) > 80:
        text = text[:77] + "..."
    return text
