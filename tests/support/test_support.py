"""The helpers themselves: a right statistic passes, a wrong one is found."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import transforms
from tests.support.apart import traced_apart
from tests.support.lowered import PROGRAMS, shared
from tests.support.neighbours import worst_pair
from tests.support.replay import assert_no_leak

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


def _clipped_sum(data, mask, relation):
    aggregate = transforms.clipped_sum(1.0, relation)
    return aggregate.update(data, aggregate.init(None), user_mask=mask)[0]


@pytest.mark.parametrize(("relation", "sensitivity"), [(REPLACE, 2.0), (ADD_REMOVE, 1.0)])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_search_reaches_but_never_exceeds_a_tight_sensitivity(relation, sensitivity, dtype):
    worst = worst_pair(
        lambda data, mask: _clipped_sum(data, mask, relation), 3, (4,), relation, dtype=dtype
    )
    # The float32 sum of three unit vectors is rounded to about 3 units in its last place.
    assert 0.98 * sensitivity < worst.distance <= sensitivity * (1 + 1e-6)


@pytest.mark.parametrize(
    "statistic",
    [
        lambda data, mask: jnp.sum(jnp.where(mask[:, None], jnp.clip(data, -1, 1), 0), axis=0),
        lambda data, mask: jnp.sum(data, axis=0),
        lambda data, mask: _clipped_sum(data, mask, REPLACE) / jnp.sum(mask),
    ],
    ids=["clips coordinates", "does not clip", "divides by nothing when nobody is there"],
)
def test_search_finds_wrong_statistics(statistic):
    assert worst_pair(statistic, 3, (8,), REPLACE).distance > 2.0 or (
        worst_pair(statistic, 3, (8,), ADD_REMOVE).distance > 1.0
    )


def _release(data, stddev=1.0, divisor=2.0):
    aggregate = transforms.clipped_mean(1.0, divisor)
    chain = transforms.privatize(aggregate, jax.random.key(3), stddev)
    released, state = chain.update(data, chain.init(data[0]))
    return released, state


def test_replay_passes_a_private_release():
    data = jnp.ones((2, 3))
    assert_no_leak(_release, data, -5.0 * data)


@pytest.mark.parametrize(
    "leaky",
    [
        lambda data: _release(data, stddev=1.0 + jnp.sum(data)),
        lambda data: _release(data, divisor=1.0 + jnp.sum(jnp.abs(data))),
        lambda data: (_release(data), jnp.max(data)),
    ],
    ids=["noise scale", "divisor", "side result"],
)
def test_replay_finds_paths_around_the_mechanism(leaky):
    with pytest.raises(AssertionError, match=r"data reach|depends on the data"):
        assert_no_leak(leaky, jnp.ones((2, 3)), jnp.asarray(np.full((2, 3), 4.0, np.float32)))


@jax.jit
def _scaled(x):
    return _TWO * x


_TWO = 2.0


def test_programs_are_traced_apart_and_outside_nothing_has_changed(monkeypatch):
    sizes = []
    assert _scaled(1.0) == 2.0
    for value in (3.0, 5.0):
        with traced_apart(), monkeypatch.context() as patch:
            patch.setitem(globals(), "_TWO", value)
            assert _scaled(1.0) == value
            assert (
                jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, y: _scaled(y), x))(1.0)
                == value**2
            )
        sizes.append(float(_scaled(1.0)))
    assert sizes == [2.0, 2.0]


def test_a_context_is_of_so_many_programs_of_one_thread():
    given = shared(object)
    first = [given() for _ in range(PROGRAMS)]
    assert all(each is first[0] for each in first)
    others = [given()]
    thread = threading.Thread(target=lambda: others.append(given()))
    thread.start()
    thread.join()
    assert len({id(each) for each in (first[0], *others)}) == 3
