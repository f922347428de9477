"""The grid of Rényi orders on which every privacy loss is held.

Chosen by measurement (docs/theory/orders.md): ε on the grid is compared with ε at the best real order.
Where the curve is smooth, a coarse grid loses nothing. A subsampled release has a cliff, an order beyond
which its curve explodes, and an optimum just below the cliff loses up to one step of the grid: hence 16
orders an octave of α - 1 where ε between 0.1 and 10 has its optimum, and fewer outside.

Formal guarantee: any grid gives a valid ε.

Cost: the length of every privacy loss.
"""

import numpy as np


def _grid() -> np.ndarray:
    excess = np.concatenate(
        [
            2.0 ** np.arange(-6.6, -1.0, 0.4),  # α - 1: large ε, smooth curves
            2.0 ** (np.arange(-16, 112) / 16.0),
            2.0 ** (7.0 + np.arange(41) / 8.0),  # small ε
            [3.0],
        ]
    )
    orders = 1.0 + excess
    return np.unique(np.where(orders > 16.0, np.round(orders), orders))


ORDERS: np.ndarray = _grid()
"""Increasing, float64, all above 1, with 2, 3, 4, 5, 9 and every power of two plus one up to 4097."""
