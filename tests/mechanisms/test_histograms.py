"""User-level histograms: frequencies, the error that theory predicts, distributions in and out."""

import jax
import numpy as np
import pytest

from dpsco_jax.mechanisms import histograms
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized

USERS = 2000


def zipf(k):
    weights = 1 / np.arange(1.0, k + 1)
    return weights / weights.sum()


def test_frequencies():
    categories = np.array([[0, 0, 2, 1], [1, -1, 3, 1], [0, 0, 0, 0]])
    mask = np.array([[True] * 4, [True] * 4, [False] * 4])
    found = histograms.frequencies(categories, 3, mask)
    np.testing.assert_allclose(found, [[0.5, 0.25, 0.25], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_allclose(histograms.frequencies(categories, 3)[2], [1, 0, 0])


@pytest.mark.parametrize(("k", "m"), [(8, 200), (64, 200)])
@pytest.mark.slow
def test_error_is_sampling_plus_noise(k, m, rng):
    p = zipf(k)
    rows = histograms.frequencies(rng.choice(k, (USERS, m), p=p), k)
    radius = histograms.frequency_radius(m, USERS, 0.01)
    assert np.linalg.norm(np.asarray(rows) - p, axis=1).max() < radius
    releases = calibrate_winsorized(USERS, k, 1, 2.0, 1e-6, radius=radius, bound=1.0)

    @jax.jit
    def run(keys):
        answer = lambda key: histograms.user_level_histogram(key, rows, releases, False)  # noqa: E731
        noisy = jax.lax.map(answer, keys)
        project = jax.vmap(lambda x: histograms.domains.simplex().project(x))
        return noisy, project(noisy)

    noisy, projected = run(jax.random.split(jax.random.key(0), 60))
    off = np.sum((np.asarray(noisy) - np.mean(rows, 0)) ** 2, axis=1)
    np.testing.assert_allclose(off.mean(), releases.noise_variance, rtol=0.3)
    near = np.sum((np.asarray(projected) - p) ** 2, axis=1)
    assert near.mean() < np.sum((np.asarray(noisy) - p) ** 2, axis=1).mean()
    np.testing.assert_allclose(projected.sum(1), 1.0, atol=1e-4)
    assert np.all(projected >= -1e-6)


def test_projection_is_the_default():
    rows = np.tile(np.float32([1.0, 0.0, 0.0]), (50, 1))
    releases = calibrate_winsorized(50, 3, 1, 1.0, 1e-5, radius=0.5, bound=1.0)
    found = jax.jit(histograms.user_level_histogram)(jax.random.key(0), rows, releases)
    np.testing.assert_allclose(np.sum(found), 1.0, atol=1e-5)
