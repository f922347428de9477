"""Drift and privacy of simulated phases, against the bounds: statistical, slow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.privacy.curves.composition import log_gaussian_delta
from dpsco_jax.privacy.resque import ResqueCall, calls_epsilon
from dpsco_jax.privacy.resque._drift import drift_factor, log_drift_norms, log_tail
from experiments.studies.resque_drift import coupled_drifts


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [4.0, 12.0])
def test_drift_of_coupled_runs_is_within_its_bounds(ratio):
    queries, trials = 512, 4000
    drift = np.asarray(coupled_drifts(jax.random.key(0), queries, ratio, 0, trials))
    norms = np.exp(log_drift_norms(queries, ratio)[:8])
    for p in (1, 4):  # root mean square, and the norm of order 8
        moments = drift ** (2 * p)
        least = np.mean(moments) - 3 * np.std(moments) / np.sqrt(trials)
        assert least < norms[p - 1] ** (2 * p)
        assert np.mean(moments) ** (1 / (2 * p)) > 0.8 * norms[p - 1]
    for share in (0.05, 0.01, 0.001):
        above = np.mean(drift > drift_factor(queries, ratio, share))
        assert above <= share + 3 * np.sqrt(share / trials)
    levels = np.quantile(drift, [0.5, 0.9, 0.99])
    assert np.all(np.exp(log_tail(queries, ratio, levels)) >= [0.5, 0.1, 0.01])


def phase_outputs(key, sign, beta, trials, noise=1.0, position=0):
    """x_1 of T̂ = 16 in one dimension, ρ = 32 r, from the edge of the ball: only the record has a slope."""
    steps, ratio = 8, 32.0
    step = 2 / (4 * np.sqrt(16))

    def run(key):
        shifts_key, noise_key, place_key = jax.random.split(key, 3)
        xi = ratio * jax.random.normal(shifts_key, (steps,))
        place = position if position is not None else jax.random.randint(place_key, (), 0, 150)
        slopes = jnp.where(jnp.arange(steps) == place, sign, 0.0)

        def body(y, xs):
            slope, shift = xs
            weight = jnp.exp(y * shift / ratio**2 - y**2 / (2 * ratio**2))
            return jnp.clip(y - step * weight * slope, -1.0, 1.0), y

        _, path = jax.lax.scan(body, jnp.zeros(()), (slopes, xi))
        return (path.mean() + noise * step / beta * jax.random.normal(noise_key)) * beta / step

    return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(key, trials)))


def lower_bound(beta, delta, noise=1.0, position=0, trials=400_000):
    """ε that outputs on both neighbours show at δ, with confidence 99.9%: threshold tests."""
    keys = jax.random.split(jax.random.key(1), 2)
    first, second = (
        phase_outputs(key, sign, beta, trials, noise, position)
        for key, sign in zip(keys, (-1.0, 1.0), strict=True)
    )
    best = 0.0
    for threshold in np.linspace(-1, 5, 13):
        hits, false = np.sum(first > threshold), np.sum(second > threshold)
        low = stats.beta.ppf(5e-4 / 13, hits, trials - hits + 1)
        high = stats.beta.ppf(1 - 5e-4 / 13, false + 1, trials - false)
        if low > delta:
            best = max(best, np.log((low - delta) / high))
    return best


def gaussian_epsilon(mu, delta):
    grid = np.linspace(0, 20, 20_001)
    return grid[np.argmax([log_gaussian_delta(mu, e) <= np.log(delta) for e in grid])]


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "certified", "observed"), [(0.25, 1.03, 0.68), (0.5, 2.59, 1.77)])
def test_audit_of_a_phase_whose_record_comes_first(beta, certified, observed):
    delta = 0.01
    share = 7 / 8  # the record in the first of eight steps: all points but the start
    bound = gaussian_epsilon(2 * drift_factor(16, 32.0, 1e-9) * share * beta, delta)
    np.testing.assert_allclose(bound, certified, rtol=0.03)
    shown = lower_bound(beta, delta)
    assert 0.85 * observed < shown < bound
    assert lower_bound(beta, delta, noise=0.25) > 1.5 * bound


@pytest.mark.slow
def test_audit_of_a_call_with_the_position_random():
    # Weaker: the record is hardly ever in the phase. n = 150, T̂ = 16.
    shown = lower_bound(0.5, 1e-3, position=None)
    assert shown <= calls_epsilon([(ResqueCall(16, 0.5, 32.0, 150), 1)], 1e-3)
