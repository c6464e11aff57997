"""Lifts: from R^m back to R^d or onto a constraint set.

`project_and_lift` and `solve_lift` are the solver; `basis_pursuit` and `cosamp` decode; the frozen parts (`adjoint`,
`pinv`, `unbiased`, `ProjectAndLift`, `CoSaMP`, `HeavyHitters`, `discard`) fill the lift slot of a pipeline.
"""

from isthmus.lifts.parts import (
    Adjoint,
    CoSaMP,
    Discard,
    HeavyHitters,
    Lift,
    Lifted,
    Pinv,
    ProjectAndLift,
    Unbiased,
    adjoint,
    cosamp,
    discard,
    pinv,
    unbiased,
)
from isthmus.lifts.project_lift import (
    BasisPursuit,
    LiftResult,
    basis_pursuit,
    compressed_gradient_mapping,
    project_and_lift,
    solve_lift,
)

__all__ = ["Adjoint", "BasisPursuit", "CoSaMP", "Discard", "HeavyHitters", "Lift", "LiftResult", "Lifted", "Pinv"]
__all__ += ["ProjectAndLift", "Unbiased", "adjoint", "basis_pursuit", "compressed_gradient_mapping", "cosamp"]
__all__ += ["discard", "pinv", "project_and_lift", "solve_lift", "unbiased"]
