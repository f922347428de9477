"""ε of Rényi curves for searches that end near a target: of the orders around the best one alone.

A curve that is infinite but at thirteen orders around the best of the curve before it takes a third of the
time. Fewer orders prove no less, so what is returned is a bound like any other; where the best is not inside
of them, it is that of the whole curve.
"""

import math
from collections.abc import Callable

import numpy as np

from dpsco_jax.privacy.loss import PrivacyLoss, epsilon
from dpsco_jax.privacy.orders import ORDERS

_ASIDE = 6


def spent(
    whole: Callable[[float], PrivacyLoss],
    some: Callable[[float, slice], PrivacyLoss],
    target: float,
    delta: float,
) -> Callable[[float], float]:
    """ε at δ as a function of the noise multiplier, which remembers where the best order was.

    Args:
        whole: the curve of a multiplier.
        some: the same at some ``ORDERS`` in a row, infinite at the others.
        target: the ε near which the search ends.
        delta: in (0, 1).
    """
    near = _around(_likely_order(target, delta))

    def found(multiplier: float) -> float:
        nonlocal near
        few = some(multiplier, near)
        # Where the best is the last of them, others may prove more.
        if near.start < _best_order(few, delta) < near.stop - 1:
            return float(epsilon(few, delta))
        all_orders = whole(multiplier)
        near = _around(_best_order(all_orders, delta))
        return float(epsilon(all_orders, delta))

    return found


def _around(order: int) -> slice:
    return slice(max(order - _ASIDE, 0), min(order + _ASIDE + 1, len(ORDERS)))


def _best_order(loss: PrivacyLoss, delta: float) -> int:
    """The place in ``ORDERS`` at which a loss without failures proves the least ε, before it is rounded."""
    with np.errstate(invalid="ignore"):
        found = (
            loss.rdp + np.log1p(-1.0 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1.0)
        )
    return int(np.argmin(np.where(np.isfinite(found), found, np.inf)))


def _likely_order(epsilon: float, delta: float) -> int:
    """The place in ``ORDERS`` that is the best for one Gaussian which spends ε at δ, about."""
    root = math.sqrt(-math.log(delta))
    total = max(math.sqrt(2.0) * epsilon / (math.sqrt(root * root + epsilon) + root), 1e-150)
    return min(int(np.searchsorted(ORDERS, 1.0 + math.sqrt(2.0) * root / total)), len(ORDERS) - 1)
