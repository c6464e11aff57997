"""PyTorch training that is private: an engine of Opacus' shape over one pipeline."""

from isthmus.engine.engine import PrivacyEngine, warm_start
from isthmus.engine.loader import BatchMemoryManager, PrivateLoader
from isthmus.engine.options import GradientEmbedding

__all__ = ["BatchMemoryManager", "GradientEmbedding", "PrivacyEngine", "PrivateLoader", "warm_start"]
