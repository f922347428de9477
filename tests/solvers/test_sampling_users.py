"""Users with several items: what counts is the mean of each, whoever has how many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import alternating_sampler
from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle

pytestmark = pytest.mark.usefixtures("float64")

K, MU = 30.0, 0.5


@pytest.mark.slow
def test_draws_are_those_of_the_mean_over_users_of_their_means():
    # Huber's loss within its threshold: a Gaussian, of a weighted least squares problem.
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 5, 2))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    labels = rng.standard_normal((12, 5))
    counts = np.array([5, 1, 1, 0, 2, 5, 4, 3, 1, 1, 1, 2])
    mask = np.arange(5) < counts[:, None]
    data = UserData(Example(jnp.asarray(features), jnp.asarray(labels)), jnp.asarray(mask))
    oracle = proximal_oracle(
        losses.huber(1.0, 40.0),
        data,
        jnp.zeros(2),
        inverse_temperature=K,
        convexity=MU,
        num_steps=25,
    )

    def chain(key):
        run = alternating_sampler.run(key, oracle, jnp.zeros(2), num_steps=25, num_trials=200)
        return run.params

    draws = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 6_000)))
    shares = mask / np.maximum(counts, 1)[:, None] / 12
    curvature = np.einsum("um,umi,umj->ij", shares, features, features) + MU * np.eye(2)
    mean = np.linalg.solve(curvature, np.einsum("um,umi,um->i", shares, features, labels))
    covariance = np.linalg.inv(curvature) / K
    errors = np.sqrt(np.diag(covariance) / len(draws))
    assert np.all(np.abs(draws.mean(0) - mean) <= 4 * errors)
    whitened = (draws - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(2), atol=5 / np.sqrt(len(draws)))
