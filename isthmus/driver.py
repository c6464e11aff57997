"""A pipeline inside a training loop of one's own."""

from isthmus.core.torch_loop import TorchDriver

__all__ = ["TorchDriver"]
