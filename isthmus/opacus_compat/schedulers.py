"""Schedulers of noise and clip: refused, since the ledger charges what was agreed when training was made private."""

from isthmus.engine.options import REFUSED
from isthmus.opacus_compat.refused import refused

ExponentialNoise, LambdaNoise, StepNoise = (
    refused(name, REFUSED["noise_scheduler"]) for name in ("ExponentialNoise", "LambdaNoise", "StepNoise")
)
ExponentialGradClip, LambdaGradClip, StepGradClip = (
    refused(name, REFUSED["grad_clip_scheduler"]) for name in ("ExponentialGradClip", "LambdaGradClip", "StepGradClip")
)

__all__ = ["ExponentialGradClip", "ExponentialNoise", "LambdaGradClip", "LambdaNoise", "StepGradClip", "StepNoise"]
