"""The small frozen parts that fill a pipeline's slots beside sketches, clips and lifts."""

# ruff: noqa: F401

from isthmus.core.parts import (
    AgainstAnchor,
    Delegate,
    FirstOrderStationary,
    FrankWolfe,
    Full,
    GapBelow,
    Last,
    MappingBelow,
    Mirror,
    Restart,
    Shifted,
    Shuffle,
    Step,
    Suffix,
    Tail,
    Uniform,
    UniformRandom,
    Weighted,
    WithoutReplacement,
    current,
)
from isthmus.core.pipeline import AllReduce, Client, Clients, Local
