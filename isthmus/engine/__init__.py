"""PyTorch training that is private: an engine of Opacus' shape over one pipeline."""

from isthmus.engine.engine import PrivacyEngine
from isthmus.engine.loader import BatchMemoryManager, PrivateLoader
from isthmus.engine.options import GradientEmbedding
from isthmus.engine.start import warm_start

__all__ = ["BatchMemoryManager", "GradientEmbedding", "PrivacyEngine", "PrivateLoader", "warm_start"]
