"""Attention: torch's own layer has per-example gradients."""

from torch.nn import MultiheadAttention as DPMultiheadAttention

__all__ = ["DPMultiheadAttention"]
