"""Schedules, dimensions, rates and bounds of the papers as functions, each with its theorem.

Paper 001 is Kasiviswanathan, "SGD with low-dimensional gradients" (UAI 2021); paper 000 is Huang, Lei and Kaban,
"Optimisation and learning with randomly compressed gradient updates" (2023).  Where a paper misprints, the corrected
form is computed and the docstring says so.  O(.) bounds take their constant as an argument.

    function                                                    paper, statement
    ----------------------------------------------------------  --------------------------------------------
    narrow_dimension, dimension_at, rounds_until_full           001 CompSGD step 2a, Lemma 2.2; 000 Algorithms 1-3
    gordon_dimension, gordon_range, direction_width             001 Theorem A.3; 000 Theorem 18
    jl_dimension                                                001 section 1.1
    sparse_jl_dimension, sparse_jl_columns, sparse_jl_condition 001 Theorem A.4
    sparse_cone_width, sparse_cone_width_bound                  001 Lemma 2.2 at a sparse point of an l1 ball
    table_width                                                 001 Table 3
    Rule, Schedule                                              what a theorem prescribes, round by round
    strongly_convex_schedule                                    001 Theorem 2.3 parts 1, 2 (B.7, B.8), D.2 parts 1, 2
    convex_schedule                                             001 Theorem 2.3 part 3 (B.9)
    stationary_schedule, stationary_beta, stationary_batch,
      stationary_rounds, stationary_threshold,
      compressed_threshold                                      001 Theorem 2.4 (B.4)
    mapping_schedule, mapping_beta, mapping_batch,
      mapping_rounds                                            001 Theorem B.5
    expansion                                                   001 Lemma 2.2 (B.2); 000 Theorem 19
    distance_bound                                              001 Lemma B.6
    strongly_convex_smooth_rate, strongly_convex_rate           001 Theorem 2.3 parts 1, 2 (B.7, B.8)
    convex_rate                                                 001 Theorem 2.3 part 3 (B.9)
    stationary_decrease, stationary_step_bound                  001 Theorem 2.4, inequality (10)
    success_probability                                         001 Theorems 2.4, E.1, D.2 part 4
    mapping_rate                                                001 Theorem B.5, (12)
    floats, qsgd, qsgd_chi, qsgd_nonzeros, terngrad, vqsgd,
      random_sparsification -> Contraction                      001 section 3.2, (16), Appendix D.1
    aggregate_second_moment, aggregate_variance                 001 Lemma D.1 (b), (c)
    distributed_strongly_convex_smooth_rate                     001 Corollary D.2 part 1
    distributed_strongly_convex_rate                            001 Corollary D.2 part 2
    distributed_convex_rate, distributed_convex_schedule        001 Corollary D.2 part 3
    distributed_stationary_schedule                             001 Corollary D.2 part 4
    distributed_mapping_schedule                                001 Corollary D.2 part 5
    strongly_convex_smooth_communication                        001 Table 5 row 1
    strongly_convex_communication                               001 Table 5 row 2
    convex_communication                                        001 Table 2 row 1, Table 5 row 3
    stationary_communication                                    001 Table 2 row 2, Table 5 row 4
    mapping_communication -> Communication                      001 Table 5 row 5
    convex_fw_schedule, convex_fw_rate                          001 Theorem E.2
    stationary_fw_schedule, stationary_fw_step_bound            001 Theorem E.1, (18)
    compressed_gap                                              001 Theorem E.1
    shrinkage                                                   000 Lemma 4
    expansiveness, boundedness                                  000 Lemmas 2, 3
    weighted_average                                            000 section 2.2
    goal_schedule, goal_rounds                                  000 Tables 1, 2; Theorems 2-10
    optimisation_rate                                           000 Table 1; Theorems 4, 6, 8
    small_step_rate                                             000 Theorem 16
    stability_rate                                              000 Theorems 2, 3, 5, 7, 9, 10 part 1
    generalisation_rate                                         000 Table 2; Theorems 2, 3, 5, 7, 9, 10 part 2
    excess_risk                                                 000 Theorem 1, (3)
    smooth_divergence, smooth_divergence_path                   000 Theorems 2, 5, 9: (21), (86), (87)
    sgd_divergence                                              000 Theorem 3: (33)
    nonsmooth_divergence, nonsmooth_divergence_path             000 Theorems 7, 10: (63), (97), (107)
    optimisation_bound                                          000 Theorems 6, 8, 16 before their O(.)
    smooth_optimisation_bound                                   000 Theorem 4 before its O(.)
    uniform_stability, replace_record -> Stability              000 Definition 1, measured
"""

