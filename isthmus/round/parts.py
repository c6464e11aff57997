"""The small frozen parts that fill a pipeline's slots beside sketches, clips and lifts."""

from isthmus.round.aggregators import Client, Clients, Local
from isthmus.round.averages import Last, Restart, Suffix, Tail, UniformRandom, Weighted
from isthmus.round.frank_wolfe import FrankWolfe
from isthmus.round.ranks import AllReduce
from isthmus.round.samplers import Full, Shuffle, Uniform, WithoutReplacement
from isthmus.round.sources import AgainstAnchor, current
from isthmus.round.stops import FirstOrderStationary, GapBelow, MappingBelow
from isthmus.round.updates import Delegate, Mirror, Shifted, Step

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
