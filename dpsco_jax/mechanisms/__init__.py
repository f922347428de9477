"""How a statistic is released: pure functions that draw noise, and what they cost."""

from dpsco_jax.mechanisms import (
    additive,
    concentrated_mean,
    denoising,
    histograms,
    private_range,
    private_selection,
    selection,
    sparse_vector,
    winsorized_calibration,
    winsorized_mean,
    winsorized_releases,
)

__all__ = [
    "additive",
    "concentrated_mean",
    "denoising",
    "histograms",
    "private_range",
    "private_selection",
    "selection",
    "sparse_vector",
    "winsorized_calibration",
    "winsorized_mean",
    "winsorized_releases",
]
