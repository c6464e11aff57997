"""Algorithms as recipes: each a short function that fills a pipeline; none has a loop of its own."""

from isthmus.algorithms.first_order import comp_gd, comp_sgd, gd, sgd

__all__ = ["comp_gd", "comp_sgd", "gd", "sgd"]
