"""From clipped vectors to integer vectors whose norm is bounded for certain.

A vector of length at most C is divided by the grid and rounded at random, up or down, without bias: its squared
length in grid steps is then (C / grid)^2 + m / 4 on average at most, give or take.  What is promised is more than
what is likely: the squared length of the integers is computed exactly, and a vector beyond `limit` is rounded anew, a
few times, and then towards zero, which makes nothing longer.  So every row that is returned has squared length at
most `limit`, whatever it was, and the noise is scaled to that.  Up to the share of vectors that are rounded anew
(about 1 in 1,000 of those of full length) the integers have the vector over the grid as their mean.

>>> import numpy as np
>>> from isthmus.privacy import SeededSource
>>> limit = _squared_limit(10.0, 4)
>>> int((to_integers(np.full((1, 4), 7e9), 10.0, limit, SeededSource(0)) ** 2).sum()) <= limit
True

What the server and all clients of a round agree on beforehand: public numbers, and all that follows from them.

>>> plan = SecurePlan(clients=100, m=10_000, bound=1.0, noise_multiplier=1.0, dropouts=10, peak=0.08)
>>> plan.needed, plan.bits, plan.vector_bytes
(90, 14, 17500)
>>> round(plan.sensitivity * plan.grid, 4), plan.packing, plan.counted
(1.01, 16, 86)
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate
from isthmus.distributed.secagg.crypto import digest
from isthmus.distributed.secagg.shamir import CLIENTS, ELEMENTS, PACKINGS
from isthmus.distributed.secagg.wire import WIDEST, packed_length
from isthmus.privacy import Adjacency, Poisson, PrivacyStatement, Source
from isthmus.privacy.event_json import DpEvent, SkellamDpEvent
from isthmus.privacy.skellam import MAX_VARIANCE, variance_for
from isthmus.privacy.statement import Account

_LONGEST = 1 << 28
"""The longest vector, in grid steps: squares of its numbers add up in 64 bits."""

_TRIES = 8


def _squared_limit(steps: float, m: int) -> int:
    """The promised squared length of m integers that were `steps` = C / grid long: its mean and three deviations more.

    With errors e of mean 0 and variance at most 1/4, ||v + e||^2 - E = 2 v'e + (||e||^2 - E): the two have
    deviations of at most ||v|| and sqrt(m) / 4.
    """
    validate.at_most(_LONGEST, "the longest vector in grid steps: take a coarser grid", steps=steps)
    return math.floor(steps**2 + m / 4 + 3 * (steps + math.sqrt(m) / 4))


def to_integers(rows: NDArray[np.float64], steps: float, limit: int, noise: Source) -> NDArray[np.int64]:
    """Each row (in grid steps) clipped to `steps`, rounded to integers of squared length at most `limit`.

    A row with anything that is no finite number counts as zero.
    """
    values = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    peak = np.abs(values).max(axis=1, initial=0.0)[:, None]
    values = values / np.maximum(peak, 1e-300)  # squares neither overflow nor vanish
    values *= np.minimum(peak, steps / np.maximum(np.linalg.norm(values, axis=1)[:, None], 1.0))
    out = np.zeros(values.shape, np.int64)
    undrawn = np.arange(len(values))
    for _ in range(_TRIES):
        down = np.floor(values[undrawn])
        up = noise.uniform(values[undrawn].shape).numpy() < values[undrawn] - down
        drawn = (down + up).astype(np.int64)
        good = np.einsum("ij,ij->i", drawn, drawn) <= limit  # rows are clipped, so that the sums fit 64 bits
        out[undrawn[good]] = drawn[good]
        undrawn = undrawn[~good]
        if not len(undrawn):
            return out
    inward = np.trunc(values[undrawn]).astype(np.int64)
    inward[np.einsum("ij,ij->i", inward, inward) > limit] = 0
    out[undrawn] = inward
    return out


_VERSION = 2


@dataclass(frozen=True)
class SecurePlan:
    """One round of secure aggregation with distributed noise.

    clients           how many are asked
    m                 numbers a vector
    bound             C: the l2 norm that one record (or one client, where a client sends one vector) is clipped to
    noise_multiplier  of the total: no worse than Gaussian noise of this times `bound`
    dropouts          f: how many may be lost at any moment of the round; one more, and the round is refused
    colluding         c: how many clients may be on the server's side; their noise does not count, and where it is 0
                      that of one client does not either: who reads the total may be a client and know its own
    precision         how much of the noise may be spent on rounding: the grid is as coarse as that allows
    peak              the largest coordinate that one client may send, relative to `bound`; what is beyond is cut
    failure           how likely any number of the total may leave the field (a wrong number, never a privacy loss)

    Everything else follows: see the properties.  Clients compare the digest, so that all have the same plan.
    """

    clients: int
    m: int
    bound: float
    noise_multiplier: float
    dropouts: int = 0
    colluding: int = 0
    precision: float = 0.01
    peak: float = 1.0
    failure: float = 2.0**-40

    def __post_init__(self) -> None:
        validate.positive_int(clients=self.clients, m=self.m)
        validate.non_negative_int(dropouts=self.dropouts, colluding=self.colluding)
        validate.positive(bound=self.bound, noise_multiplier=self.noise_multiplier, peak=self.peak)
        validate.open_unit(precision=self.precision, failure=self.failure)
        validate.check(self.clients >= 2, "clients", self.clients, "ask two or more: a sum of one hides nothing")
        points = "the number of points of the field that shares lie in: divide the clients into groups (docs/secagg.md)"
        validate.at_most(CLIENTS, points, clients=self.clients)
        remedy = f"give fewer: of the {self.needed} clients who answer, one at least must be honest"
        validate.check(self.needed > self.colluding, "colluding", self.colluding, remedy)
        guarded = 2 * (self.needed - self.packing + 1) - self.clients > self.colluding
        validate.check(guarded, "dropouts", self.dropouts, "allow fewer: the server could ask two groups of clients")
        remedy = f"allow fewer: a server that lies to clients could read {self.counted + self._known} of them"
        validate.check(self.counted >= 1, "dropouts", self.dropouts, remedy)
        with validate.reading("plan", asdict(self), "give numbers that can be computed with: not so large or small"):
            share, remedy = float(self.share), "take a larger precision: clients draw a variance of at most 2^30"
            validate.check(share <= MAX_VARIANCE, "variance of a client's noise", share, remedy)
            validate.at_most(WIDEST, "the widest field: take a larger precision or a smaller peak", bits=self.bits)

    # ------------------------------------------------------------ who

    @property
    def needed(self) -> int:
        """n - f: clients that must be there at every moment, and shares that give a secret."""
        return self.clients - self.dropouts

    @property
    def packing(self) -> int:
        """How many elements of a secret one polynomial holds (see `shamir`): 16, or fewer where clients are few.

        Any `needed - packing` shares say nothing.  A server that told different clients different things would need
        more shares than that of one client's two secrets, so at least `2 (needed - packing + 1) - clients` clients on
        its side: packing keeps that above a third of all, and above `colluding`.
        """
        guard = max(self.colluding, self.clients // 3)
        fit = [p for p in PACKINGS if p <= self.needed and 2 * (self.needed - p + 1) - self.clients > guard]
        return max(fit, default=1)

    @property
    def counted(self) -> int:
        """Clients whose noise is in every total that anybody can read, and whom nobody who reads it knows: the divisor.

        With a server that tells everybody the same these are the n - f survivors, less those on its side.  One that
        leaves letters out of inboxes, and shows every client other survivors, reads totals of fewer: `most_left_out`.
        """
        secret = self.needed - self.packing + 1
        return self.clients - self._known - most_left_out(self.clients, self.dropouts, secret, self.colluding)

    @property
    def _known(self) -> int:
        """Clients whose noise a reader may know: those on the server's side, or the reader itself if it is a client."""
        return max(self.colluding, 1)

    @property
    def share_bytes(self) -> int:
        """Bytes of one share of one secret."""
        return 2 * ELEMENTS // self.packing

    # ------------------------------------------------------------ the grid

    @cached_property
    def steps(self) -> float:
        """C / grid, the bound in grid steps: the least with which rounding costs no more than `precision`.

        The root of k^2 (2 p + p^2) = 3 k + m / 4 + 3 sqrt(m) / 4, and enough that the total's noise is 10 steps wide.
        """
        p, rest = self.precision * (2 + self.precision), self.m / 4 + 0.75 * math.sqrt(self.m)
        return max((3 + math.sqrt(9 + 4 * p * rest)) / (2 * p), 10 / self.noise_multiplier)

    @property
    def grid(self) -> float:
        """The unit of the integers."""
        return self.bound / self.steps

    @cached_property
    def limit(self) -> int:
        """The squared length that no rounded record exceeds, in grid steps."""
        return _squared_limit(self.steps, self.m)

    @property
    def sensitivity(self) -> float:
        """The root of the limit, from above: what one record moves the total of integers by."""
        return math.sqrt(self.limit) * (1 + 2.0**-50)

    @cached_property
    def variance(self) -> float:
        """What the noise of honest survivors must add up to, in squared grid steps."""
        return variance_for(self.noise_multiplier * self.sensitivity)

    @property
    def share(self) -> Fraction:
        """The variance of one client's noise: `counted` of them make the whole."""
        return Fraction(self.variance) / self.counted

    @property
    def reach(self) -> int:
        """The largest coordinate of one client, in grid steps: cutting there moves no two vectors further apart."""
        return math.ceil(self.peak * math.sqrt(self.limit))

    @cached_property
    def bits(self) -> int:
        """b: the total of all clients at their largest, and its noise but for `failure`, lie within 2^(b-1)."""
        noise, least = float(self.share) * self.clients, math.log(2 * self.m / self.failure)
        # the least x with 2 m P(Z >= x) <= failure by P(Z >= x) <= exp(-(x asinh(x / v) - sqrt(x^2 + v^2) + v))
        far = self.clients * self.reach + 1 + bisect_left(range(1, 1 << 62), least, key=lambda x: _rate(x, noise))
        return far.bit_length() + 1

    # ------------------------------------------------------------ bytes

    @property
    def vector_bytes(self) -> int:
        """Bytes of one packed vector."""
        return packed_length(self.m, self.bits)

    # ------------------------------------------------------------ privacy

    def event(self, rate: float = 1.0) -> DpEvent:
        """What a round releases: Skellam noise, no worse than Gaussian noise of the multiplier.

        `rate` is the probability with which each client (or record) took part, by coins that nobody else saw.  The
        server of this protocol knows who took part: for it the rate is 1.
        """
        return Poisson(rate).event(SkellamDpEvent(self.noise_multiplier))

    def statement(self, delta: float, rounds: int = 1, *, rate: float = 1.0, seeded: bool = False) -> PrivacyStatement:
        """What is promised for so many rounds of this plan, in numbers and words (add/remove).

        >>> plan = SecurePlan(clients=10, m=100, bound=1.0, noise_multiplier=4.0, dropouts=2)
        >>> print(plan.statement(1e-5))
        (epsilon=0.9264, delta=1e-05)-differentially private, for adding or removing one record
        """
        account = Account(delta, Adjacency.ADD_REMOVE, seeded=seeded, assumptions=self.assumptions())
        account.add(self.event(rate), count=rounds, noise=_SOURCE)
        return account.statement()

    def assumptions(self) -> list[str]:
        """What the promise rests on, in words."""
        honest = "all"
        if self.colluding:
            honest = f"all but at most {self.colluding}"
        return [
            f"of the {self.clients} clients {honest} follow the protocol as long as they answer, draw their noise as "
            f"stated, and tell nobody what they know; the noise of {self.counted} makes the whole, which is what a "
            f"reader faces who knows that of {self._known}, and a server that tells clients different lists",
            "the server passes on public keys as they are (channels are authenticated, or keys known beforehand)",
            "adding or removing means that the vector of one record (of one client, where it sends one vector) is zero "
            "or not; which clients take part is not hidden from the server",
            "X25519, HKDF, ChaCha20 and Poly1305 are not broken: the server sees nothing but the total",
        ]

    @cached_property
    def digest(self) -> bytes:
        """What tells this plan from any other."""
        return digest(json.dumps({"version": _VERSION} | asdict(self), sort_keys=True).encode())


