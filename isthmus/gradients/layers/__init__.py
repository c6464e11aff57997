"""The trainable layers of a torch module as one flat space, with taps that hand out per-example gradients."""

from isthmus.gradients.layers.layers import Layers, tap
from isthmus.gradients.layers.rules import LayerRule, LeafBinding

__all__ = ["LeafBinding", "Layers", "LayerRule", "tap"]
