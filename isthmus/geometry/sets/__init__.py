"""Constraint sets: membership, projection, linear minimisation, gauge, diameter and Gaussian width."""

from isthmus.geometry.sets.adapters import FromLMO, FromProjection
from isthmus.geometry.sets.balls import L1Ball, L2Ball, LInfBall, LpBall
from isthmus.geometry.sets.base import OPERATIONS, ConvexSet, UnsupportedOperation, VertexForm
from isthmus.geometry.sets.linear import Ellipsoid, Subspace, Whole
from isthmus.geometry.sets.matrices import LowRank, NuclearBall
from isthmus.geometry.sets.polytopes import Box, ConvexHull, Simplex
from isthmus.geometry.sets.structured import GroupBall, Product
from isthmus.geometry.sets.widths import Width

__all__ = [
    "OPERATIONS",
    "Box",
    "ConvexHull",
    "ConvexSet",
    "Ellipsoid",
    "FromLMO",
    "FromProjection",
    "GroupBall",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "LowRank",
    "LpBall",
    "NuclearBall",
    "Product",
    "Simplex",
    "Subspace",
    "UnsupportedOperation",
    "VertexForm",
    "Whole",
    "Width",
]
