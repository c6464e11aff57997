"""The small frozen parts that fill a pipeline's slots beside sketches, clips and lifts."""

from isthmus.parts.aggregators import AllReduce, Client, Clients, Local
from isthmus.parts.averages import Last, Restart, UniformRandom, Weighted
from isthmus.parts.frank_wolfe import FrankWolfe
from isthmus.parts.samplers import Full, Shuffle, Uniform, WithoutReplacement
from isthmus.parts.sources import AgainstAnchor, current
from isthmus.parts.stops import FirstOrderStationary, GapBelow
from isthmus.parts.updates import Delegate, Step

__all__ = [
    "AgainstAnchor",
    "AllReduce",
    "Client",
    "Clients",
    "Delegate",
    "FirstOrderStationary",
    "FrankWolfe",
    "Full",
    "GapBelow",
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
