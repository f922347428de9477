"""Draws of the proximal chain beside NUTS of another house, in ten dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import losses, synthetic
from dpsco_jax.solvers.sampling import alternating_sampler, chain_lengths
from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle

DIM, NUM_USERS = 10, 200
TEMPERATURE, CONVEXITY = 200.0, 0.02
DRAWS, CHAINS, LENGTH = 3000, 48, 500


def _draws(data):
    """Independent draws, each the end of a chain that is within 1e-6 of the target."""
    objective = losses.logistic(1.0)
    eta, convexity = 3.0 / (TEMPERATURE / 4.0), TEMPERATURE * CONVEXITY
    start = 1.0 / CONVEXITY + (DIM / convexity) ** 0.5
    steps = chain_lengths.mixing_steps(1e-6, eta, convexity, start)

    @jax.jit
    def draw(keys):
        oracle = proximal_oracle(
            objective,
            data,
            jnp.zeros(DIM),
            inverse_temperature=TEMPERATURE,
            convexity=CONVEXITY,
            num_steps=steps,
        )

        def one(key):
            return alternating_sampler.run(
                key, oracle, jnp.zeros(DIM), num_steps=steps, num_trials=100 * steps
            ).params

        return jax.vmap(one)(keys)

    return draw(jax.random.split(jax.random.key(2), DRAWS))


def _nuts(blackjax, data):
    """Points of several chains, ``[chains, length, dim]``, after their warm-up."""
    features, labels = data.items.features[:, 0], data.items.label[:, 0]

    def log_density(x):
        margins = features @ x
        risk = jnp.mean(jax.nn.softplus(margins) - labels * margins)
        return -TEMPERATURE * (risk + CONVEXITY / 2.0 * x @ x)

    @jax.jit
    def chains(keys):
        def chain(key):
            first, rest = jax.random.split(key)
            warm_up = blackjax.window_adaptation(blackjax.nuts, log_density)
            (state, found), _ = warm_up.run(first, jnp.zeros(DIM), num_steps=300)
            kernel = blackjax.nuts(log_density, **found)

            def step(state, key):
                state, _ = kernel.step(key, state)
                return state, state.position

            return jax.lax.scan(step, state, jax.random.split(rest, LENGTH))[1]

        return jax.vmap(chain)(keys)

    return chains(jax.random.split(jax.random.key(3), CHAINS))


@pytest.mark.slow
def test_means_and_second_moments_are_those_of_nuts():
    blackjax = pytest.importorskip("blackjax")
    with jax.enable_x64(True), jax.debug_key_reuse(False):
        data = synthetic.logistic_regression(
            jax.random.key(0), num_users=NUM_USERS, items_per_user=1, dim=DIM
        ).data
        ours, theirs = _draws(data), _nuts(blackjax, data)
        upper = np.triu_indices(DIM)

        def moments(points):
            products = points[..., upper[0]] * points[..., upper[1]]
            return jnp.concatenate([points, products], axis=-1)

        ours, theirs = moments(ours), moments(theirs)
        effective = np.asarray(blackjax.diagnostics.effective_sample_size(theirs))
        theirs = theirs.reshape(-1, theirs.shape[-1])
        difference = np.asarray(ours.mean(axis=0) - theirs.mean(axis=0))
        variances = np.asarray(ours.var(axis=0))
        errors = np.sqrt(variances / len(ours) + np.asarray(theirs.var(axis=0)) / effective)
    assert np.all(np.abs(difference) <= 4.0 * errors)
    # Four of them are a tenth of a deviation.
    assert np.all(4.0 * errors < 0.12 * np.sqrt(variances))
