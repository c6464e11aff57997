"""Per-example gradients and codes, factored and never materialised.

| kind | rows | held as |
|---|---|---|
| `Dense(Y)` | y_i | the matrix |
| `Glm(r, X)` | r_i x_i | residuals and data, dense or CSR |
| `Outer(a, b)` | vec(sum_t b_it a_it') | layer inputs and output gradients |
| `Stack(items)` | leaves side by side | the leaves |
| `Difference(a, b)` | a_i - b_i | factors where it can |
| `Grouped(rows, size)` | means of consecutive rows | factors where it can |
| `Lookup(index, values, V)` | vec(sum_t e_k c') | places and gradients |
| `BlockOuter(a, b)` | blocks sum_t b a' | factors |
| `Computed(pieces)` | the products as a device computes them | the pieces |
| `Gridded(outer, bound)` | b a' of one term, summed in whole numbers | the factors |
| `Sum(pieces)` | sums of kinds | the pieces |
| `ResidualRows(rows, codes, sketch)` | g_i - Phi^+ Phi g_i | rows and codes |
| `Counts(bins, n, blocks, width)` | ones at bins | a function of rows |
| `Lazy(chunk, n, d)` | whatever a function returns | the function |
"""

from isthmus.gradients.base import Dense, Difference, Grouped, Lazy, Rows
from isthmus.gradients.block_outer import BlockOuter
from isthmus.gradients.computed import Computed
from isthmus.gradients.counts import Counts
from isthmus.gradients.grids import Gridded
from isthmus.gradients.lookup import Lookup
from isthmus.gradients.outer import Glm, Outer
from isthmus.gradients.residual import ResidualRows
from isthmus.gradients.stack import Stack
from isthmus.gradients.tied import Sum

__all__ = [
    "BlockOuter",
    "Computed",
    "Counts",
    "Dense",
    "Difference",
    "Glm",
    "Gridded",
    "Grouped",
    "Lazy",
    "Lookup",
    "Outer",
    "ResidualRows",
    "Rows",
    "Stack",
    "Sum",
]
