"""Every number that fillings and the planner's rules were given, in one frozen table.

They come from measurements on validation rows that `docs/planner.md` names; none is fitted to the data of a run.
Shares of the budget are those of the purchases that the recipes make; clip and curvature are those of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """The table.  b is n mu: records times the Gaussian-DP parameter of the budget."""

    small: int = 300
    """Up to this many columns X'X is bought, and CSR columns are centred."""
    # ------------------------------------------------------------ tau: accumulated noise that a margin may get
    tau_labels: float = 10.0
    tau_numbers: float = 3.0
    """Over sqrt(d), within the bounds below."""
    tau_labels_within: tuple[tuple[float, float], tuple[float, float]] = ((1.0, 3.0), (0.3, 3.0))
    tau_numbers_within: tuple[tuple[float, float], tuple[float, float]] = ((0.3, 1.0), (0.1, 1.0))
    """(dense, CSR)."""
    clip_b: float = 100.0
    """From b of so many times the parameters on the clip grows in proportion, up to where nothing is clipped."""
    # ------------------------------------------------------------ the prepared DP-GD
    statistics_b: float = 0.5
    """X'X is bought where b is at least this times d^2,"""
    several_b: float = 13.0
    """Columns of CSR rows with several outputs where b is at least this times sqrt(d),"""
    moments_b: float = 6.0
    """and column moments of dense rows where b is at least this times d."""
    shapes_b: tuple[float, float] = (8e3, 1e5)
    """Histograms of the columns where b^2 / (d + 1) is at least this (one output, several),"""
    shapes_levels: tuple[float, ...] = (4.6e4, 7e4, 1.1e5, 1.8e5)
    """on a finer grid from each of these on,"""
    shapes_statistics_b: tuple[float, float] = (0.5, 0.25)
    """X'X of smooth features where b is at least these times the squares of the numbers of columns and of features,"""
    copied: int = 2 << 30
    """Bytes that features, which are a copy of the rows, may take where nobody asked for them."""
    functions: int = 6
    features_b: float = 0.05
    """with at most so many functions of a column, and so many features in all over b."""
    statistics_rounds: int = 50
    shapes_rounds: int = 100
    scaled_rounds: int = 200
    unscaled_rounds: int = 400
    text_rounds: tuple[int, int] = (100, 400)
    text_unit: float = 100.0
    """On long CSR rows T = tau b / (100 C), within `text_rounds`."""
    # ------------------------------------------------------------ plain runs
    longest: float = 1.8
    """Steps over 1 / L: just stable."""
    full_rounds: tuple[int, int] = (100, 400)
    batches: int = 100
    sampled_rounds: int = 1000
    # ------------------------------------------------------------ few passes
    few_passes: int = 10
    few_passes_unscaled: int = 50
    lanczos_passes: int = 60
    """Passes that lambda_max takes where the Gram matrix is too large."""
    # ------------------------------------------------------------ narrow spaces
    narrow: tuple[int, int] = (50, 500)
    narrowing: int = 20
    """m is a twentieth of the parameters, within `narrow`."""
    small_records: int = 10_000
    """Up to this many records looking at all of them in 1000 rounds is cheap."""
    captured: float = 0.8
    """Share of hold-out energy, beyond that of random directions, from which public directions are preferred."""
    # ------------------------------------------------------------ blocks of coordinates
    blocks: int = 10
    inner: int = 250
    block_floor: float = 0.1
    moment_floor: float = 0.01
    uneven: float = 100.0
    """Component smoothness that differs by this factor asks for steps of its own."""
    block_b: float = 8.0
    block_dims: int = 500
    """Blocks by public frequencies are preferred from this b over d (dense, many records), so many numbers (CSR) on."""
    coordinate_passes: int = 20
    coordinate_rounds: tuple[int, int] = (500, 2000)
    loops: int = 4
    # ------------------------------------------------------------ sparse gradients and vertices
    kappa: int = 10
    codes: tuple[int, int] = (50, 100)
    decodings: int = 20
    selections: int = 20
    sparse_b: tuple[float, float] = (2.0, 10.0)
    sparse_share: int = 20
    """Few coefficients are selected below this b over d: the second where at most a twentieth of them matter."""
    vertices: tuple[int, int] = (10, 100)
    tight: float = 5.0
    """A polytope is small where radius times |x_ij| is at most this."""
    # ------------------------------------------------------------ what to expect
    nothing_b: tuple[float, float] = (50.0, 100.0)
    """Below the first of these b, or d, nothing is learned; below the second, or 3 d, little."""
    sparse_columns: int = 100
    """Directions that rows of CSR are taken to have."""
    # ------------------------------------------------------------ variance reduction
    svrg_inner: int = 20
    svrg_step: float = 1.0
    # ------------------------------------------------------------ without a budget
    free_batch: int = 256
    free_epochs: int = 20
    free_rounds: int = 300
    free_step: float = 1.0
    feedback_step: float = 0.25
    momentum: float = 0.9


CONSTANTS = Constants()
