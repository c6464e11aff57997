"""The steps, dimensions and numbers of rounds that the theorems of five papers prescribe: what a recipe takes.

Paper 001 is Kasiviswanathan, "SGD with low-dimensional gradients" (UAI 2021); paper 000 is Huang, Lei and Kaban,
"Optimisation and learning with randomly compressed gradient updates" (2023); paper 002 is Farokhi, "Gradient
sparsification can improve performance of differentially-private convex machine learning"; paper 003 is
Maranjyan, Sadiev and Richtarik, "Differentially private random block coordinate descent"; paper 004 is Zhou, Wu and
Banerjee, "Bypassing the ambient dimension: private SGD with gradient subspace identification".  Where a paper
misprints, the corrected form is computed and the docstring says so.  O(.) bounds take their constant as an argument.
Private bounds speak of utility: the noise of a run comes from its accountant.

    function                                                      paper, statement
    ------------------------------------------------------------  --------------------------------------------
    narrow_dimension                                              001 CompSGD step 2a, Lemma 2.2; 000 Algorithms 1-3
    Rule, Schedule                                                what a theorem prescribes, round by round
    strongly_convex_schedule                                      001 Theorem 2.3 parts 1, 2 (B.7, B.8), D.2 parts 1, 2
    convex_schedule                                               001 Theorem 2.3 part 3 (B.9)
    stationary_schedule                                           001 Theorem 2.4 (B.4)
    mapping_schedule                                              001 Theorem B.5
    aggregate_second_moment, aggregate_variance                   001 Lemma D.1 (b), (c)
    distributed_convex_schedule                                   001 Corollary D.2 part 3
    distributed_stationary_schedule                               001 Corollary D.2 part 4
    distributed_mapping_schedule                                  001 Corollary D.2 part 5
    convex_fw_schedule                                            001 Theorem E.2, footnote 5
    stationary_fw_schedule                                        001 Theorem E.1, (18)
    goal_schedule                                                 000 Tables 1, 2; Theorems 2-10
    private_optimisation_schedule                                 000 Table 1; Theorems 11, 12, 14
    private_generalisation_schedule                               000 Table 2; Theorems 13, 15
    private_stationary_schedule                                   001 Corollary C.2, Tables 1, 4
    private_mapping_schedule                                      001 Corollary C.3, Table 4
    compressive_scale                                             002 Algorithms 1, 2
    laplace_noise, dense_scale                                    002 Proposition 2 from the explicit noise
    sparse_schedule                                               002 Theorem 1 and its proof
    importance_probabilities, sampling_probabilities              003 sections 3.2, 4.2.1
    smoothness_ratios                                             003 Theorem 4.2: R_{M P^-1}, Gamma^-1
    convex_block_loops                                            003 Theorem 4.2, convex (E.1)
    strongly_convex_block_loops -> Loops                          003 Theorem 4.2, strongly convex (E.2)
    expected_smoothness                                           003 section 5: a general smoothness matrix
    subspace_schedule                                             004 Theorems 1, 4, 6
"""

from types import FunctionType

from isthmus.theory import schedules
from isthmus.theory.schedules import *  # noqa: F403

_HELPERS = "check_arguments check_subset_size cover law_of log_inverse round_up smoothness_matrix subsets".split()
__all__ = sorted(
    name
    for name, value in vars(schedules).items()
    if isinstance(value, (FunctionType, type))
    and value.__module__ == schedules.__name__
    and name not in _HELPERS
    and not name.startswith("_")
)
"""The statements, and the classes that they return."""


def __dir__() -> list[str]:
    return __all__
