"""A pipeline inside a training loop of one's own."""

from isthmus.core.driver import TorchDriver

__all__ = ["TorchDriver"]
