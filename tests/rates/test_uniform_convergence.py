"""Uniform convergence of gradients and Hessians: its orders, its proof at a point, and a population."""

import math

import numpy as np
import pytest

from dpsco_jax.rates.uniform_convergence import erm_sosp_to_population

UNITS = {
    "diameter": 2.0,
    "lipschitz": 1.0,
    "smoothness": 1.0,
    "hessian_lipschitz": 1.0,
    "stationarity": 0.0,
}


def bounds(num_users, dim, **given):
    return erm_sosp_to_population(num_users, dim, **UNITS | given)


def test_radii_fall_as_the_root_of_dimension_over_users():
    few, many = bounds(10**6, 10), bounds(10**10, 10)
    for name in ("gradient", "hessian"):
        slope = math.log(getattr(many, name) / getattr(few, name)) / math.log(10**4)
        assert -0.5 < slope < -0.45  # up to a logarithm of n
    wide = bounds(10**10, 1000)
    assert 8 < wide.gradient / many.gradient < 10


@pytest.mark.parametrize("name", ["gradient", "hessian"])
def test_between_points_nothing_is_forgotten(name):
    """Of one point, a set without diameter, only what chance does is left; by hand."""
    n, d = 10**5, 7
    found = bounds(n, d, diameter=1e-12)
    points = d * math.log(3.0) + math.log(4 / 0.05)
    level = (points + math.log(d)) / n
    wanted = {
        "gradient": 2 * math.sqrt(2 * points / n),
        "hessian": math.sqrt(2 * level + 4 * level**2 / 9) + 2 * level / 3,
    }
    assert getattr(found, name) == pytest.approx(wanted[name], rel=1e-6)


def test_the_radius_of_the_net_is_the_best_of_those_that_are_tried():
    n, d = 10**6, 10
    found, r = bounds(n, d), 2.0 ** -np.arange(-1.0, 40.0, 0.05)
    points = d * np.log1p(4.0 / r) + math.log(80.0)
    best = np.min(2 * np.sqrt(2 * points / n) + 2 * r)
    assert best <= found.gradient <= 1.01 * best
    level = (points + math.log(d)) / n
    spread = np.sqrt(2 * level + 4 * level**2 / 9) + 2 * level / 3
    best = np.min(spread + 2 * 0.3 * r)
    assert best <= bounds(n, d, hessian_lipschitz=0.3).hessian <= 1.01 * best


def test_stationarity_of_the_population_by_hand():
    found = bounds(10**6, 10, stationarity=0.01, hessian_lipschitz=0.3)
    down = (0.1 + found.hessian / math.sqrt(0.3)) ** 2
    assert found.stationarity == pytest.approx(max(0.01 + found.gradient, down), rel=1e-12)
    assert found.stationarity > 0.01


def test_curvature_that_is_hardly_negative_counts_half():
    all_of_it, none = bounds(10**8, 5), bounds(10**8, 5, weak_convexity=0.0)
    assert 0.49 < none.hessian / all_of_it.hessian < 0.53
    assert none.gradient == all_of_it.gradient
    with pytest.raises(ValueError, match="weak_convexity must be at most"):
        bounds(10**8, 5, weak_convexity=1.1)


def test_matrices_and_vectors_stay_within_it():
    """At one point, of the worst laws we know: signs along one direction. 2,000 samples, none beyond."""
    n, rng = 500, np.random.default_rng(0)
    found = bounds(n, 1, diameter=1e-12)
    means = np.abs(rng.choice([-1.0, 1.0], (2000, n)).mean(axis=1))
    assert np.mean(means > found.gradient) == 0.0
    assert np.mean(means > found.hessian) <= 0.05
    assert np.quantile(means, 0.999) > 0.4 * found.hessian  # and it is not far off
