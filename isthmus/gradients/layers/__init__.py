"""The trainable layers of a torch module as one flat space, with taps that hand out per-example gradients."""

from isthmus.gradients.layers.binding import Binding
from isthmus.gradients.layers.layers import Layers
from isthmus.gradients.layers.rules import Rule
from isthmus.gradients.layers.tap import tap

__all__ = ["Binding", "Layers", "Rule", "tap"]
