"""Spectra behind noise: closed forms of the spiked model, and draws of it."""

import jax.numpy as jnp
import numpy as np

from dpsco_jax.mechanisms import spiked_matrix


def _noise(rng, dim, stddev):
    half = rng.normal(size=(dim, dim)) * stddev
    return np.triu(half, 1) + np.triu(half, 1).T + np.diag(rng.normal(size=dim) * stddev * 2**0.5)


def test_eigenvalues_outside_the_bulk_are_moved_back():
    dim, stddev, theta = 50, 0.05, 2.0
    shown = theta + stddev**2 * dim / theta  # where a spike of θ appears
    noisy = np.diag([1 + shown, *np.ones(dim - 1)])
    found = spiked_matrix.denoised(jnp.asarray(np.float32(noisy)), stddev, 1.0)
    np.testing.assert_allclose(found.values[-1], 1 + theta, rtol=1e-5)
    np.testing.assert_allclose(found.values[:-1], 1.0, rtol=1e-5)
    np.testing.assert_allclose(found.edge, 2 * stddev * dim**0.5, rtol=1e-5)


def test_of_drawn_matrices_the_spike_is_found_and_the_bulk_is_flat():
    rng = np.random.default_rng(0)
    dim, stddev, theta = 120, 0.02, 3.0
    direction = rng.normal(size=dim)
    direction /= np.linalg.norm(direction)
    true = np.eye(dim) + theta * np.outer(direction, direction)
    tops, within = [], []
    for _ in range(20):
        noisy = jnp.asarray(np.float32(true + _noise(rng, dim, stddev)))
        found = spiked_matrix.denoised(noisy, stddev, 1.0)
        tops.append(float(found.values[-1]))
        within.append(float(np.mean(np.isclose(found.values, np.median(found.values)))))
        assert abs(found.vectors[:, -1] @ direction) > 0.98
    assert abs(np.mean(tops) - (1 + theta)) < 0.05
    assert min(within) > 0.9


def test_what_noise_hides_is_not_magnified():
    rng = np.random.default_rng(1)
    dim, stddev = 60, 1.0
    found = spiked_matrix.denoised(
        jnp.asarray(np.float32(np.eye(dim) + _noise(rng, dim, stddev))), stddev, 1.0
    )
    assert (found.values >= found.edge).all()
    assert found.values[-1] / found.values[0] < 1.2
