"""Two mechanisms that break their promise, to check that an audit notices."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from isthmus.algorithms import priv_sgd
from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Pipeline, Release
from isthmus.penalties import NoPenalty
from isthmus.privacy import Source
from isthmus.privacy.clips import ClippedSum
from isthmus.sets import Whole
from isthmus.theory.printed import Printed

__all__ = ["_Halved", "halved", "published_privsgd"]


class _Halved(Printed):
    """A mechanism that states the noise of another one and adds half of it.  Broken on purpose.

    >>> from isthmus.privacy import Gaussian
    >>> _Halved(Gaussian(2.0)).event()
    GaussianDpEvent(noise_multiplier=2.0)
    """

    def release(self, bounded: ClippedSum, noise: Source | None) -> Tensor:
        """Noise is relative to the bound: half the bound is half the noise."""
        return super().release(replace(bounded, bound=bounded.bound / 2), noise)


def halved(pipe: Pipeline) -> Pipeline:
    """The pipeline with half of every noise and the same promise.  Broken on purpose.

    >>> from isthmus.core.pipeline import Promise, Release, Stage
    >>> from isthmus.privacy import Clip, FullBatch, Gaussian
    >>> pipe = Pipeline([Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(4.0))])], lambda t: 0.1,
    ...                 promise=Promise(1.0, 1e-5))
    >>> halved(pipe).stages[0].releases[0].mechanism.inner
    Gaussian(multiplier=4.0)
    """
    validate.check(pipe.private, "pipe", pipe, "give a private pipeline")

    def halve(release: Release) -> Release:
        if not release.mechanism.private:
            return release
        return replace(release, mechanism=_Halved(release.mechanism))

    stages = [replace(stage, releases=[halve(release) for release in stage.releases]) for stage in pipe.stages]
    return replace(pipe, stages=stages)


def published_privsgd(
    n: int,
    m: int = 50,
    *,
    d: int = 10_000,
    lipschitz: float = 1.0,
    steps: int = 1,
    epsilon: float = 1.0,
    delta: float = 1e-5,
) -> Pipeline:
    """PRIVSGD (and DP-CompGD) as printed: the pipeline that `priv_sgd(as_published=True)` runs, with the paper's claim.

    Broken by its design, which is why that recipe itself promises no epsilon.

    The claim is replace-one with n public: noise `privsgd_sigma` on `||g|| Phi g / ||Phi g||`.  With a Phi that one
    knows, a record moves the code of the mean by up to `2 L` where `2 L / n` is claimed.

    >>> round(published_privsgd(1000).stages[0].releases[0].mechanism.inner.multiplier, 3)
    19.194
    """
    recipe = priv_sgd(epsilon=epsilon, delta=delta, m=m, clip=lipschitz, step=1.0, n="exact", as_published=True)
    pipe = recipe.bind(Binding(Whole(), NoPenalty(), Space.flat(d), n, steps, None))
    assert pipe.promise is not None
    return replace(pipe, promise=replace(pipe.promise, epsilon=epsilon))
