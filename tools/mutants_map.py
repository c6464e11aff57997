"""Which tests belong to which module, what cannot be run without a GPU, and which changes change nothing."""

from __future__ import annotations

_SETS = [f"tests/sets/test_sets_{name}.py" for name in ("values", "scales", "contract", "refusals")]
_DERIVATIVES = "tests/sets/test_sets_derivatives.py"

_ACCOUNTING = "tests/privacy/test_privacy_accounting.py"

TESTS: dict[str, list[str]] = {
    "privacy/noise": [
        "tests/privacy/test_privacy_noise.py",
        "tests/privacy/test_privacy_chacha.py",
    ],
    "privacy/clips": [
        "tests/privacy/test_clips.py",
        "tests/gradients/test_adding.py",
    ],
    "privacy/accounting": [_ACCOUNTING],
    "privacy/composition": ["tests/privacy/test_composition.py", _ACCOUNTING],
    "privacy/mechanisms": [
        "tests/privacy/test_privacy_mechanisms.py",
        "tests/privacy/test_privacy_noise.py",
        "tests/privacy/test_privacy_plan.py",
    ],
    "privacy/sampling": ["tests/privacy/test_privacy_sampling.py"],
    "sets/balls": [*_SETS, _DERIVATIVES],
    "sets/projections": ["tests/sets/test_sets_threshold.py", *_SETS],
    "sets/polytopes": [*_SETS, _DERIVATIVES],
    "sets/structured": [_DERIVATIVES, *_SETS],
    "sets/matrices": [_DERIVATIVES, *_SETS, "tests/algorithms/test_stationary.py"],
    "sets/widths": _SETS,
}
"""The quick tests that belong to a module, the likeliest to notice first; its doctests are run too."""

_SHARES = "tests/privacy/test_clips.py::test_no_share_exceeds_its_bound"
_ROWS = ("lazy", "linear", "csr", "positions", "lookup", "blocks", "tied", "residual")

SLOW: list[str] = [
    *(f"{_SHARES}[{kind}-torch.float{bits}]" for kind in _ROWS for bits in (32, 64)),
    *(f"{_ACCOUNTING}::test_the_result_costs_the_target[{start}" for start in ("1.0-0.0", "8.0", "0.1-0.1", "4.0")),
    f"{_ACCOUNTING}::test_the_noise_without_replacement",
    f"{_ACCOUNTING}::test_poisson_oracles[1.0",
    f"{_ACCOUNTING}::test_sampling_with_replacement_as_a_mixture",
    f"{_ACCOUNTING}::test_the_library_means_two_things_by_replace_one",
    f"{_ACCOUNTING}::test_replace_one_is_counted_once_on_every_route",
]
"""Tests that are left out, because they say of other modules, or again, what a quicker one says."""

_PIECES = "how much is drawn at a time: every size gives the same law"
_GPU = "runs on a GPU only"

LEFT_OUT: dict[str, dict[str, str]] = {
    "privacy/composition": {
        **dict.fromkeys(("RELATIVE", "_SHIFT"), "reserves: a little more is as good"),
        **dict.fromkeys(("_FAR", "_DEEP", "SMALL", "_SHORT"), "decides how tight a bound is"),
        "_search": "decides how tight a cost is, never whether it is an upper bound",
    },
    "privacy/accounting": {"_interval": "decides how tight a cost is, never whether it is an upper bound"},
    "privacy/noise": {
        **dict.fromkeys(("_CHUNK", "_SMALL", "_PER_KEY", "CHUNK", "DEVICE_CHUNK"), _PIECES),
        **dict.fromkeys(("_generator_of", "_chacha"), _GPU),
    },
}
"""Functions and constants that are not changed, and why."""

_MASKED = "on the CPU rows without weight are masked before the sum or after it; elsewhere it needs a GPU"

_START = "only where the last search starts, which ends at the same noise from anywhere"

_ROUNDING = "differs where two roundings are equal only"

_ANYWHERE = "only where the search starts, which ends at the same threshold from anywhere"

