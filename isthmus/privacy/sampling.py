"""Private samplers: which records a round looks at, drawn from the run's secret source.

Who knows which records a round looked at gets no protection from the sampling, so membership is as secret as
noise.  The divisor is a public constant, never the size of the drawn batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from torch import Tensor

from isthmus.base import validate
from isthmus.privacy.accounting import _sampled
from isthmus.privacy.event_json import DpEvent, SkellamDpEvent, dpa
from isthmus.privacy.noise import Source


class Keyring(Protocol):
    """The randomness of a run that samplers draw from: its public seed and its secret source."""

    @property
    def seed(self) -> int: ...
    @property
    def noise(self) -> Source | None: ...


class Sampler(Protocol):
    """Chooses the records of a round."""

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor | None: ...

    def divisor(self, n: int, t: int = 0) -> float: ...

    def rounds(self, n: int) -> int: ...

    def event(self, event: DpEvent) -> DpEvent: ...

    def describe(self) -> str: ...


class _Expecting:
    """Samples of as many records as are expected: n at this rate, or the public number that was given."""

    rate: float
    expected: float | None

    def __post_init__(self) -> None:
        validate.probability(sampling_rate=self.rate)
        if self.expected is not None:
            validate.positive(expected=self.expected)

    def divisor(self, n: int, t: int = 0) -> float:
        """The expected batch size; n is public under replace-one, or where the caller declares it public."""
        if self.expected is not None:
            return float(self.expected)
        return self.rate * n


@dataclass(frozen=True)
class FullBatch(_Expecting):
    """Every record, every round: nothing is amplified, every mechanism is allowed.

    The sum is divided by n, or by the public number `expected`: 1 releases the sum itself.

    >>> FullBatch().draw(10, 0, None, "0") is None, FullBatch().divisor(10), FullBatch(1.0).divisor(10)
    (True, 10.0, 1.0)
    """

    expected: float | None = None
    rate: ClassVar[float] = 1.0  # type: ignore[misc]

    def draw(self, n: int, t: int, keys: Keyring | None, client: str) -> None:
        """All records."""
        return None

    def rounds(self, n: int) -> int:
        """One."""
        return 1

    def event(self, event: DpEvent) -> DpEvent:
        """The event unchanged."""
        return event

    def describe(self) -> str:
        """The sampling in words."""
        return "every round looks at every record"


@dataclass(frozen=True)
class Poisson(_Expecting):
    """Each record is in the batch with probability `rate`, independently of every other: the default.

    The batch may have any size, 0 included: an empty one is released and paid for like the others.  The sum is
    divided by `expected`, or by `rate * n` where the number of records is public.

    >>> from isthmus.privacy import Gaussian, SeededSource
    >>> from types import SimpleNamespace
    >>> Poisson(0.5).draw(8, 0, SimpleNamespace(noise=SeededSource(1)), "0").dtype, Poisson(0.5).divisor(8)
    (torch.int64, 4.0)
    >>> Poisson(0.5).event(Gaussian(2.0).event()).sampling_probability
    0.5
    """

    rate: float
    expected: float | None = None

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """The indices of the batch, from the secret source."""
        return _secret(self, keys).mask(n, self.rate).nonzero().reshape(-1)

    def rounds(self, n: int) -> int:
        """1 / rate, rounded."""
        return max(1, round(1 / self.rate))

    def event(self, event: DpEvent) -> DpEvent:
        """`PoissonSampledDpEvent(rate, event)` of one Gaussian, Laplace or Skellam release."""
        if self.rate == 1:
            return event
        allowed = (dpa.GaussianDpEvent, dpa.LaplaceDpEvent, SkellamDpEvent)
        return _sampled("Poisson sampling", event, allowed, partial(dpa.PoissonSampledDpEvent, self.rate))

    def describe(self) -> str:
        """The sampling in words."""
        return f"every round looks at each record with probability {self.rate:g}, independently (Poisson sampling)"


@dataclass(frozen=True)
class FixedSize:
    """A fresh subset of `batch_size` of the `n` records each round, all subsets alike.

    Amplification is known for replace-one only, and n is public there.

    >>> from isthmus.privacy import Gaussian
    >>> FixedSize(10, n=100).event(Gaussian(2.0).event()).sample_size
    10
    """

    batch_size: int
    n: int

    def __post_init__(self) -> None:
        validate.positive_int(batch_size=self.batch_size, n=self.n)
        validate.at_most(self.n, "the number of records", batch_size=self.batch_size)

    @property
    def rate(self) -> float:
        """The share of the records that a round looks at."""
        return self.batch_size / self.n

    def draw(self, n: int, t: int, keys: Keyring, client: str) -> Tensor:
        """The indices of the batch, from the secret source."""
        remedy = f"give {self.n} records: the sampler was built, and is accounted, for so many"
        validate.check(n == self.n, "n", n, remedy)
        return _secret(self, keys).subset(n, self.batch_size)

    def divisor(self, n: int, t: int = 0) -> float:
        """The batch size."""
        return float(self.batch_size)

    def rounds(self, n: int) -> int:
        """ceil(n / batch size)."""
        return -(-self.n // self.batch_size)

    def event(self, event: DpEvent) -> DpEvent:
        """`SampledWithoutReplacementDpEvent(n, batch_size, event)` of one Gaussian release."""
        if self.batch_size == self.n:
            return event
        wrap = partial(dpa.SampledWithoutReplacementDpEvent, self.n, self.batch_size)
        return _sampled("sampling without replacement", event, (dpa.GaussianDpEvent,), wrap)

    def describe(self) -> str:
        """The sampling in words."""
        return f"every round looks at {self.batch_size} of {self.n} records, drawn without replacement"


def rate_of(sampler: Sampler, unknown: float = 1.0) -> float:
    """The share of the records that a round looks at, where a sampler says it."""
    return float(getattr(sampler, "rate", unknown))


def _secret(sampler: Sampler, keys: Keyring) -> Source:
    if keys.noise is None:
        remedy = f"give a SecretSource as keys.noise: {type(sampler).__name__} draws secretly"
        validate.refuse("noise", keys.noise, remedy)
    return keys.noise
