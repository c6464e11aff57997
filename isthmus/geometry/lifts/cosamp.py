"""CoSaMP: sparse vectors from few measurements (Needell and Tropp 2009), for one vector or a batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.geometry.sets.base import Point
from isthmus.geometry.sketches.base import Sketch


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
        least residual: more iterations never make it worse.  An example stops when its support repeats or its
        residual is rounding.  Least squares are solved by a rank-revealing method, so 3k > m and dependent columns
        give the least-norm solution.

    >>> matrix = torch.eye(4).double()
    >>> cosamp(matrix, torch.tensor([0.0, 3.0, 0.0, -1.0]).double(), k=1).tolist()
    [0.0, 3.0, 0.0, 0.0]
    """
    codes = validate.as_tensor("y", y).detach()
    validate.check(codes.ndim in (1, 2), "y.shape", tuple(codes.shape), "give (m,) or (batch, m)")
    validate.positive_int(k=k)
    if iterations is not None:
        validate.positive_int(iterations=iterations)
    matrix = _matrix(sketch, codes)
    validate.check(codes.shape[-1] == matrix.shape[0], "y.shape", tuple(codes.shape), f"Phi has {len(matrix)} rows")
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
    z = best[going]
    for _ in range(iterations):
        if len(going) == 0:
            break
        code = y[going]
        new = _iterate(matrix, code, code - z @ matrix.T, z, k)
        left = torch.linalg.vector_norm(code - new @ matrix.T, dim=1)
        better = left < least[going]
        best[going[better]], least[going[better]] = new[better], left[better]
        stays = ((new != 0) != (z != 0)).any(1) & (left > rounding[going])
        going, z = going[stays], new[stays]
    return best


def _iterate(matrix: Tensor, y: Tensor, rest: Tensor, z: Tensor, k: int) -> Tensor:
    """One identification, estimation and pruning for each row."""
    d = matrix.shape[1]
    marked = z != 0
    marked.scatter_(1, (rest @ matrix).abs().topk(min(2 * k, d), dim=1).indices, True)
    chosen = marked.to(y.dtype).topk(min(3 * k, d), dim=1)
    columns = matrix.T[chosen.indices].mT * chosen.values[:, None, :]
    fit = _least_squares(columns, y) * chosen.values
    kept = fit.abs().topk(min(k, fit.shape[1]), dim=1).indices
    return torch.zeros_like(z).scatter_(1, chosen.indices.gather(1, kept), fit.gather(1, kept))


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