SAME: dict[str, str] = {
    "privacy/noise:_sfc64: * in return *": "more bits of a key, or a larger pool for them, are as good",
    "privacy/noise:FastSource.normal: place.type == *": "both ways draw the same law",
    "privacy/noise:FastSource.normal: self.add_normal* -> (nothing)": _GPU,
    "privacy/clips:_weights: 51 -> 52 *": "two roundings of 2^-53 are covered by a reserve of 2^-52 too",
    "privacy/clips:_shortened: heavy > RATIO * -> heavy >= *": _ROUNDING,
    "privacy/clips:_weights: near.to(torch.float64) > exact -> * >= *": "a weight one digit smaller is as good",
    "privacy/accounting:_finite_cost: 2 -> 3 in if (many *": _START,
    "privacy/composition:_Total._window: math.floor* -> math.ceil*": "one place more or less beyond exp(-FAR)",
    "privacy/composition:_lost: True -> False *": "lists that were made together are equally long",
    "privacy/composition:_Total.delta: 0.0 -> 1.0 *": "`_one_way` takes the least of it and 1",
    "privacy/composition:_Tilted.epsilon: float(root) * *": "a reserve: a millionth of the interval is far more",
    "privacy/composition:_chords: 4 -> 5 in masses*": "a reserve that is a little larger is as good",
    "privacy/accounting:_MOST_ROUNDS: 2000000 -> 2000001 *": "a round more before the coarser bound is as good",
    "privacy/composition:_Tilted.epsilon: high *": "Chernoff's bound is above: the loop begins for rounding only",
    "privacy/composition:_Total._best: break -> (nothing)": "more tilts are tried: each is a bound",
    "privacy/accounting:_renyi: * in orders = *": "decides how tight a cost is, never whether it is an upper bound",
    "privacy/accounting:_with_less_noise: 1e-15 -> 2e-15 *": "a reserve that is twice as large is as good",
    "privacy/accounting:solve: 60 -> 61 in def *": "one more step before it gives up",
    "privacy/mechanisms:*.spending: 1.0 -> 2.0 in def *": "a choice spends the same whether sampled or not",
    "privacy/clips:_weights: not rows.exact -> *": _GPU,
    "privacy/clips:AdaptiveClip.next: 700.0 -> 1400.0 in * (2)": "exp(-700) times any bound is below the least bound",
    "privacy/accounting:calibrate: 0.01 -> *": _START,
    "privacy/accounting:calibrate: 0.0001 -> *": _START,
    "privacy/accounting:calibrate: 1 -> 2 in for haste*": _START,
    "privacy/accounting:_by: 8 -> 9 in return composition.cost*": _START,
    "privacy/accounting:calibrate: 2e-05 -> *": "still within the 0.01 % that is promised",
    "privacy/accounting:_noise_multiplier: 1e-12 -> 2e-12 in *": "a reserve that is twice as large is as good",
    "privacy/accounting:noise_multiplier: 1.0 -> 2.0 in _front*": "any noise will do where only the rest is checked",
    "privacy/accounting:_noise_multiplier: * in guess = *": _START,
    "privacy/accounting:solve: 2.0 -> 4.0 in *": "how long a step may be: more or fewer of them to the same end",
    "privacy/accounting:solve: y > 0 -> y >= 0 in if y > 0*": "it has returned where y is 0",
    "privacy/accounting:solve: 1e-10 -> 2e-10 in *": "a bracket twice as wide is still far below the tolerance",
    "privacy/clips:encoded_sum: single * gain -> single / gain in return *": "a code is one term: its bound cancels",
    "privacy/clips:encoded_sum: 2 -> 3 in total = *": "a sum that loses less than it may is as good",
    "privacy/clips:encoded_sum: lost * <= kappa * -> lost * < kappa *": _ROUNDING,
    "privacy/clips:_shortened: lost < allowed * -> lost <= *": _ROUNDING,
    "privacy/clips:weighted_sum: if weights.is_cuda and * -> *": _MASKED,
    "privacy/clips:weighted_sum: * in if weights.is_cuda and *": _MASKED,
    "privacy/clips:weighted_sum: * in rows = rows.masked*": _MASKED,
    "privacy/clips:weighted_sum: weights > 0 -> weights >= 0 in return *": "a finite row of weight 0 adds 0",
    "privacy/clips:ClippedSum.narrowed: 32 -> 33 *": "there are no types of 33 bits",
    "sets/balls:LpBall._derivative: * in top = *": "a scale that cancels",
    "sets/polytopes:ConvexHull._extreme_scale: * <= tolerance(x) * -> * < tolerance(x) *": _ROUNDING,
    "sets/structured:GroupBall._derivative.totals: False -> True *": "a copy is as good",
    "sets/structured:GroupBall._norms: 1 -> 2 in count = *": "one more group, without entries",
    "sets/matrices:NuclearBall._derivative: 1e-12 -> *": "a tolerance that is twice as wide",
    "sets/balls:_secular: 1e+300 -> *": "any number that no square reaches",
    "sets/balls:_secular: 100 -> 101 *": "one more step at the same root",
    "sets/structured:Subspace.__post_init__: False -> True in _, *": "more axes, which are cut off again",
    "sets/projections:threshold: * in lower = *": _ANYWHERE,
    "sets/projections:_compress: return u?mask? -> *": _GPU,
    "sets/projections:_project_unit_lp: * in low = max(*": "a wider bracket holds the root too",
    "sets/polytopes:ConvexHull._extreme_scale: best > 0 -> best >= 0 *": "a share of 0 adds 0",
    "sets/projections:_guess: *": _ANYWHERE,
    "sets/projections:threshold: drop < start - top -> *": "the same point where both are equal",
    "sets/projections:_michelot: candidates > drop * -> candidates >= *": "an entry there becomes 0 either way",
    "sets/polytopes:ConvexHull._extreme_scale: 1.0 -> 2.0 in near_one *": "a tolerance that is twice as wide",
    "sets/widths:_tail: 2 -> 3 in knee *": "where an integral is cut in two",
    "sets/widths:_tail: 12.0 -> 24.0 *": "beyond 12 deviations nothing is left of the integral",
    "sets/widths:_max_chi.log_cdf: 1.0 -> 2.0 *": "a probability is at most 1",
    "sets/structured:Subspace._diameter: 0.0 -> 1.0 *": "a whole subspace is not asked for a diameter",
}
"""Mutants that compute the same, or something as good, as patterns (`fnmatch`): the reason."""
