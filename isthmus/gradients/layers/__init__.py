"""The trainable layers of a torch module as one flat space, with taps that hand out per-example gradients.

Three mechanisms tell a gradient example by example.  Each is here because models that people bring need it
(docs/models.md has the families, docs/benchmarks.md the times):

* **Rules** of kinds of layers (`rules`): the layers that hold nearly all numbers of every model.  Their
  rows stay factors, so that a private step costs little more than a plain one.
* **Taps at operations** (`operations`): 42 of the 51 families that are exact use a parameter outside such a layer
  (norms of their own, positions that all examples share, class tokens, weights that others read), in 30 of them in
  code that has to see the whole batch.
* **One example at a time**, by `torch.func.vmap` (`operations` too): how a tapped operation is done, and how a layer of
  one's own is computed as a whole.  There examples are kept apart by construction, whatever its code does with a batch.

No layer is computed a second time.  `trial` looks whether examples meet in the code between the layers, where nothing
is known by construction, and `forward_guard` stands around every pass: secret randomness, nothing left behind.
"""

from isthmus.gradients.layers.layers import Layers, tap
from isthmus.gradients.layers.rules import LayerRule, LeafBinding

__all__ = ["LeafBinding", "Layers", "LayerRule", "tap"]
