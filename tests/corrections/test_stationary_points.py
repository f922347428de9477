"""Sections C6 to C8 of docs/corrections.md: the printed claim fails, ours holds."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import lasry_lions
from dpsco_jax.problems import fixtures
from dpsco_jax.rates import nonconvex
from dpsco_jax.solvers.nonconvex import optimal_smoothing


def test_c6_14_table_6_1_and_the_gap():
    n, d = 1e6, 81.0
    known = nonconvex.stationarity("WCX19, empirical", n, d**9)
    np.testing.assert_allclose(known, (d**9) ** 0.25 / n**0.5, rtol=1e-12)
    assert known < 1e-3 * (d**9) ** 0.5 / n**0.5  # as printed
    gap = nonconvex.stationarity("spider, empirical", n, d) / nonconvex.stationarity(
        "lower bound, empirical, first order", n, d
    )
    np.testing.assert_allclose(np.log(gap) / np.log(d**0.5 / n), -1 / 3, rtol=1e-12)


def test_c8_7_every_point_of_a_sample_is_stationary_and_none_of_the_population():
    """Of 6 records, and 10⁴ cells in every neighbourhood: slopes of both signs, and ½ on average."""
    rng, users, cells = np.random.default_rng(0), 6, 10**4
    loss = fixtures.saw_tooth(1e-4, cells).loss
    signs = np.where(rng.random((users, cells)) < 0.75, 1.0, -1.0).astype(np.float32)
    places = (1e-4 * (np.arange(0, cells, 97) + 0.5)).astype(np.float32)[:, None]

    @jax.jit
    def slopes(points):
        one = jax.vmap(jax.grad(loss), (None, 0))
        return jnp.mean(jax.lax.map(lambda w: one(w, jnp.asarray(signs)), points), axis=1)[:, 0]

    # The loss does what the fixture says, at every 97th cell; in the others we read the signs.
    np.testing.assert_allclose(slopes(places), signs[:, ::97].mean(axis=0), atol=1e-6)
    sample = signs.mean(axis=0)
    for half in np.split(sample, 5):
        assert half.min() < -0.3
        assert half.max() > 0.5
    np.testing.assert_allclose(sample.mean(), 0.5, atol=4 * (0.75 / users / cells) ** 0.5)


def test_c7_6_the_printed_matrix_inequality_is_no_bound():
    """Of signs, d = 1: without the factor ½ in the exponent, and without that of both ends, it fails."""
    n, t = 100, 0.3
    true = 2 * stats.binom.sf(n * (1 + t) / 2 - 1e-9, n, 0.5)
    variance = n + n * t / 3
    assert true > 10 * np.exp(-((n * t) ** 2) / variance)  # as printed
    assert true <= 2 * np.exp(-0.5 * (n * t) ** 2 / variance)
    # The two ends are needed, too: for a small t one of them is half of the truth.
    small = 0.02
    both = 2 * stats.binom.sf(n * (1 + small) / 2 - 1e-9, n, 0.5)
    assert both > 0.9 * np.exp(-0.5 * (n * small) ** 2 / (n + n * small / 3))


def test_c8_9_height_and_smoothness_of_lasry_lions():
    grid, smoothing = np.arange(-300, 301) * 0.01, 0.2
    with jax.enable_x64(True):
        low, bowl = (
            np.asarray(lasry_lions.lasry_lions(slope * np.abs(grid), 0.01, smoothing).values)
            for slope in (-3.0, 3.0)
        )
    height = np.max(-3.0 * np.abs(grid) - low)
    assert 3.0 * smoothing < 0.99 * 9.0 * smoothing < height <= 9.0 * smoothing + 1e-9
    bend = np.max(np.abs(np.diff(bowl[200:-200], 2))) / 0.01**2
    np.testing.assert_allclose(bend, 1.0 / smoothing, rtol=1e-6)  # and not 3/λ
    users = [
        nonconvex.goldstein_samples(m, 0.1, 0.5, 3.0, lipschitz=8.0)
        for m in ("optimal smoothing", "optimal smoothing, printed")
    ]
    np.testing.assert_allclose(users[1] / users[0], 2.0, rtol=1e-12)


def test_c8_10_selection_needs_users_in_the_logarithm_of_the_radius_only():
    """What of the bound is noise, for α a thousandth: 4,000 times as many cells cost a factor of two."""
    loss = fixtures.capped_distance(1.0)
    with jax.enable_x64(True):
        plans = {
            (users, radius): optimal_smoothing.plan(
                Problem(loss, num_users=users, dim=1),
                Budget(1.0),
                initial_gap=1.0,
                smoothing_radius=radius,
                smoothing="lasry_lions",
                most_points=most,
            )
            for users in (10**4, 10**9)
            for radius, most in ((1.0, 2**10), (1e-3, 2**22))
        }
    noise = {
        radius: plans[10**4, radius].stationarity_bound - plans[10**9, radius].stationarity_bound
        for radius in (1.0, 1e-3)
    }
    assert noise[1e-3] < 2.2 * noise[1.0]
    assert noise[1e-3] < 0.02
    printed = [
        nonconvex.goldstein_samples("optimal smoothing", radius, 0.5, 1.0) for radius in (1e-3, 1.0)
    ]
    np.testing.assert_allclose(printed[0] / printed[1], 10.0, rtol=1e-9)
    assert plans[10**4, 1e-3].certificate().delta == 0.0
