"""Classes that are known because they were imported: a part is found by what it says of itself, never by a list.

A file may name a class of somebody else's.  It is looked up among those that this process has imported already: reading
a file imports nothing, and finds nothing but subclasses of the kind that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from isthmus.base import validate

Kind = TypeVar("Kind")


def subclasses(kind: type[Kind]) -> Iterator[type[Kind]]:
    """All classes below one, nearest first, each once.

    >>> class Shape: ...
    >>> class Round(Shape): ...
    >>> class Ball(Round): ...
    >>> [kind.__name__ for kind in subclasses(Shape)]
    ['Round', 'Ball']
    """
    level, visited = [kind], {kind}
    while level:
        level = [below for above in level for below in type.__subclasses__(above) if below not in visited]
        visited.update(level)
        yield from dict.fromkeys(level)


def address(kind: type) -> str:
    """Where a class was defined, as "module:name"; its name alone for one of this library, which may move it.

    >>> address(validate.InvalidInput), address(KeyError)
    ('InvalidInput', 'builtins:KeyError')
    """
    if kind.__module__.split(".")[0] == __name__.split(".")[0]:
        return kind.__qualname__
    return f"{kind.__module__}:{kind.__qualname__}"


def imported(kind: type[Kind], where: str, argument: str = "path") -> type[Kind]:
    """The class at an address, among the subclasses of `kind` that were imported; none: `argument` is refused.

    >>> imported(Exception, "builtins:KeyError")
    <class 'KeyError'>
    """
    kinds = [
        candidate
        for candidate in (kind, *subclasses(kind))
        if where in (address(candidate), f"{candidate.__module__}:{candidate.__qualname__}")
    ]
    remedy = f"import the module that defines this {kind.__name__} first: reading a file never imports code"
    validate.check(bool(kinds), argument, where, remedy)
    return kinds[-1]  # a class that was defined again replaces its elder
