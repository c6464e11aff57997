"""What the theorems of five papers say of a run: rates, bounds, widths, costs, as functions.  Recipes take none of it;
`isthmus.theory` has the schedules that they take.

Paper 001 is Kasiviswanathan, "SGD with low-dimensional gradients" (UAI 2021); paper 000 is Huang, Lei and Kaban,
"Optimisation and learning with randomly compressed gradient updates" (2023); paper 002 is Farokhi, "Gradient
sparsification can improve performance of differentially-private convex machine learning"; paper 003 is
Maranjyan, Sadiev and Richtarik, "Differentially private random block coordinate descent"; paper 004 is Zhou, Wu and
Banerjee, "Bypassing the ambient dimension: private SGD with gradient subspace identification".  Where a paper
misprints, the corrected form is computed and the docstring says so.  O(.) bounds take their constant as an argument.
Private bounds speak of utility: the noise of a run comes from its accountant.

    function                                                      paper, statement
    ------------------------------------------------------------  --------------------------------------------
    dimension_at, rounds_until_full                               001 CompSGD step 2a, Lemma 2.2; 000 Algorithms 1-3
    gordon_dimension, gordon_range, direction_width               001 Theorem A.3; 000 Theorem 18
    jl_dimension                                                  001 section 1.1
    sparse_jl_dimension, sparse_jl_columns, sparse_jl_condition   001 Theorem A.4
    sparse_cone_width, sparse_cone_width_bound                    001 Lemma 2.2 at a sparse point of an l1 ball
    table_width                                                   001 Table 3
    compressed_threshold                                          001 Theorem 2.4 (B.4)
    expansion                                                     001 Lemma 2.2 (B.2); 000 Theorem 19
    distance_bound                                                001 Lemma B.6
    strongly_convex_smooth_rate, strongly_convex_rate             001 Theorem 2.3 parts 1, 2 (B.7, B.8)
    convex_rate                                                   001 Theorem 2.3 part 3 (B.9)
    stationary_decrease, stationary_step_bound                    001 Theorem 2.4, inequality (10)
    success_probability                                           001 Theorems 2.4, E.1, D.2 part 4
    mapping_rate                                                  001 Theorem B.5, (12)
    floats, qsgd, qsgd_chi, qsgd_nonzeros, terngrad, vqsgd,
      random_sparsification -> Contraction                        001 section 3.2, (16), Appendix D.1
    distributed_strongly_convex_smooth_rate                       001 Corollary D.2 part 1
    distributed_strongly_convex_rate                              001 Corollary D.2 part 2
    distributed_convex_rate                                       001 Corollary D.2 part 3
    strongly_convex_smooth_communication                          001 Table 5 row 1
    strongly_convex_communication                                 001 Table 5 row 2
    convex_communication                                          001 Table 2 row 1, Table 5 row 3
    stationary_communication                                      001 Table 2 row 2, Table 5 row 4
    mapping_communication -> Communication                        001 Table 5 row 5
    convex_fw_rate, oracle_error                                  001 Theorem E.2, footnote 5
    stationary_fw_step_bound                                      001 Theorem E.1, (18)
    compressed_gap                                                001 Theorem E.1
    shrinkage                                                     000 Lemma 4
    expansiveness, boundedness                                    000 Lemmas 2, 3
    weighted_average                                              000 section 2.2
    optimisation_rate                                             000 Table 1; Theorems 4, 6, 8
    small_step_rate                                               000 Theorem 16
    stability_rate                                                000 Theorems 2, 3, 5, 7, 9, 10 part 1
    generalisation_rate                                           000 Table 2; Theorems 2, 3, 5, 7, 9, 10 part 2
    excess_risk                                                   000 Theorem 1, (3)
    smooth_divergence, smooth_divergence_path                     000 Theorems 2, 5, 9: (21), (86), (87)
    sgd_divergence                                                000 Theorem 3: (33)
    nonsmooth_divergence, nonsmooth_divergence_path               000 Theorems 7, 10: (63), (97), (107)
    optimisation_bound                                            000 Theorems 6, 8, 16 before their O(.)
    smooth_optimisation_bound                                     000 Theorem 4 before its O(.)
    uniform_stability, replace_record -> Stability                000 Definition 1, measured
    private_optimisation_rate                                     000 Table 1; Theorems 11, 12, 14
    private_optimisation_bound                                    000 Theorems 11, 14 before their O(.)
    private_smooth_optimisation_bound                             000 Theorem 12 before its O(.)
    private_stability_rate                                        000 Theorems 13, 15 part 1
    private_generalisation_rate, total_dimension                  000 Table 2; Theorems 13, 15 part 2
    stationary_samples                                            001 Corollary C.2, Tables 1, 4
    mapping_samples                                               001 Corollary C.3, Table 4
    largest_entries, sparsification_loss                          002 (2), proof of Theorem 1
    compressive_dimension, cosamp_rounds                          002 Algorithms 1, 2
    compressive_error                                             002 Proposition 2
    compressive_gradient_bound, sparse_bound, last_iterate_bound  002 Theorem 1 and its proof
    compression_helps, sparsification_helps -> Comparison         002 section 3: does compression help?
    component_smoothness, block_lipschitz                         003 Assumptions 3.6, 3.7
    sampling_noise, block_noise, nice_noise                       003 Theorem 4.2, section 4.2.1: Sigma_S^2
    weighted_radius                                               003 Theorem 4.2: R_{M P^-1}, Gamma^-1
    component_noise                                               003 Theorem 4.1
    convex_block_bound                                            003 Theorem 4.2, convex (E.1)
    strongly_convex_block_bound                                   003 Theorem 4.2, strongly convex (E.2)
    block_convex_utility, block_strongly_convex_utility           003 Table 1
    block_gain                                                    003 section 4.3
    diagonal_majorant, matrix_block_bound                         003 section 5: a general smoothness matrix
    ellipsoid_gamma2, minkowski_gamma2, concentration_scale       004 Appendix A.2, Theorem 2: c_0
    moment_level, moment_deviation                                004 Theorem 2
    fresh_moment_deviation                                        004 Theorem 5
    subspace_perturbation, subspace_error, public_samples,
      eigen_gap_condition, gap_moment                             004 Theorem 3
    subspace_noise, projected_second_moment                       004 Theorems 1, 4, 6
    subspace_stationary_noise, subspace_stationary_projection,
      subspace_stationary_bound, subspace_stationary_rate         004 Theorem 4
    subspace_convex_noise, subspace_convex_projection,
      subspace_convex_bound, subspace_convex_rate                 004 Theorem 6
"""

# ruff: noqa: F403
from lab.theory.paper_000 import *
from lab.theory.paper_001 import *
from lab.theory.paper_002 import *
from lab.theory.paper_003 import *
from lab.theory.paper_004 import *
from lab.theory.schedules import *

_HELPERS = ()
_FILES = f"{__name__}.paper_", f"{__name__}.schedules"
__all__ = sorted(
    name
    for name, value in globals().items()
    if getattr(value, "__module__", "").startswith(_FILES) and not name.startswith("_") and name not in _HELPERS
)
"""The statements, and the classes that they return: whatever the files of the papers define."""


def __dir__() -> list[str]:
    return __all__
