"""An aggregate is a tuple of two functions, and keeps its sensitivity wherever that tuple goes."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import transforms
from dpsco_jax.transforms import Aggregate

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


def init(params):
    del params
    return optax.EmptyState()


def update(updates, state, params=None, **extra):
    del params, extra
    return updates, state


def assert_same(found, expected):
    assert isinstance(found, Aggregate)
    assert isinstance(found, optax.GradientTransformationExtraArgs)
    assert tuple(found) == tuple(expected)
    assert (found.init, found.update, found.finish) == (*expected, expected.finish)
    assert found.relation is expected.relation
    assert found.sensitivity == expected.sensitivity
    assert found.proven is expected.proven


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol):
    aggregate = Aggregate(init, update, 0.25, ADD_REMOVE, proven=False)
    assert_same(pickle.loads(pickle.dumps(aggregate, protocol)), aggregate)


def test_copies_and_maps():
    assert Aggregate(init, update, 0.25, ADD_REMOVE).proven is True
    aggregate = Aggregate(init, update, 0.25, ADD_REMOVE, proven=False)
    for same in (
        copy.copy(aggregate),
        copy.deepcopy(aggregate),
        jax.tree.map(lambda leaf: leaf, aggregate),
        aggregate._replace(),
        optax.with_extra_args_support(aggregate),
    ):
        assert_same(same, aggregate)
    found = jax.tree.map(lambda leaf: 2 * leaf if isinstance(leaf, float) else leaf, aggregate)
    assert found.sensitivity == 0.5
    assert aggregate._replace(relation=NeighboringRelation.REPLACE_ONE).sensitivity == 0.25
    names = jax.tree.map(lambda leaf: isinstance(leaf, float), aggregate)
    assert jax.tree.leaves(names) == [False, False, True, False]
    # A two-tuple for whoever takes it apart.
    first, second = aggregate
    assert (first, second) == (init, update)


def test_wrappers_of_optax_take_it():
    aggregate = transforms.clipped_sum(10.0)
    updates, params = jnp.ones((3, 2)), jnp.zeros(2)
    for wrapped in (
        optax.chain(aggregate, optax.identity()),
        optax.masked(aggregate, True),
        optax.chain(optax.with_extra_args_support(aggregate)),
    ):
        found, _ = wrapped.update(updates, wrapped.init(params), params)
        np.testing.assert_allclose(found, 3.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"sensitivity": "1"}, "sensitivity"),
        ({"relation": "REPLACE_ONE"}, "relation"),
        ({"relation": None}, "relation"),
        ({"update": None}, "update"),
        ({"finish": 3}, "finish"),
        ({"proven": None}, "proven"),
    ],
)
def test_arguments(changed, named):
    good = {"init": init, "update": update, "sensitivity": 1.0, "relation": ADD_REMOVE}
    with pytest.raises(ValueError, match=named):
        Aggregate(**{**good, **changed})
