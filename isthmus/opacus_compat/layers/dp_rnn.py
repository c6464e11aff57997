"""Recurrent layers, with torch's arguments and state dicts."""

from isthmus.engine.modules import GRU as DPGRU
from isthmus.engine.modules import LSTM as DPLSTM
from isthmus.engine.modules import RNN as DPRNN

__all__ = ["DPGRU", "DPLSTM", "DPRNN"]
