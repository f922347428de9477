"""The sparse vector technique from end to end: what an observer learns stays below the claimed ε."""

import jax
import jax.numpy as jnp
import pytest

from dpsco_jax import privacy
from dpsco_jax.mechanisms import sparse_vector

pytestmark = pytest.mark.slow

EPSILON, RUNS = 1.0, 4_000_000


def _learnt(epsilon_of_noise):
    tester = sparse_vector.above_threshold(3.0, epsilon_of_noise, sensitivity=1.0)

    def stopping_step(key, queries):
        init_key, *step_keys = jax.random.split(key, len(queries) + 1)
        state, answers = tester.init(init_key), []
        for step_key, query in zip(step_keys, queries, strict=True):
            above, state = tester.step(step_key, state, query)
            answers.append(above)
        above = jnp.stack(answers)
        return jnp.where(jnp.any(above), jnp.argmax(above), len(queries))

    # All queries but the last move one way, the last one the other: the worst that neighbours can do.
    data = jnp.asarray([1.0] * 6 + [0.0])
    neighbour = jnp.asarray([0.0] * 6 + [1.0])
    found = privacy.audit(
        jax.random.key(0),
        stopping_step,
        data,
        neighbour,
        lambda stopped: jnp.asarray(stopped == 6, jnp.float32),
        RUNS,
        0.0,
        batch_size=65_536,
    )
    return found.epsilon


def test_what_is_learnt_stays_below_the_claim():
    assert 0.3 * EPSILON < _learnt(EPSILON) <= EPSILON


def test_noise_for_a_larger_budget_is_caught():
    assert _learnt(4.0 * EPSILON) > EPSILON
