"""The mean gradient is the derivative of the mean loss, in expectation where it is sampled or shifted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.oracles import sampling, unclipped
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, mean_loss

USERS, ITEMS, DIM = 7, 3, 2
RNG = np.random.default_rng(0)
POINTS = jnp.float32(RNG.normal(size=(USERS, ITEMS, DIM)))
COUNTS = np.array([3, 0, 1, 2, 3, 3, 1])  # one user has no items
DATA = UserData(POINTS, jnp.asarray(np.arange(ITEMS) < COUNTS[:, None]))
QUARTIC = Objective(
    loss=lambda w, z: jnp.sum((w["a"] - z) ** 4) + w["b"] * z[0],
    lipschitz=1.0,
    smoothness=1.0,
    domain=domains.whole_space(),
    ridge=0.7,  # not part of the gradient
)
PARAMS = {"a": jnp.array([0.3, -0.4]), "b": jnp.array(2.0)}


@pytest.mark.parametrize("chunk_size", [3, 100])
def test_all_users(chunk_size):
    oracle = unclipped.mean_gradient(QUARTIC, USERS, chunk_size=chunk_size)
    estimate = jax.jit(oracle)(jax.random.key(0), PARAMS, DATA)
    expected = jax.grad(mean_loss(QUARTIC._replace(ridge=0.0)))(PARAMS, DATA)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5), estimate.gradient, expected
    )
    assert estimate.num_gradients == COUNTS.sum()
    assert estimate.extra_args == {}


def test_a_sample_with_shifts_is_unbiased_with_the_variance_of_independent_shifts():
    # For ½‖w - z‖² a shift y adds y, so that the estimate is w - z̄_S + ȳ: mean and variance are known.
    quadratic = QUARTIC._replace(loss=lambda w, z: 0.5 * jnp.sum(jnp.square(w - z)))
    batch, radius, draws, w = 4, 0.9, 20_000, jnp.array([0.3, -0.4])
    data = UserData(POINTS[:, :1], None)
    oracle = unclipped.mean_gradient(
        quadratic, batch, lambda k: sampling.without_replacement(k, USERS, batch), radius
    )
    keys = jax.random.split(jax.random.key(1), draws)
    found = np.asarray(jax.jit(jax.vmap(lambda k: oracle(k, w, data).gradient))(keys), np.float64)
    users = np.asarray(POINTS[:, 0], np.float64)
    variance = (USERS - batch) / (USERS - 1) * users.var(0) / batch + radius**2 / (
        (DIM + 2) * batch
    )
    error = 5 * np.sqrt(variance / draws)
    assert np.all(np.abs(found.mean(0) - (np.asarray(w) - users.mean(0))) < error)
    np.testing.assert_allclose(found.var(0), variance, rtol=0.05)
