"""Lifts: from R^m back to R^d or onto a constraint set.

`project_and_lift` and `solve_lift` are the solver; `basis_pursuit` and `cosamp` decode; the frozen parts (`adjoint`,
`pinv`, `unbiased`, `ProjectAndLift`, `CoSaMP`, `HeavyHitters`, `discard`) fill the lift slot of a pipeline.
"""

from isthmus.lifts.parts import CoSaMP, HeavyHitters, Lift, Lifted, ProjectAndLift, adjoint, discard, pinv, unbiased
from isthmus.lifts.project_lift import (
    BasisPursuit,
    LiftResult,
    basis_pursuit,
    compressed_gradient_mapping,
    cosamp,
    project_and_lift,
    solve_lift,
)

__all__ = ["BasisPursuit", "CoSaMP", "HeavyHitters", "Lift", "LiftResult", "Lifted", "ProjectAndLift", "adjoint"]
__all__ += ["basis_pursuit", "compressed_gradient_mapping", "cosamp", "discard", "pinv", "project_and_lift"]
__all__ += ["solve_lift", "unbiased"]
