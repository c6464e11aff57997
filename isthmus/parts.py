"""The small frozen parts that fill a pipeline's slots beside sketches, clips and lifts."""

from isthmus.core.aggregators import AllReduce, Client, Clients, Local
from isthmus.core.averages import Last, Restart, Suffix, Tail, UniformRandom, Weighted
from isthmus.core.frank_wolfe import FrankWolfe
from isthmus.core.samplers import Full, Shuffle, Uniform, WithoutReplacement
from isthmus.core.sources import AgainstAnchor, current
from isthmus.core.stops import FirstOrderStationary, GapBelow, MappingBelow
from isthmus.core.updates import Delegate, Mirror, Shifted, Step

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
    "MappingBelow",
    "Mirror",
    "Restart",
    "Shifted",
    "Shuffle",
    "Step",
    "Suffix",
    "Tail",
    "Uniform",
    "UniformRandom",
    "Weighted",
    "WithoutReplacement",
    "current",
]
