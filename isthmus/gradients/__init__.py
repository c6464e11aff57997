"""Per-example gradients and codes, factored and never materialised.

| kind | rows | held as |
|---|---|---|
| `Dense(Y)` | y_i | the matrix |
| `Glm(r, X)` | r_i x_i | residuals and data, dense or CSR |
| `Outer(a, b)` | vec(sum_t b_it a_it') | layer inputs and output gradients |
| `Stack(items)` | leaves side by side | the leaves |
| `Lookup(index, values, V)` | vec(sum_t e_k c') | places and gradients |
| `Sum(pieces)` | sums of the two above | the pieces |
| `Computed(pieces)` | the products as a device computes them | the pieces |
| `ResidualRows(rows, codes, sketch)` | g_i - Phi^+ Phi g_i | rows and codes |
| `Counts(bins, n, blocks, width)` | ones at bins | a function of rows |
| `Lazy(chunk, n, d)` | whatever a function returns | the function |
"""

from isthmus.gradients.computed import Computed
from isthmus.gradients.rows import Counts, Dense, Glm, Lazy, Lookup, Outer, ResidualRows, Rows, Stack, Sum

__all__ = ["Computed", "Counts", "Dense", "Glm", "Lazy", "Lookup", "Outer", "ResidualRows", "Rows", "Stack", "Sum"]