from isthmus.theory.contractions import (
    Contraction,
    floats,
    qsgd,
    qsgd_chi,
    qsgd_nonzeros,
    random_sparsification,
    terngrad,
    vqsgd,
)
from isthmus.theory.dimensions import (
    dimension_at,
    direction_width,
    gordon_dimension,
    gordon_range,
    jl_dimension,
    narrow_dimension,
    rounds_until_full,
    sparse_cone_width,
    sparse_cone_width_bound,
    sparse_jl_columns,
    sparse_jl_condition,
    sparse_jl_dimension,
    table_width,
)
from isthmus.theory.distributed import (
    Communication,
    aggregate_second_moment,
    aggregate_variance,
    convex_communication,
    distributed_convex_rate,
    distributed_convex_schedule,
    distributed_mapping_schedule,
    distributed_stationary_schedule,
    distributed_strongly_convex_rate,
    distributed_strongly_convex_smooth_rate,
    mapping_communication,
    stationary_communication,
    strongly_convex_communication,
    strongly_convex_smooth_communication,
)
from isthmus.theory.frank_wolfe import (
    compressed_gap,
    convex_fw_rate,
    convex_fw_schedule,
    stationary_fw_schedule,
    stationary_fw_step_bound,
)
from isthmus.theory.rates_compgd import (
    boundedness,
    excess_risk,
    expansiveness,
    generalisation_rate,
    goal_rounds,
    goal_schedule,
    optimisation_rate,
    shrinkage,
    small_step_rate,
    stability_rate,
    weighted_average,
)
from isthmus.theory.rates_compsgd import (
    convex_rate,
    distance_bound,
    expansion,
    mapping_rate,
    stationary_decrease,
    stationary_step_bound,
    strongly_convex_rate,
    strongly_convex_smooth_rate,
    success_probability,
)
from isthmus.theory.schedules import (
    Rule,
    Schedule,
    compressed_threshold,
    convex_schedule,
    mapping_batch,
    mapping_beta,
    mapping_rounds,
    mapping_schedule,
    stationary_batch,
    stationary_beta,
    stationary_rounds,
    stationary_schedule,
    stationary_threshold,
    strongly_convex_schedule,
)
from isthmus.theory.stability import (
    Stability,
    replace_record,
    uniform_stability,
)
from isthmus.theory.stability_bounds import (
    nonsmooth_divergence,
    nonsmooth_divergence_path,
    optimisation_bound,
    sgd_divergence,
    smooth_divergence,
    smooth_divergence_path,
    smooth_optimisation_bound,
)

__all__ = [
    "Communication",
    "Contraction",
    "Rule",
    "Schedule",
    "Stability",
    "aggregate_second_moment",
    "aggregate_variance",
    "boundedness",
    "compressed_gap",
    "compressed_threshold",
    "convex_communication",
    "convex_fw_rate",
    "convex_fw_schedule",
    "convex_rate",
    "convex_schedule",
    "dimension_at",
    "direction_width",
    "distance_bound",
    "distributed_convex_rate",
    "distributed_convex_schedule",
    "distributed_mapping_schedule",
    "distributed_stationary_schedule",
    "distributed_strongly_convex_rate",
    "distributed_strongly_convex_smooth_rate",
    "excess_risk",
    "expansion",
    "expansiveness",
    "floats",
    "generalisation_rate",
    "goal_rounds",
    "goal_schedule",
    "gordon_dimension",
    "gordon_range",
    "jl_dimension",
    "mapping_batch",
    "mapping_beta",
    "mapping_communication",
    "mapping_rate",
    "mapping_rounds",
    "mapping_schedule",
    "narrow_dimension",
    "nonsmooth_divergence",
    "nonsmooth_divergence_path",
    "optimisation_bound",
    "optimisation_rate",
    "qsgd",
    "qsgd_chi",
    "qsgd_nonzeros",
    "random_sparsification",
    "replace_record",
    "rounds_until_full",
    "sgd_divergence",
    "shrinkage",
    "small_step_rate",
    "smooth_divergence",
    "smooth_divergence_path",
    "smooth_optimisation_bound",
    "sparse_cone_width",
    "sparse_cone_width_bound",
    "sparse_jl_columns",
    "sparse_jl_condition",
    "sparse_jl_dimension",
    "stability_rate",
    "stationary_batch",
    "stationary_beta",
    "stationary_communication",
    "stationary_decrease",
    "stationary_fw_schedule",
    "stationary_fw_step_bound",
    "stationary_rounds",
    "stationary_schedule",
    "stationary_step_bound",
    "stationary_threshold",
    "strongly_convex_communication",
    "strongly_convex_rate",
    "strongly_convex_schedule",
    "strongly_convex_smooth_communication",
    "strongly_convex_smooth_rate",
    "success_probability",
    "table_width",
    "terngrad",
    "uniform_stability",
    "vqsgd",
    "weighted_average",
]
