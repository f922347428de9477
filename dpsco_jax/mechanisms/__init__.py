"""How a statistic is released: pure functions that draw noise, and what they cost."""

from dpsco_jax.mechanisms import (
    additive,
    clustered_histogram,
    denoised_histogram,
    denoising,
    heavy_hitters,
    histogram_releases,
    histograms,
    lazy_draws,
    noisy_iteration,
    private_selection,
    selection,
    sparse_vector,
    two_stage_histogram,
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
    "clustered_histogram",
    "concentrated_mean",
    "denoised_histogram",
    "denoising",
    "heavy_hitters",
    "histogram_releases",
    "histograms",
    "lazy_draws",
    "noisy_iteration",
    "private_range",
    "private_selection",
    "selection",
    "sparse_vector",
    "two_stage_histogram",
    "winsorized_calibration",
    "winsorized_mean",
    "winsorized_releases",
]
