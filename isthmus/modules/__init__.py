"""Modules fit for per-example gradients: recurrent layers built of linear ones, and the repair of others."""

from isthmus.modules.fix import Problem, get_compatible_module, is_compatible, validate
from isthmus.modules.recurrent import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "Problem", "get_compatible_module", "is_compatible", "validate"]
