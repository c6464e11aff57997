"""What a benchmark is made of: comparisons with peers, growths with a size, goals."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

EXPONENT = "exponent"
Facts = dict[str, float | str]


class Skipped(Exception):
    """A way that cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Work:
    """Something to be timed.

    call    what is timed
    facts   figures that are no times, found after the timing: errors beside a reference, bits, accuracies
    units   how many of what is reported a call does (steps of a loop)
    """

    call: Callable[[], object]
    facts: Callable[[], Facts] = dict
    units: int = 1


@dataclass(frozen=True)
class Goal:
    """A figure that was asked for.

    against   a peer, whose time divides ours; or the name of a fact of ours; of a `Growth`, `EXPONENT`
    at_most   the largest figure that meets it
    ours      which of our ways; all of them when empty
    cause     why it is missed where it is: shown only when the measurement misses it
    fact      what is divided by the peer's in place of times: a fact that both have
    """

    against: str
    at_most: float
    ours: str = ""
    cause: str = ""
    fact: str = ""


@dataclass(frozen=True)
class PeerBenchmark:
    """The same work done in several ways, ours and those of peers, timed in turn.

    name      the family, a dash and what it is about
    title     what one call does, with its sizes
    build     (way, quick) -> `Work`; raises `Skipped`, or ModuleNotFoundError of a peer that is not installed
    ours      our ways
    peers     the others, the limit of the hardware included
    goals     ratios that were asked for
    only      the peers that are peers of some of our ways alone, with these
    apart     every way in its own process: for memory
    device    on a GPU, one way after the other; skipped where there is none, but for a quick run
    shares    contests of a device with the same word here are measured way by way: what is built for one serves all
    threads   of each process; 0 stands for all processors
    rounds    how often each way is timed (the median and the quartiles are of these)
    seconds   after so many seconds no further round begins
    """

    name: str
    title: str
    build: Callable[[str, bool], Work]
    ours: tuple[str, ...]
    peers: tuple[str, ...]
    goals: tuple[Goal, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    apart: bool = False
    device: bool = False
    shares: str = ""
    threads: int = 1
    rounds: int = 15
    seconds: float = 12.0

    def ways(self, quick: bool) -> tuple[str, ...]:
        """All ways by name."""
        return (*self.ours, *self.peers)

    def wanted(self) -> tuple[str, ...]:
        """All ways, the most wanted first: what ours are compared with, ours, the other peers."""
        return (*self.peers[:1], *self.ours, *self.peers[1:])

    def make(self, way: str, quick: bool) -> Work:
        """The work of a way."""
        return self.build(way, quick)

    def beside(self, own: str) -> tuple[str, ...]:
        """The peers of one of our ways."""
        return tuple(peer for peer in self.peers if own in self.only.get(peer, (own,)))


@dataclass(frozen=True)
class Growth:
    """One work at several sizes; reported is the slope of log time over log size.

    variable     what grows: d, n, batch, m
    build        size -> `Work`
    sizes        of a whole run
    few          of a quick one
    goals        the exponent that was asked for
    """

    name: str
    title: str
    variable: str
    build: Callable[[int], Work]
    sizes: tuple[int, ...]
    few: tuple[int, ...]
    goals: tuple[Goal, ...] = ()
    threads: int = 1
    rounds: int = 7
    seconds: float = 3.0

    def ways(self, quick: bool) -> tuple[str, ...]:
        """The sizes as words."""
        return tuple(map(str, self.few if quick else self.sizes))

    def make(self, way: str, quick: bool) -> Work:
        """The work of a size."""
        return self.build(int(way))


Benchmark = PeerBenchmark | Growth


def need(package: str, where: str = "") -> None:
    """Skip a way whose package is not there, before anything is built.

    >>> need("numpy")
    >>> need("no_such_package", "no such extra")
    Traceback (most recent call last):
    lab.bench.cases.Skipped: no_such_package is not installed (no such extra)
    """
    if importlib.util.find_spec(package) is None:
        raise Skipped(f"{package} is not installed" + (f" ({where})" if where else ""))


def need_memory(size: float) -> None:
    """Skip a work that would take more bytes than half of what this machine has to give."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return
    available = next((line for line in info.read_text().splitlines() if line.startswith("MemAvailable")), "")
    if available and size > 1024 * int(available.split()[1]) / 2:
        raise Skipped(f"it needs {size / 2**30:.1f} GiB, more than half of what is free")
