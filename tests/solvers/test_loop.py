"""The loop that all first-order solvers share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.oracles import Estimate
from dpsco_jax.solvers import loop
from dpsco_jax.solvers.solution import Status, finished


def _oracle(key, params, data):
    draw = jax.random.uniform(key)
    return Estimate(params - data + 0.0 * draw, {"value": draw}, jnp.asarray(7, jnp.int32))


def test_it_applies_the_chain_num_steps_times():
    seen = lambda params, state, estimate: (params, estimate.extra_args["value"])  # noqa: E731
    end = loop.run(jax.random.key(0), _oracle, optax.sgd(0.5), jnp.zeros(2), jnp.ones(2), 3, seen)
    np.testing.assert_allclose(end.params, 1 - 0.5**3)
    np.testing.assert_allclose(end.trace[0][:, 0], [0.5, 0.75, 0.875])
    assert len(set(np.asarray(end.trace[1]).tolist())) == 3, "steps share a key"
    assert end.num_gradients == 21


def test_extra_arguments_reach_the_chain():
    def update(updates, state, params=None, *, value, **extra):
        return jax.tree.map(lambda u: u + value, updates), state

    chain = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    oracle = lambda key, params, data: Estimate(params, {"value": data}, jnp.zeros((), jnp.int32))  # noqa: E731
    end = loop.run(jax.random.key(0), oracle, chain, jnp.zeros(()), jnp.asarray(2.0), 1)
    assert end.params == 2.0
    assert end.trace is None


def test_the_count_is_exact_beyond_32_bits():
    many = jnp.asarray(2**31 - 1, jnp.int32)
    oracle = lambda key, params, data: Estimate(params, {}, many)  # noqa: E731
    end = jax.jit(
        lambda key: loop.run(key, oracle, optax.sgd(0.0), jnp.zeros(()), None, 1000).num_gradients
    )(jax.random.key(0))
    assert end == 1000 * (2**31 - 1)
    assert int(end) == 1000 * (2**31 - 1) > 2**40


def test_how_a_run_ended():
    ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE)
    for params, status in ((jnp.ones(2), Status.OK), (jnp.array([1, jnp.inf]), Status.DIVERGED)):
        solution = finished({"a": params}, ledger, 10, jnp.asarray(3), None)
        assert solution.status == status
        assert solution.gradients == 10
    assert finished(jnp.ones(2), ledger, 2**62 + 1, jnp.asarray(3), None).gradients == 2**62 + 1
    with pytest.raises(ValueError, match="number of gradients must be an integer in"):
        finished(jnp.ones(2), ledger, 2**63, jnp.asarray(3), None)
