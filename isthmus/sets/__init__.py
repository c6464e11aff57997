"""Constraint sets: membership, projection, linear minimisation, gauge, diameter and Gaussian width."""

from isthmus.sets.adapters import FromLMO, FromProjection
from isthmus.sets.balls import Ellipsoid, L1Ball, L2Ball, LInfBall, LpBall
from isthmus.sets.base import OPERATIONS, ConvexSet, UnsupportedOperation, VertexForm
from isthmus.sets.matrices import LowRank, NuclearBall
from isthmus.sets.polytopes import Box, ConvexHull, Simplex
from isthmus.sets.structured import GroupBall, Product, Subspace, Whole
from isthmus.sets.widths import Width

__all__ = ["OPERATIONS", "Box", "ConvexHull", "ConvexSet", "Ellipsoid", "FromLMO", "FromProjection", "GroupBall"]
__all__ += ["L1Ball", "L2Ball", "LInfBall", "LowRank", "LpBall", "NuclearBall", "Product", "Simplex", "Subspace"]
__all__ += ["UnsupportedOperation", "VertexForm", "Whole", "Width"]
