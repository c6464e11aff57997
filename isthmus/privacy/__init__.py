"""Differential privacy: clips, mechanisms, secret randomness, private samplers, accounting and the budget's plan."""

import importlib
from typing import Any

from isthmus.privacy.accounting import (
    Adjacency,
    UnsupportedEvent,
    calibrate,
    check,
    compose,
    delta,
    delta_of,
    epsilon,
    epsilon_of,
    joint,
    noise_multiplier,
    supports,
)
from isthmus.privacy.clips import AdaptiveClip, Clip, GroupClip, PerLeafClip
from isthmus.privacy.ledger import BudgetExceeded, Ledger, LedgerCorrupt
from isthmus.privacy.mechanisms import DiscreteGaussian, Exact, Gaussian, Laplace, Mechanism, NoisyMax, TopK
from isthmus.privacy.noise import FastSource, GeneratorSource, SecretSource, SeededSource, Source
from isthmus.privacy.plan import Charge, PrivacyPlan
from isthmus.privacy.sampling import FixedSize, FullBatch, Poisson
from isthmus.privacy.skellam import Skellam
from isthmus.privacy.statement import PrivacyStatement

_PUBLISHED = ["Published", "comp_minibatch_sigma", "farokhi_scale", "privsgd_sigma", "skgd_sigma"]

__all__ = ["Adjacency", "UnsupportedEvent", "calibrate", "check", "compose", "delta", "delta_of", "epsilon"]
__all__ += ["epsilon_of", "joint", "noise_multiplier", "supports"]
__all__ += ["AdaptiveClip", "Clip", "GroupClip", "PerLeafClip", "FixedSize", "FullBatch", "Poisson"]
__all__ += ["DiscreteGaussian", "Exact", "Gaussian", "Laplace", "Mechanism", "NoisyMax", "Skellam", "TopK"]
__all__ += ["FastSource", "GeneratorSource", "SecretSource", "SeededSource", "Source"]
__all__ += ["BudgetExceeded", "Charge", "Ledger", "LedgerCorrupt", "PrivacyPlan", "PrivacyStatement"]
__all__ += _PUBLISHED


def __getattr__(name: str) -> Any:
    """The noise that papers print, which is built on this package: loaded when it is first used."""
    if name in _PUBLISHED:
        return getattr(importlib.import_module("isthmus.theory.printed"), name)
    raise AttributeError(f"module 'isthmus.privacy' has no attribute {name!r}")
