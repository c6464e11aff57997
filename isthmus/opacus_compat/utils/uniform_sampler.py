"""Poisson samplers of Opacus: refused, since `make_private` draws the batches itself, in secret."""

from isthmus.opacus_compat.refused import refused

UniformWithReplacementSampler = refused(
    "UniformWithReplacementSampler", "give make_private a plain loader: it draws Poisson batches itself, and in secret"
)

__all__ = ["UniformWithReplacementSampler"]
