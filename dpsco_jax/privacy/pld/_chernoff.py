"""Chernoff's bound on ε, from the exponential moments of a privacy loss.

It is Markov's inequality for (1 - e^(ε - L))₊, at most e^(λ(L - ε)) times λ^λ / (1 + λ)^(1 + λ), and holds
for a law without infinite losses; those are taken off δ by the caller.
"""

from typing import Any

import numpy as np


def chernoff_epsilon(moments: np.ndarray, tilts: np.ndarray, delta: float | np.ndarray) -> Any:
    """The ε that moments prove at δ: E (1 - e^(ε - L))₊ is at most E e^(λ(L - ε)) λ^λ / (1 + λ)^(1 + λ).

    Args:
        moments: for every tilt, the logarithm of E exp(λ L) of the composed law, ``[..., tilts]``.
        tilts: λ, positive.
        delta: in (0, 1); against the moments.
    """
    total = moments + tilts * np.log(tilts) - (1.0 + tilts) * np.log1p(tilts) - np.log(delta)
    return np.maximum(np.min(total / tilts, axis=-1), 0.0)
