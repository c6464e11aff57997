"""The noise for a budget, beside dp_accounting's own search and Opacus' PRV accountant."""

from __future__ import annotations

from functools import partial
from itertools import count

import dp_accounting as dpa
from dp_accounting.pld import PLDAccountant

from isthmus.privacy import epsilon, noise_multiplier
from lab.bench.cases import Facts, PeerBenchmark, Work, need

DIRECT, PRV = "dp_accounting (PLD)", "Opacus (PRV)"
DELTA = 1e-5


def direct(target: float, rate: float, steps: int) -> float:
    """dp_accounting's search, to our precision."""

    def event(noise: float) -> dpa.DpEvent:
        step = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise)) if rate < 1 else dpa.GaussianDpEvent(noise)
        return dpa.SelfComposedDpEvent(step, steps)

    bounds = dpa.ExplicitBracketInterval(0.5, 20.0)  # without them it begins where this accountant needs minutes
    return float(dpa.calibrate_dp_mechanism(PLDAccountant, event, target, DELTA, bounds, tol=1e-4))


def prv(target: float, rate: float, steps: int) -> float:
    """Opacus' search; its accountant is asked for an error of .01 in epsilon, as by default."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(target_epsilon=target, target_delta=DELTA, sample_rate=rate, steps=steps, accountant="prv")
    )


def build(way: str, quick: bool, rate: float, steps: int) -> Work:
    """One search; every call has another budget, so that nothing is remembered."""
    if quick:
        rate, steps = 0.1, 10
    solve = {DIRECT: direct, PRV: prv}.get(
        way, lambda target, rate, steps: noise_multiplier(epsilon=target, delta=DELTA, sampling_rate=rate, steps=steps)
    )
    if way == PRV:
        need("opacus", "the extra bench")
    targets = (2.0 + 1e-6 * number for number in count())

    def facts() -> Facts:
        multiplier = solve(2.0, rate, steps)
        spent = epsilon(noise_multiplier=multiplier, sampling_rate=rate, steps=steps, delta=DELTA)
        return {"noise multiplier": multiplier, "its epsilon": spent}

    return Work(lambda: solve(next(targets), rate, steps), facts)


BENCHMARKS = tuple(
    PeerBenchmark(
        f"calibrate-{name}",
        f"the noise multiplier of (2, 1e-5), {words}",
        partial(build, rate=rate, steps=steps),
        ("ours",),
        (DIRECT, PRV),
        rounds=5,
        seconds=25,
    )
    for name, words, rate, steps in (("sampled", "1,000 steps at sampling rate .01", 0.01, 1000),)
)
