"""Centred clipping end to end: in front of Adam, and attacked by a user who sees the radius move."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


def test_in_front_of_adam_on_a_network():
    """A small network, users with a few items each; the loss falls, and the ledger knows the price."""
    rng, users, items = np.random.default_rng(0), 256, 4
    features = jnp.float32(rng.normal(size=(users, items, 3)))
    labels = jnp.sin(features[..., 0]) + features[..., 1]
    params = {
        "hidden": jnp.float32(rng.normal(size=(3, 8)) / 2),
        "bias": jnp.zeros(8),
        "out": jnp.float32(rng.normal(size=8) / 3),
    }

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["hidden"] + params["bias"])
        return jnp.mean((hidden @ params["out"] - y) ** 2)

    optimizer = optax.chain(
        transforms.privatize(
            transforms.centred_clip(1.0, users, centre_rate=0.3, quantile=0.6, microbatch_size=32),
            jax.random.key(0),
            noise_multiplier=2.0,
        ),
        optax.adam(0.03),
    )
    user_gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))

    @jax.jit
    def train(params):
        def step(carry, _):
            params, state = carry
            gradients = user_gradients(params, features, labels)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), None, length=60)[0]

    trained, state = train(params)
    whole = jax.jit(lambda p: jnp.mean(jax.vmap(loss, (None, 0, 0))(p, features, labels)))
    assert whole(trained) < 0.3 * whole(params)
    rdp = privacy.privacy_spent(state).rdp
    np.testing.assert_allclose(rdp, privacy.ORDERS * 60 / (2 * 2.0**2), rtol=1e-5)


STEPS, USERS, EPSILON, DELTA, RUNS = 3, 3, 1.0, 1e-2, 300_000


def learned(relation, understated=1.0, kind="opposite"):
    """What a worst-case user betrays in all steps, with centre and radius following the releases.

    The user plays against the public state: in one data set just inside of the ball; in the other
    outside on the opposite side (or, ``kind`` "outside", both outside; or absent).
    """
    multiplier = privacy.certified_noise_multiplier(
        privacy.FullBatch(), STEPS, EPSILON, DELTA, relation
    )
    aggregate = transforms.centred_clip(
        1.0, USERS, relation, centre_rate=0.5, quantile=0.5, quantile_rate=0.3
    )
    chain = transforms.privatize(aggregate, jax.random.key(0), multiplier / understated)
    inside = kind == "opposite"

    def mechanism(key, side):
        state = chain.init(jnp.zeros(2))._replace(key=key)
        score = 0.0
        direction = jnp.array([1.0, 0.0])
        for _ in range(STEPS):
            centre, radius = state.inner
            towards = centre + (0.9 * (1 - 1e-5) if inside else 5.0) * radius * direction
            other = centre - 5.0 * radius * direction
            here = jnp.where(side > 0, towards, other)
            rows = jnp.stack([here, centre, centre])
            present = jnp.array([True, True, True])
            if relation is ADD_REMOVE:
                present = jnp.stack([side > 0, True, True])
            before = state.inner
            out, state = chain.update(rows, state, user_mask=present)
            share = (jnp.log(before.radius) - jnp.log(state.inner.radius)) / 0.3
            along = (out - before.centre)[0] / before.radius
            # The log likelihood ratio, up to a factor: what is released, weighted by what differs.
            if relation is ADD_REMOVE:
                score += 0.9 * along + (1 - 0.81) * share if inside else along
            else:
                score += 1.9 * along + (4 - 1.9**2) * share if inside else along
        return -score

    found = privacy.audit(
        jax.random.key(5),
        mechanism,
        jnp.float32(1.0),
        jnp.float32(-1.0),
        lambda score: score,
        RUNS,
        DELTA,
        batch_size=32_768,
    )
    return found.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["opposite", "outside"])
@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
def test_the_claim_holds_and_less_noise_is_caught(relation, kind):
    assert 0.8 * EPSILON < learned(relation, kind=kind) <= EPSILON
    assert learned(relation, understated=1.3, kind=kind) > EPSILON
