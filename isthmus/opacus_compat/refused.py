"""Names of Opacus that have no sound meaning here: they can be imported, and refuse to be used with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from isthmus.base import validate


class Refused:
    """The base of such names.

    >>> refused("StepNoise", "the noise is fixed")(optimizer=None)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: StepNoise='of Opacus' is not allowed: the noise is fixed
    """

    why = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(type(self).__name__, self.why)


def refused(name: str, why: str) -> type[Refused]:
    """A class of that name that says why it cannot be used."""
    return type(name, (Refused,), {"why": why})


def methods(why: str, *names: str) -> list[Callable[..., NoReturn]]:
    """Methods of these names that say why they cannot be called."""

    def method(name: str) -> Callable[..., NoReturn]:
        def refusing(self: object, *args: object, **kwargs: object) -> NoReturn:
            """Refused: see docs/migrating/opacus.md."""
            refuse(name, why)

        return refusing

    return [method(name) for name in names]


def refuse(name: str, why: str) -> NoReturn:
    """Say why a name of Opacus cannot be used."""
    validate.refuse(name, "of Opacus", why)
