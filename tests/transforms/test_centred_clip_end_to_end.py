"""Centred clipping attacked by a user who sees the radius move."""

import jax
import jax.numpy as jnp
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


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
