"""Two mechanisms that break their promise, to check that an audit notices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isthmus import _validate
from isthmus.bounded import Bounded
from isthmus.lifts import adjoint
from isthmus.pipeline import Pipeline, Promise, Release, Stage
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.clips import Clip
from isthmus.privacy.mechanisms import Gaussian
from isthmus.privacy.published import privsgd_sigma
from isthmus.privacy.sampling import FullBatch
from isthmus.sketches import Encoder, GaussianSketch, Sketch

__all__ = ["Halved", "halved", "published_privsgd", "rescaled"]


@dataclass(frozen=True)
class Halved:
    """A mechanism that states the noise of another one and adds half of it.  Broken on purpose.

    >>> Halved(Gaussian(2.0)).event()
    GaussianDpEvent(noise_multiplier=2.0)
    """

    inner: Any

    @property
    def private(self) -> bool:
        """As stated."""
        return bool(self.inner.private)

    @property
    def ords(self) -> tuple[float, ...]:
        """As stated."""
        return tuple(self.inner.ords)

    def release(self, bounded: Bounded, noise: Any) -> Tensor:
        """Noise is relative to the bound: half the bound is half the noise."""
        return self.inner.release(replace(bounded, bound=bounded.bound / 2), noise)

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Any:
        """The event of the full noise."""
        return self.inner.event(adjacency)


def halved(pipe: Pipeline) -> Pipeline:
    """The pipeline with half of every noise and the same promise.  Broken on purpose.

    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(4.0))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> halved(pipe).stages[0].releases[0].mechanism
    Halved(inner=Gaussian(multiplier=4.0))
    """
    _validate.check(pipe.private, "pipe", pipe, "give a private pipeline")
    stages = []
    for stage in pipe.stages:
        releases = []
        for release in stage.releases:
            wrapped: Any = Halved(release.mechanism) if release.mechanism.private else release.mechanism
            releases.append(replace(release, mechanism=wrapped))
        stages.append(replace(stage, releases=releases))
    return replace(pipe, stages=stages)


def rescaled(bounded: Bounded, sketch: Sketch) -> Bounded:
    """The published step between average and noise: `g -> ||g|| / ||Phi g|| g`, so that `||Phi g||` becomes `||g||`.

    It states that the bound of a record stays what it was.  It does not: near the kernel of Phi one record turns the
    whole of `Phi g` round.
    """
    length, seen = float(bounded.value.norm()), float(sketch.forward(bounded.value).norm())
    scale = length / seen if seen > 0 else 0.0
    return replace(bounded, value=bounded.value * scale, bound=bounded.bound / sketch.gain(bounded.ord))


def published_privsgd(
    n: int,
    m: int = 50,
    *,
    lipschitz: float = 1.0,
    steps: int = 1,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    encode: Encoder | None = None,
) -> Pipeline:
    """PRIVSGD (and DP-CompGD) as printed: noise `privsgd_sigma` on `||g|| Phi g / ||Phi g||`.  Broken on purpose.

    The claim is replace-one with n public.  With a Phi the adversary knows, one record moves the code of the mean by
    up to `2 L` where `2 L / n` is claimed.

    >>> round(published_privsgd(1000).stages[0].releases[0].mechanism.multiplier, 3)
    19.194
    """
    sigma = privsgd_sigma(lipschitz=lipschitz, n=n, steps=steps, epsilon=epsilon, delta=delta).sigma
    release = Release(
        encode=GaussianSketch(m, scaling="jl") if encode is None else encode,
        clip=Clip(lipschitz, before=True),
        between=(rescaled,),
        mechanism=Gaussian(sigma * n / lipschitz),
        lift=adjoint,
    )
    promise = Promise(epsilon, delta, Adjacency.REPLACE_ONE, published="none for a map the adversary knows")
    return Pipeline([Stage(FullBatch(), [release])], lambda t: 1.0, promise=promise)
