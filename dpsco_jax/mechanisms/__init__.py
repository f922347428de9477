"""How a statistic is released: pure functions that draw noise, and what they cost."""

from dpsco_jax.mechanisms import (
    additive,
    denoising,
    histograms,
    noisy_iteration,
    private_selection,
    selection,
    sparse_vector,
)
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.mechanisms.winsorized import (
    private_range,
    winsorized_calibration,
    winsorized_mean,
    winsorized_releases,
)

__all__ = [
    "additive",
    "concentrated_mean",
    "denoising",
    "histograms",
    "noisy_iteration",
    "private_range",
    "private_selection",
    "selection",
    "sparse_vector",
    "winsorized_calibration",
    "winsorized_mean",
    "winsorized_releases",
]
