"""Algorithms as recipes: each a short function that fills a pipeline; none has a loop of its own.

| recipe | paper | what it is |
|---|---|---|
| `sgd`, `gd` | - | projected (stochastic) gradient descent |
| `comp_sgd`, `comp_gd`, `comp_minibatch` | 001, 000 | the same with m numbers of each gradient |
| `comp_dist_sgd` | 001, App. D | clients send sketches, drawn from a shared seed |
| `comp_fw` | 001, App. E | Frank-Wolfe on compressed gradients |
| `dp_sgd`, `dp_gd` | - | clipped sums, noise in R^d |
| `priv_sgd` = `dp_comp_gd`, `dp_comp_minibatch` | 001, 000 | sketch, clip after, noise in R^m, project and lift |
| `compressive_dp_sgd` | 002 | noise on codes, a sparse gradient decoded after it |
| `dp_skgd`, `dp_cd` | 003 | random blocks of coordinates, each with its own step |
| `pdp_sgd`, `rpdp_sgd` | 004 | noise in the top-k eigenspace of public gradients, or in k random directions |
| `mirror_descent`, `dp_mirror_descent` | - | multiplicative steps on the simplex |
| `dp_subspace_gd` | - | noise in a subspace of the rows that is bought first |
| `dp_svrg` | - | private anchor and differences |
| `dp_fw` | - | Frank-Wolfe with privately chosen vertices |

A recipe of your own is a function that returns a `Recipe`; a private one takes its `Budget` and `rounds_of` a run.
Declared by `@algorithm`, planner and estimators fill and run it like these.
"""

from isthmus.algorithms.base import Budget, WidthRule, rounds_of
from isthmus.algorithms.first_order import comp_dist_sgd, comp_gd, comp_minibatch, comp_sgd, gd, mirror_descent, sgd
from isthmus.algorithms.frank_wolfe import comp_fw, dp_fw
from isthmus.algorithms.inner_loops import dp_cd, dp_skgd, dp_svrg
from isthmus.algorithms.narrow import compressive_dp_sgd, dp_subspace_gd, pdp_sgd, rpdp_sgd
from isthmus.algorithms.private import dp_comp_gd, dp_comp_minibatch, dp_gd, dp_mirror_descent, dp_sgd, priv_sgd
from isthmus.algorithms.suggest import Algorithm, algorithm

_PLAIN = (dp_gd, dp_sgd, dp_svrg)
_NARROW = (priv_sgd, dp_comp_gd, dp_comp_minibatch, pdp_sgd, rpdp_sgd, compressive_dp_sgd, dp_skgd, dp_cd, dp_fw)
_ASKED = (dp_mirror_descent, mirror_descent, dp_subspace_gd)
_FREE = (gd, sgd, comp_sgd, comp_gd, comp_minibatch, comp_fw, comp_dist_sgd)
KNOWN: dict[str, Algorithm[...]] = {entry.name: entry for entry in (*_PLAIN, *_NARROW, *_FREE, *_ASKED)}
"""The recipes by their names, for planner, estimators and reports; of two that rank alike the first is preferred."""

__all__ = ["Algorithm", "Budget", "WidthRule", "algorithm", "rounds_of"]
__all__ += ["comp_dist_sgd", "comp_fw", "comp_gd", "comp_minibatch", "comp_sgd", "gd", "mirror_descent", "sgd"]
__all__ += ["dp_comp_gd", "dp_comp_minibatch", "dp_gd", "dp_mirror_descent", "dp_sgd", "dp_svrg", "priv_sgd"]
__all__ += ["compressive_dp_sgd", "dp_cd", "dp_fw", "dp_skgd", "dp_subspace_gd", "pdp_sgd", "rpdp_sgd"]
