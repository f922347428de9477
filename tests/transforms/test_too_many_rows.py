"""Rows that come to a release: of one number of users, no more than were drawn, in sums that floats hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.geometry import clipping

ADD_REMOVE, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
AGGREGATES = {
    "clipped_mean": lambda size: transforms.clipped_mean(1.0, 5, REPLACE, size),
    "clipped_sum": lambda size: transforms.clipped_sum(1.0, REPLACE, size),
    "layers": lambda size: transforms.clipped_mean({"a": 1.0, "b": 2.0}, 5, REPLACE, size),
    "centred_clip": lambda size: transforms.centred_clip(1.0, 5, microbatch_size=size),
}


def _step(aggregate, scheme, rows, multiplier=2.0, **extra_args):
    """The released update and what is charged for it, ε at δ = 1e-5."""
    release = transforms.privatize(aggregate, jax.random.key(1), multiplier, scheme)
    released, state = release.update(rows, release.init(jnp.zeros(2)), **extra_args)
    return released, privacy.epsilon(privacy.privacy_spent(state), 1e-5)


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("size", [None, 2, 4])
def test_leaves_of_different_users_are_refused(name, size):
    aggregate = AGGREGATES[name](size)
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    for short in (1, 3, 5):
        rows = {"a": jnp.ones((6, 2)), "b": jnp.ones((short, 2))}
        with pytest.raises(ValueError, match="updates must be arrays with one leading axis"):
            aggregate.update(rows, aggregate.init(params), params)


def test_sums_of_clipped_rows_have_a_mask_of_their_length():
    rows = jnp.ones((40, 2))
    for count in (1, 39, 41):
        with pytest.raises(ValueError, match="counted must be an array of booleans of shape"):
            clipping.sum_of_clipped(rows, 1.0, jnp.ones(count, bool))
    with pytest.raises(ValueError, match="rows must be arrays with one leading axis"):
        clipping.sum_of_clipped((rows, rows[:20]), 1.0, jnp.ones(40, bool))


SCHEMES = [privacy.WithoutReplacement(100, 5), privacy.WithReplacement(100, 5)]


@pytest.mark.parametrize("name", ["clipped_mean", "centred_clip"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_rows_than_are_drawn_are_refused(name, scheme):
    aggregate = AGGREGATES[name](None)
    _step(aggregate, scheme, jnp.ones((5, 2)))
    _step(aggregate, scheme, jnp.ones((4, 2)))
    wanted = f"updates must be of at most 5 users, whom {type(scheme).__name__} of sampling acc"
    with pytest.raises(ValueError, match=wanted):
        jax.eval_shape(lambda: _step(aggregate, scheme, jnp.ones((6, 2))))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_rows_that_count_than_are_drawn_are_unbounded(scheme):
    aggregate, rows = AGGREGATES["clipped_mean"](None), jnp.ones((8, 2))
    spent = jax.jit(lambda mask: _step(aggregate, scheme, rows, user_mask=mask)[1])
    within, above = (jnp.arange(8) < count for count in (5, 6))
    assert spent(within) < 10
    assert spent(above) == np.inf
    with pytest.raises(ValueError, match=r"user_mask must be of at most 5 users.*more of 8 rows"):
        _step(aggregate, scheme, rows, user_mask=above)


def test_numbers_of_rows_that_are_covered():
    """Samples of a random size may be of any, and a divisor of all users does not say how many there are."""
    rows = jnp.ones((8, 2))
    of_few = transforms.clipped_mean(1.0, 5, ADD_REMOVE)
    for scheme in (privacy.FullBatch(), privacy.Poisson(0.05)):
        assert np.isfinite(_step(of_few, scheme, rows)[1])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda c: transforms.clipped_mean(c, 100), "clip_norm"),
        (lambda c: transforms.clipped_sum({"a": c, "b": 1.0}), "clip_norm"),
        (lambda c: transforms.summed_contributions(c, 100), "clip_norm"),
        (lambda c: transforms.centred_clip(c, 100), "radius"),
        # Short rows over a small number.
        (lambda c: transforms.clipped_mean(1.0, 1.0 / c), "clip_norm"),
    ],
)
def test_lengths_whose_sums_overflow_are_refused(make, name):
    """Of 34 users of length 1e37 float32 has the sum, of 35 it has not: one user would decide."""
    make(1e15)
    with pytest.raises(ValueError, match=f"{name} must be so small"):
        make(1e37)
    sensitivity = jax.jit(lambda c: jnp.asarray(make(c).sensitivity, float))
    assert np.isfinite(sensitivity(1e15))
    assert sensitivity(1e37) == np.inf


def test_a_traced_length_whose_sums_overflow_is_unbounded():
    rows = jnp.full((35, 2), 1e37)

    @jax.jit
    def spent(clip_norm):
        return _step(transforms.clipped_mean(clip_norm, 100), privacy.FullBatch(), rows)[1]

    assert spent(1e30) < 10
    assert spent(1e37) == np.inf
