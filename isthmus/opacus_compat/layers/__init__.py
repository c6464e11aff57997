"""Layers that have per-example gradients, under Opacus' names: ours for recurrent ones, torch's own for attention."""

from isthmus.opacus_compat.layers.dp_multihead_attention import DPMultiheadAttention
from isthmus.opacus_compat.layers.dp_rnn import DPGRU, DPLSTM, DPRNN

__all__ = ["DPGRU", "DPLSTM", "DPMultiheadAttention", "DPRNN"]
