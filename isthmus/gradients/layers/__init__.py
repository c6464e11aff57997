"""The trainable layers of a torch module as one flat space, with taps that hand out per-example gradients."""

from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.layers import Layers
from isthmus.gradients.layers.rules import LayerRule
from isthmus.gradients.layers.tap import tap

__all__ = ["LeafBinding", "Layers", "LayerRule", "tap"]
