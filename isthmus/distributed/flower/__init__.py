"""Clients of Flower that send sketches: a strategy, a client app, a mod (docs/distributed.md; extra `flower`)."""

from isthmus.distributed.flower.client import client_app, sketch_mod
from isthmus.distributed.flower.federation import Elsewhere, Federation, LocalSteps, from_arrays, space_of, to_arrays
from isthmus.distributed.flower.server import FlowerClients, LocalGrid, NobodyAnswered, SketchStrategy

__all__ = ["Elsewhere", "Federation", "FlowerClients", "LocalGrid", "LocalSteps", "NobodyAnswered", "SketchStrategy"]
__all__ += ["client_app", "from_arrays", "sketch_mod", "space_of", "to_arrays"]
