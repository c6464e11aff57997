"""What public gradients and released values say about a private run.

Two kinds of input, and no third.  PUBLIC per-example gradients, as `isthmus.gradients.Rows` (the argument is called
`public` or `public_...`): spectra, captured energy, subspaces.  RELEASED values, noised and paid for: noise to signal.
Nothing here takes a loader, a model or private rows: the same figures of private data would leak.

    function                                    answers
    ------------------------------------------  ----------------------------------------------------------
    spectrum -> Spectrum, Spectra               eigenvalues of the second moment, also along training
    sorted_components -> Components             how fast the coordinates of the mean gradient fall
    captured_energy -> EnergyCurve, choose_k    what a public subspace keeps of gradients it has not seen
    eigen_gap                                   lambda_k - lambda_{k+1}
    principal_angles -> Angles,
      subspace_distance                         how far two subspaces are apart
    principal_residual_ratio                    the mean gradient inside and outside a subspace
    noise_to_signal -> NoiseToSignal, Tracker   how much of what was released is noise, also along training

Records have `.table()`, plain columns, and `.plot(ax=None)`, which returns matplotlib axes.
"""

from isthmus.diagnostics.spectra import (
    Angles,
    Components,
    EnergyCurve,
    Spectra,
    Spectrum,
    captured_energy,
    choose_k,
    eigen_gap,
    principal_angles,
    principal_residual_ratio,
    sorted_components,
    spectrum,
    subspace_distance,
)
from isthmus.diagnostics.tracking import NoiseToSignal, Sink, Tracker, noise_to_signal

__all__ = [
    "Angles",
    "Components",
    "EnergyCurve",
    "NoiseToSignal",
    "Sink",
    "Spectra",
    "Spectrum",
    "Tracker",
    "captured_energy",
    "choose_k",
    "eigen_gap",
    "noise_to_signal",
    "principal_angles",
    "principal_residual_ratio",
    "sorted_components",
    "spectrum",
    "subspace_distance",
]
