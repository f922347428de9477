"""How much ε loses to the grid of orders: the measurement behind docs/theory/orders.md."""

import numpy as np
import pytest

from dpsco_jax.privacy import ORDERS
from tests.privacy.references import sampled_gaussian_log_moments

_STEPS = np.geomspace(1, 1e6, 13)
_DELTAS = 10.0 ** -np.arange(2, 11)
_RANGES = [(0.01, 0.1), (0.1, 1), (1, 10), (10, 100), (100, 1e4)]


def _epsilon(orders: np.ndarray, log_moments: np.ndarray) -> np.ndarray:
    """The conversion of ``privacy.epsilon`` on any orders, for all steps and deltas."""
    rdp = _STEPS[:, None] * log_moments / (orders - 1)
    offset = np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    eps = (rdp[:, None] + offset - np.log(_DELTAS)[:, None] / (orders - 1)).min(-1)
    without = (_DELTAS[:, None] ** 2 > -np.expm1(-rdp)[:, None]).any(-1)
    return np.where(without, 0.0, np.maximum(eps, 0.0))


def measure(grids: dict[str, np.ndarray], cases: int, seed: int = 5) -> dict[str, list[np.ndarray]]:
    """Excess of ε over the best real order in per cent, for each grid and range of ε."""
    dense = np.concatenate([1 + np.geomspace(0.004, 20, 500), np.geomspace(21, 2**17, 700)])
    rng = np.random.default_rng(seed)
    found = {name: [[] for _ in _RANGES] for name in grids}
    for case in range(cases):
        sigma = np.exp(rng.uniform(np.log(0.3), np.log(300)))
        q = 1.0 if case % 12 == 0 else np.exp(rng.uniform(np.log(1e-5), 0))
        everything = np.unique(np.concatenate([dense, *grids.values()]))
        log_moments = sampled_gaussian_log_moments(everything, sigma, q)
        best = _epsilon(everything, log_moments)
        for name, grid in grids.items():
            here = np.searchsorted(everything, grid)
            excess = 100 * (_epsilon(grid, log_moments[here]) / np.where(best > 0, best, 1) - 1)
            for bucket, (low, high) in zip(found[name], _RANGES, strict=True):
                bucket.append(excess[(best >= low) & (best < high)])
    return {name: [np.concatenate(b) for b in buckets] for name, buckets in found.items()}


@pytest.mark.slow
def test_excess_is_small():
    buckets = measure({"ours": ORDERS}, cases=150)["ours"]
    for (_, high), excess in zip(_RANGES, buckets, strict=True):
        assert np.median(excess) < (0.1 if high <= 0.1 or high > 100 else 0.03)
    assert np.quantile(buckets[1], 0.9) < 3
    assert np.quantile(buckets[2], 0.9) < 1
    assert np.max(np.concatenate(buckets[1:])) < 10


def test_the_reference_is_the_curve():
    from dpsco_jax.privacy import poisson_subsampled_gaussian

    for sigma, q in [(0.5, 0.01), (4.0, 1e-4), (100.0, 0.3)]:
        expected = sampled_gaussian_log_moments(ORDERS, sigma, q)
        found = poisson_subsampled_gaussian(sigma, q).rdp * (ORDERS - 1)
        np.testing.assert_allclose(found, expected, rtol=1e-7)
