"""The noise that four papers print, beside the noise that is needed.

Every function returns a `Published`: the standard deviation (or scale) as printed, the tight one for the same
claim, the epsilon that the printed noise really gives where every record's code is clipped AFTER the sketch, and
the reasons.  As printed, without that clip, the first two bound no sensitivity at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.base import validate
from isthmus.privacy.accounting import calibrate, epsilon_of, noise_multiplier
from isthmus.privacy.adjacency import Adjacency
from isthmus.privacy.library import dpa

_REPLACE = Adjacency.REPLACE_ONE


@dataclass(frozen=True)
class Published:
    """A printed noise level: `sigma` on the mean, the `tight` one, and the `epsilon` that `sigma` really gives."""

    sigma: float
    tight: float
    epsilon: float
    guarantee: str


def privsgd_sigma(*, lipschitz: float, n: int, steps: int, epsilon: float, delta: float) -> Published:
    """PRIVSGD and DP-CompGD: `sigma^2 = 32 L^2 T ln(1/delta) / (n^2 epsilon^2)` on the mean of n codes.

    With each record's code clipped to L it is (epsilon, delta) for replace-one whenever epsilon <= 8 ln(1/delta),
    with room to spare; with the papers' rescaling of the mean instead of the clip, the sensitivity can be n times
    the stated one.

    >>> round(privsgd_sigma(lipschitz=1.0, n=1000, steps=10, epsilon=1.0, delta=1e-5).epsilon, 5)
    0.35628
    """
    _claim(lipschitz, n, steps, epsilon, delta)
    sigma = lipschitz * math.sqrt(32 * steps * math.log(1 / delta)) / (n * epsilon)
    return _full_batch(
        sigma,
        lipschitz,
        n,
        steps,
        epsilon,
        delta,
        "replace-one, if each record's code is clipped to L after the sketch; false for a rescaled mean",
    )


def skgd_sigma(*, lipschitz: float, n: int, steps: int, epsilon: float, delta: float) -> Published:
    """DP-SkGD: `sigma_U^2 = 12 L_U^2 K T ln(1/delta) / (n^2 epsilon^2)`; `steps` is K T, `lipschitz` the block's L_U.

    Sound as printed where L_U truly bounds the block of every record (clip to it), for any law of the blocks that
    does not look at the data.

    >>> round(skgd_sigma(lipschitz=1.0, n=1000, steps=1000, epsilon=1.0, delta=1e-5).epsilon, 4)
    0.6081
    """
    _claim(lipschitz, n, steps, epsilon, delta)
    sigma = lipschitz * math.sqrt(12 * steps * math.log(1 / delta)) / (n * epsilon)
    return _full_batch(
        sigma, lipschitz, n, steps, epsilon, delta, "replace-one, if each record's block is clipped to the public L_U"
    )


def comp_minibatch_sigma(
    *, lipschitz: float, n: int, batch_size: int, steps: int, epsilon: float, delta: float
) -> Published:
    """DP-CompMiniBatch: `sigma^2 = 16 L^2 T ln(1/delta) ln(2.5 T b / (delta n)) / (n^2 epsilon^2)` on the batch mean.

    Its amplification needs `epsilon_0 = (n/b) epsilon / sqrt(2 T ln(1/delta)) <= 1`, which the paper leaves out;
    beyond it the claim is false and the formula is refused.

    >>> round(comp_minibatch_sigma(lipschitz=1.0, n=10000, batch_size=250, steps=1200, epsilon=1.0,
    ...     delta=1e-5).sigma * 250, 3)
    46.766
    """
    _claim(lipschitz, n, steps, epsilon, delta)
    validate.positive_int(batch_size=batch_size)
    validate.at_most(n, "the number of records", batch_size=batch_size)
    single = n / batch_size * epsilon / math.sqrt(2 * steps * math.log(1 / delta))
    validate.check(
        single <= 1,
        "epsilon",
        epsilon,
        "take more steps, larger batches, or isthmus.privacy.noise_multiplier: one step would have "
        f"epsilon_0={single:.3g} > 1, where the printed amplification is false",
    )
    log = math.log(2.5 * steps * batch_size / (delta * n))
    sigma = lipschitz * math.sqrt(16 * steps * math.log(1 / delta) * log) / (n * epsilon)

    def rounds(z: float) -> object:
        step = dpa.SampledWithoutReplacementDpEvent(n, batch_size, dpa.GaussianDpEvent(z))
        return dpa.SelfComposedDpEvent(step, steps)

    unit = lipschitz / batch_size
    z = sigma / unit
    real = epsilon_of(rounds(z), delta, _REPLACE)
    tight = calibrate(rounds, epsilon, delta, _REPLACE, guess=z / 2) * unit
    words = "replace-one, batches without replacement, if each record's code is clipped to L after the sketch"
    return Published(sigma, tight, real, words)


def farokhi_scale(*, codes: int, steps: int, epsilon: float, delta: float) -> Published:
    """Compressive Laplace: scale `sqrt(p) / epsilon` a STEP on the normalised code of p numbers; all steps count.

    The printed epsilon is spent in every one of T steps: `T epsilon` in all, or `epsilon` at `delta` by the tight
    accountant.  `tight` is the scale for a TOTAL of epsilon at delta.  The scale covers the sensitivity where every
    column of the sketch has l1 norm at most sqrt(p): surely for signs / sqrt(p), not for Gaussian columns.

    >>> published = farokhi_scale(codes=20, steps=1000, epsilon=1.0, delta=1e-5)
    >>> round(published.sigma, 4), round(published.epsilon)
    (4.4721, 474)
    """
    validate.positive_int(codes=codes, steps=steps)
    validate.positive(epsilon=epsilon)
    validate.open_unit(delta=delta)
    root = math.sqrt(codes)
    total = epsilon_of(dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(1 / epsilon), steps), delta)
    tight = root * noise_multiplier(epsilon=epsilon, delta=delta, steps=steps, mechanism="laplace")
    words = (
        f"{epsilon:g} a step, {steps * epsilon:g} in all (pure), if every column of the sketch has l1 norm <= sqrt(p)"
    )
    return Published(root / epsilon, tight, total, words)


def _claim(lipschitz: float, n: int, steps: int, epsilon: float, delta: float) -> None:
    validate.positive(lipschitz=lipschitz, epsilon=epsilon)
    validate.positive_int(n=n, steps=steps)
    validate.open_unit(delta=delta)


def _full_batch(
    sigma: float, lipschitz: float, n: int, steps: int, epsilon: float, delta: float, words: str
) -> Published:
    unit = lipschitz / n
    real = epsilon_of(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma / unit), steps), delta, _REPLACE)
    tight = unit * noise_multiplier(epsilon=epsilon, delta=delta, steps=steps, adjacency=_REPLACE)
    return Published(sigma, tight, real, words)
