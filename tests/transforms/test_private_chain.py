"""A private chain: stages in front see one user each, stages behind see what was released."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import _compensated, privacy, transforms

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
PARAMS = {"a": jnp.ones(3), "b": jnp.ones(2)}
FIRST = {"a": True, "b": False}
ROWS = {
    "a": jax.random.normal(jax.random.key(0), (20, 3)),
    "b": jax.random.normal(jax.random.key(1), (20, 2)),
}


def _release(aggregate=None, noise=1e-6):
    aggregate = aggregate or transforms.clipped_mean(0.01, 20, ADD_REMOVE)
    return transforms.privatize(aggregate, jax.random.key(2), noise)


def _clipped(row, norm):
    length = np.sqrt(sum(np.sum(part**2) for part in row))
    return [part * min(1, norm / length) for part in row]


def test_a_stage_in_front_sees_one_user():
    """A clip by the norm of all users' rows would let one user move everybody's."""
    chain = transforms.private_chain(
        optax.chain(optax.scale(3.0), optax.clip_by_global_norm(1.0)), _release(), optax.scale(-1.0)
    )

    def moved(rows):
        return jax.jit(chain.update)(rows, chain.init(PARAMS), PARAMS)[0]

    rows = [[np.asarray(ROWS[name][user]) * 3 for name in "ab"] for user in range(20)]
    small = [_clipped(_clipped(row, 1.0), 0.01) for row in rows]
    for place, name in enumerate("ab"):
        expected = -sum(row[place] for row in small) / 20
        np.testing.assert_allclose(moved(ROWS)[name], expected, rtol=1e-4, atol=1e-7)
    # One user more or less moves the mean by the sensitivity at most, however long its row is.
    far = jax.tree.map(lambda x: x.at[3].set(1e4 * x[3]), ROWS)
    none = jax.tree.map(lambda x: x.at[3].set(0.0), ROWS)
    lengths = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), moved(far), moved(none))
    assert np.sqrt(sum(map(float, jax.tree.leaves(lengths)))) <= 0.01 / 20 * 1.001


@pytest.mark.parametrize(
    "before", [optax.trace(0.9), optax.scale_by_adam(), optax.snapshot("n", optax.tree.norm)]
)
def test_a_stage_in_front_remembers_nothing(before):
    chain = transforms.private_chain(before, _release(), optax.sgd(0.1))
    with pytest.raises(ValueError, match="before must be a transformation without arrays"):
        chain.init(PARAMS)


def test_a_sum_has_nothing_in_front():
    release = _release(transforms.summed_contributions(1.0, 20, ADD_REMOVE))
    chain = transforms.private_chain(optax.scale(0.5), release, optax.sgd(0.1))
    with pytest.raises(ValueError, match="before must be None: a sum has no users left"):
        chain.update(PARAMS, chain.init(PARAMS), PARAMS, clipped_to=1.0)


@pytest.mark.parametrize(
    "after", [optax.scale_by_polyak(), optax.contrib.reduce_on_plateau()], ids=["Polyak", "plateau"]
)
def test_what_is_behind_reads_released_values_only(after):
    chain = transforms.private_chain(None, _release(), optax.chain(optax.identity(), after))
    with pytest.raises(ValueError, match=r"after must be .*needs no other argument.*value"):
        chain.update(ROWS, chain.init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match="value must be absent"):
        chain.update(ROWS, chain.init(PARAMS), PARAMS, value=1.0)


def test_what_is_behind_gets_no_extra_argument():
    def update(updates, state, params=None, **extra_args):
        assert not extra_args
        return updates, state

    after = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    chain = transforms.private_chain(None, _release(), after)
    chain.update(ROWS, chain.init(PARAMS), PARAMS, user_mask=jnp.ones(20, bool))


def test_an_error_inside_is_not_taken_for_an_argument():
    def broken(updates, state, params=None):
        raise TypeError("of its own")

    after = optax.GradientTransformation(lambda _: optax.EmptyState(), broken)
    chain = transforms.private_chain(None, _release(), after)
    with pytest.raises(TypeError, match="of its own"):
        chain.update(ROWS, chain.init(PARAMS), PARAMS)


def test_a_release_has_a_ledger():
    chain = transforms.private_chain(None, optax.sgd(0.1), optax.sgd(0.1))
    with pytest.raises(ValueError, match="release must be a transformation with a ledger"):
        chain.init(PARAMS)


@pytest.mark.parametrize("summed", [False, True])
def test_what_is_not_trained_stays(summed):
    if summed:
        aggregate = transforms.summed_contributions(0.01, 20, ADD_REMOVE)
        given, known = PARAMS, {"clipped_to": 0.01, "remainder": PARAMS}
        known["checksum"] = _compensated.checksum(PARAMS)
    else:
        aggregate, given, known = None, ROWS, {}
    chain = transforms.private_chain(None, _release(aggregate, 1.0), optax.adam(0.1), FIRST)
    moves, state = jax.jit(chain.update)(given, chain.init(PARAMS), PARAMS, **known)
    np.testing.assert_array_equal(moves["b"], np.zeros(2))
    assert np.all(np.asarray(moves["a"]) != 0)
    assert jax.tree.map(jnp.shape, moves) == jax.tree.map(jnp.shape, PARAMS)
    assert np.isfinite(privacy.epsilon(privacy.privacy_spent(state), 1e-5))
    with pytest.raises(ValueError, match="params must be given to update"):
        chain.update(given, state, **known)


def test_trainable_is_a_prefix():
    chain = transforms.private_chain(None, _release(), optax.sgd(0.1), {"a": True})
    with pytest.raises(ValueError, match="trainable must be a prefix of the parameters"):
        chain.init(PARAMS)
