"""The least noise whose Rényi curve proves a budget, in about five curves.

The search is false position on the logarithms of ε and of the noise, from a rule of thumb that is mostly
within a few percent of it.
"""

import math
from collections.abc import Callable

import numpy as np

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.privacy.certified_noise import root_above
from dpsco_jax.privacy.loss import PrivacyLoss, epsilon
from dpsco_jax.privacy.orders import ORDERS

LEAST_MULTIPLIER = 0.01
_UNDER_BUDGET = 4e-7
_ASIDE = 6  # orders on either side of the best


def least_multiplier(
    epsilon_of: Callable[[float], float], epsilon: float, delta: float, start: float, most: float
) -> float:
    """The multiplier, at least 0.01, whose curve proves at most ε, and at most 4e-7 less, relative.

    Args:
        epsilon_of: what the curve proves at ``delta`` for a multiplier; falling.
        epsilon: the target.
        delta: for the message.
        start: where the search starts, positive; possibly infinite.
        most: the largest multiplier that is tried.

    Raises:
        Infeasible: not even ``most`` meets the target.
    """

    def excess(log_multiplier: float) -> float:
        spent = epsilon_of(math.exp(log_multiplier))
        # What is not a number is no proof, and no order is defined with it.
        return math.log(1e4 if math.isnan(spent) else min(max(spent / epsilon, 1e-4), 1e4))

    low, high = math.log(LEAST_MULTIPLIER), math.log(most)
    start = math.log(min(max(start, LEAST_MULTIPLIER), most))
    root = root_above(excess, start, _UNDER_BUDGET, low, high)
    if root == math.inf:
        raise Infeasible(
            f"epsilon must be what some noise multiplier up to {most:g} meets at delta = {delta:g},"
            f" got {epsilon}"
        )
    return math.exp(root)


def rule_of_thumb(epsilon: float, delta: float, num_steps: int, rate: float) -> float:
    """About the multiplier: χ² divergences of sampled Gaussians add up to that of one.

    Args:
        epsilon: positive.
        delta: in (0, 1).
        num_steps: T, at least 1.
        rate: with which a record takes part in a step, in [0, 1].

    Returns:
        Positive, and infinite where it would be beyond 1e150.
    """
    root = math.sqrt(-math.log(delta))
    # A difference of roots, without the cancellation.
    total = math.sqrt(2.0) * epsilon / (math.sqrt(root * root + epsilon) + root)
    # Who is hardly ever sampled needs hardly any noise.
    each = total / (math.sqrt(num_steps) * max(rate, 1e-12))
    if each < 1e-150:
        return math.inf
    return 1.0 / math.sqrt(math.log1p(min(each, 1e150) ** 2))


def spent_near(
    whole: Callable[[float], PrivacyLoss],
    some: Callable[[float, slice], PrivacyLoss],
    target: float,
    delta: float,
) -> Callable[[float], float]:
    """ε at δ as a function of the noise multiplier, which remembers where the best order was.

    A curve that is infinite but at thirteen orders around the best of the curve before it takes a third of
    the time. Fewer orders prove no less, so what is returned is a bound like any other; where the best is not
    among them, it is that of the whole curve.

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
