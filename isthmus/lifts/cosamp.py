"""CoSaMP: sparse vectors from few measurements (Needell and Tropp 2009), for one vector or a batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.sets.base import Point
from isthmus.sketches.base import Sketch


def cosamp(sketch: Sketch | Point, y: Point, k: int, iterations: int | None = None) -> Point:
    """A k-sparse z with Phi z near y.

    Each iteration joins the 2k largest entries of Phi'(y - Phi z) to the support of z, solves least squares there
    and keeps the k largest entries.

    Args:
        sketch: a Sketch or an m x d matrix.
        y: (m,) or (batch, m).
        k: the sparsity.
        iterations: most iterations; 6(k + 1) by default, the count after which exact recovery is proven.

    Returns:
        z, (d,) or (batch, d), of the type and dtype of y.  Of all iterates (the zero vector included) the one of
        least residual: more iterations never make it worse.  An example stops when its residual is rounding, or when
        the columns it fits on are those of an earlier iteration: from there on its iterates come again (a support that
        repeats is no fixed point, because the 2k columns joined to it depend on its values).  Least squares are solved
        by a rank-revealing method, so 3k > m and dependent columns give the least-norm solution.

    >>> matrix = torch.eye(4).double()
    >>> cosamp(matrix, torch.tensor([0.0, 3.0, 0.0, -1.0]).double(), k=1).tolist()
    [0.0, 3.0, 0.0, 0.0]
    """
    codes = validate.as_tensor("y", y).detach()
    validate.check(codes.ndim in (1, 2), "y.shape", tuple(codes.shape), "give codes of shape (m,) or (batch, m)")
    validate.positive_int(k=k)
    if iterations is not None:
        validate.positive_int(iterations=iterations)
    matrix = _matrix(sketch, codes)
    validate.check(
        codes.shape[-1] == matrix.shape[0],
        "y.shape",
        tuple(codes.shape),
        f"give codes of length {len(matrix)}, which is the number of rows of Phi",
    )
    validate.at_most(matrix.shape[1], "the dimension d", k=k)
    z = _decode(matrix, codes.reshape(-1, matrix.shape[0]).to(matrix), k, iterations or 6 * (k + 1))
    z = z.reshape(*codes.shape[:-1], matrix.shape[1]).to(codes.dtype)
    if isinstance(y, Tensor):
        return z
    array: np.ndarray = z.numpy()
    return array


def _decode(matrix: Tensor, y: Tensor, k: int, iterations: int) -> Tensor:
    best = y.new_zeros(len(y), matrix.shape[1])
    least = torch.linalg.vector_norm(y, dim=1)
    rounding = 8 * torch.finfo(y.dtype).eps * least
    going = torch.nonzero(least > 0)[:, 0]
    z, tried = best[going], torch.empty(0)
    for _ in range(iterations):
        if len(going) == 0:
            break
        columns = _identify(matrix, y[going] - z @ matrix.T, z, k)
        if tried.numel():  # the next iterate depends on these columns alone: one that was fitted on them came before
            new = ~(tried == columns[:, None]).all(2).any(1)
            going, columns, tried = going[new], columns[new], tried[new]
            if len(going) == 0:
                break
        tried = torch.cat([tried, columns[:, None]], 1) if tried.numel() else columns[:, None]
        z = _fitted(matrix, y[going], columns, k)
        misfit = torch.linalg.vector_norm(y[going] - z @ matrix.T, dim=1)
        better = misfit < least[going]
        best[going[better]], least[going[better]] = z[better], misfit[better]
        stays = misfit > rounding[going]
        going, z, tried = going[stays], z[stays], tried[stays]
    return best


def _identify(matrix: Tensor, rest: Tensor, z: Tensor, k: int) -> Tensor:
    """The support of each z and the 2k columns that its residual has most of, ascending; d stands for none."""
    d = matrix.shape[1]
    marked = z != 0
    marked.scatter_(1, (rest @ matrix).abs().topk(min(2 * k, d), dim=1).indices, True)
    places = torch.where(marked, torch.arange(d, device=z.device), d)
    chosen: Tensor = places.topk(min(3 * k, d), dim=1, largest=False).values.sort(dim=1).values
    return chosen


def _fitted(matrix: Tensor, y: Tensor, columns: Tensor, k: int) -> Tensor:
    """Least squares on the columns of each row, its k largest entries kept."""
    d = matrix.shape[1]
    real = columns < d
    at = columns.clamp(max=d - 1)
    fit = _least_squares(matrix.T[at].mT * real[:, None, :], y) * real
    largest = fit.abs().topk(min(k, fit.shape[1]), dim=1).indices
    whole = y.new_zeros(len(y), d + 1)  # the last place takes what stands for no column
    return whole.scatter_(1, columns.gather(1, largest), fit.gather(1, largest))[:, :d]


def _least_squares(columns: Tensor, y: Tensor) -> Tensor:
    """Least-norm least squares of each system; CPU by LAPACK's gelsd, elsewhere by the pseudo-inverse."""
    if columns.device.type == "cpu":
        fit: Tensor = torch.linalg.lstsq(columns, y[..., None], driver="gelsd").solution
    else:
        fit = torch.linalg.pinv(columns) @ y[..., None]
    return fit[..., 0]


def _matrix(sketch: object, codes: Tensor) -> Tensor:
    """The matrix in float32 or better, on the device of the codes."""
    dtype = torch.promote_types(codes.dtype, torch.float32)
    dense = sketch.dense(dtype) if isinstance(sketch, Sketch) else validate.as_tensor("matrix", sketch, ndim=2)
    return dense.detach().to(codes.device, dtype)


__all__ = ["cosamp"]
