"""The grid of Rényi orders on which every privacy loss is held."""

import numpy as np

ORDERS: np.ndarray = np.concatenate(
    [1.0 + np.geomspace(0.01, 9.0, 40), np.unique(np.round(np.geomspace(11, 4096, 60)))]
)
"""Provisional."""
