"""The small frozen parts that fill a pipeline's slots beside sketches, clips and lifts."""

from isthmus.parts.aggregators import AllReduce, Client, Clients, Local
from isthmus.parts.averages import Last, Restart, UniformRandom, Weighted
from isthmus.parts.samplers import Full, Shuffle, Uniform, WithoutReplacement
from isthmus.parts.sources import AgainstAnchor, current
from isthmus.parts.updates import Delegate, FrankWolfe, Step

__all__ = [
    "AgainstAnchor",
    "AllReduce",
    "Client",
    "Clients",
    "Delegate",
    "FrankWolfe",
    "Full",
    "Last",
    "Local",
    "Restart",
    "Shuffle",
    "Step",
    "Uniform",
    "UniformRandom",
    "Weighted",
    "WithoutReplacement",
    "current",
]