_SOURCE = "exact whole-number noise, which every client draws from its operating system's generator"


@lru_cache(maxsize=64)
def most_left_out(n: int, f: int, r: int, c: int) -> int:
    """J: how many of the n - c honest clients a server can keep out of a total that it reads, whatever it tells whom.

    r shares are needed to learn anything of a secret; c clients on the server's side give it theirs of everything.
    `SecurePlan` has 2 r - n > c, so nobody's seed and key are both learnt (each takes r - c honest clients, and no
    client tells both), and only one roster has honest clients who get n - f letters under it.

    Say the server reads a combination of vectors, and T are the honest clients in it: their seeds are known, so their
    keys are not.  The mask of i in T and of an honest j whose letter i has goes away in two ways only: the key of j is
    known, or j is in T, has i's letter, and the same factor.  So what can be read are sums over disjoint sets T, and
    with K clients of known keys outside T, the other e = J - K outside have sent no letter that any of T was given.
    A client is given n - f - 1 letters or more and n - f survivors or more among those and itself: so e <= f, a client
    of T tells f - e shares of keys at most, others f, nobody tells one twice, and nobody one of its own key.  The K
    keys take r - c shares each:

        K (r - c)  <=  (n - c - J) min(f - e, K) + e min(f, K) + K min(f, K - 1).

    J is the most K + e for which this holds with somebody left in T.  (e = f, K = 0 is f clients lost.)  Every record
    is in one T, so the total over T and its noise are all that is ever seen of it.

    >>> most_left_out(100, 10, 90, 0), most_left_out(100, 10, 75, 0), most_left_out(100, 33, 67, 0)
    (11, 13, 58)
    """
    honest, most = n - c, 0
    for e in range(min(f, honest - 1) + 1):
        k = np.arange(honest - e)
        taken = np.minimum(f, np.maximum(k - 1, 0))
        known_pairs = (honest - e - k) * np.minimum(f - e, k) + e * np.minimum(f, k) + k * taken
        most = max(most, e + int(k[k * (r - c) <= known_pairs].max()))  # k = 0 always holds
    return most


def _rate(x: int, v: float) -> float:
    y = x / v
    return x * math.asinh(y) - v * y * y / (math.hypot(1.0, y) + 1)
