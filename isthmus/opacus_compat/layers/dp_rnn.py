"""Recurrent layers, with torch's arguments and state dicts."""

from isthmus.modules import GRU as DPGRU
from isthmus.modules import LSTM as DPLSTM
from isthmus.modules import RNN as DPRNN

__all__ = ["DPGRU", "DPLSTM", "DPRNN"]
