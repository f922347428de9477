"""Draws by a record's own keys: no user moves the draws of another, or the loss is refused by name."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import _record_keys, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import ghost, gradients, smoothed
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level import _unit_updates
from dpsco_jax.solvers.sampling import _cells
from dpsco_jax.solvers.user_level import finite_class, phased_sgd
from tests.support.planned import planned

USERS, DIM = 12, 4
REFUSED = "loss must draw by keys of threefry2x32 where they depend on a user's record"
BATCHED = ["rbg", "unsafe_rbg"]


def _words(impl, first):
    keys = [jax.random.key(first + i, impl=impl) for i in range(USERS)]
    return jnp.stack([jax.random.key_data(key) for key in keys])[:, None]


def _by_words(impl):
    """A linear loss whose slope is drawn by the words of a key in the record."""

    def loss(w, item):
        x, words = item
        key = jax.random.wrap_key_data(words, impl=impl)
        return 10 * jnp.vdot(w, x * jax.random.normal(key, x.shape))

    return Objective(loss, np.inf, None, domains.whole_space())


def _data(impl, first=0):
    return UserData((jnp.ones((USERS, 1, DIM)), _words(impl, first)))


def _ghost(objective):
    return ghost.clipped_gradient_sum(objective, 1.0, chunk_size=5)


def _chunks(objective):
    return gradients.clipped_gradient_sum(gradients.user_gradient(objective), 1.0, chunk_size=5)


def _smoothed(objective):
    return gradients.clipped_gradient_sum(smoothed.user_gradient(objective, 0.1), 1.0)


def _rows(objective):
    return gradients.per_user_gradients(gradients.user_gradient(objective), 1.0)


def _asked(oracle, data):
    return oracle(jax.random.key(0), jnp.ones(DIM), data).gradient


@pytest.mark.parametrize("route", [_ghost, _chunks, _smoothed, _rows])
@pytest.mark.parametrize("impl", BATCHED)
def test_draws_of_a_batch_by_one_record_are_refused(route, impl):
    with pytest.raises(ValueError, match=f"{REFUSED}, got random_bits of key<u?rbg>"):
        _asked(route(_by_words(impl)), _data(impl))


@pytest.mark.parametrize("impl", ["threefry2x32", "philox4x32"])
def test_of_other_keys_a_user_moves_its_own_share_alone(impl):
    objective, data = _by_words(impl), _data(impl)
    slopes = [
        np.asarray(10 * jax.random.normal(jax.random.key(i, impl=impl), (DIM,)))
        for i in range(USERS)
    ]
    each = np.stack([slope / max(1, np.linalg.norm(slope)) for slope in slopes])
    np.testing.assert_allclose(_asked(_rows(objective), data), each, rtol=1e-5)
    for route in (_ghost, _chunks):
        np.testing.assert_allclose(_asked(route(objective), data), each.sum(axis=0), rtol=1e-3)


def test_a_report_of_ghost_sums_refuses_too():
    item = (jnp.ones(DIM), jax.random.key_data(jax.random.key(0, impl="rbg")))
    with pytest.raises(ValueError, match=REFUSED):
        ghost.explain(_by_words("rbg").loss, jnp.ones(DIM), item)
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)

    def typed(w, key):
        return jnp.vdot(w, jax.random.normal(key, w.shape))

    with pytest.raises(ValueError, match=REFUSED):
        ghost.clipped_sum(typed, jnp.ones(DIM), keys, 1.0)


def test_gradients_of_ones_own_are_looked_at():
    def by_number(key, params, items, mask):
        return jax.random.normal(jax.random.fold_in(key, items[0, 0].astype(int)), params.shape)

    data = UserData(jnp.ones((USERS, 1, DIM)))
    oracle = gradients.clipped_gradient_sum(by_number, 1.0)
    with pytest.raises(ValueError, match=REFUSED):
        oracle(jax.random.key(0, impl="rbg"), jnp.ones(DIM), data)

    def by_place(key, params, items, mask):
        return jax.random.normal(key, params.shape)

    oracle = gradients.per_user_gradients(by_place)
    found = oracle(jax.random.key(1, impl="rbg"), jnp.ones(DIM), data).gradient
    assert found.shape == (USERS, DIM)


LAW = {"inverse_temperature": 1.0, "lipschitz": 1.0, "cells": 2}


def _of_cells(draw):
    def drawn(objective, data):
        high = jnp.ones(DIM)
        return draw(jax.random.key(0), objective, data, -high, high, **LAW)

    return drawn


def _groups(objective, data):
    return phased_sgd.group_averages(objective, data, 3, jnp.ones(DIM), 0.1)


def _units(objective, data):
    of_all = {
        "sampling": "full",
        "num_users": USERS,
        "elements_per_user": 1,
        "longest": 1.0,
        "bound": 1.0,
    }
    releases = types.SimpleNamespace(**of_all, batch_size=USERS)
    mean = types.SimpleNamespace(releases=releases, clip_norm=1.0, chunk_size=4)
    update = _unit_updates.gradient_update(objective)
    return _asked(_unit_updates._user_sums(mean, update, jnp.int32(0)), data)


def _candidates(objective, data):
    sizes = {"num_users": USERS, "items_per_user": 1, "dim": DIM, "num_candidates": 2}
    bounded = objective._replace(lipschitz=1.0)
    plan = planned(finite_class.plan, bounded, epsilon=6.0, loss_range=(0.0, 1.0), **sizes)
    return finite_class.solve(jax.random.key(0), plan, bounded, data, jnp.ones((2, DIM)))


@pytest.mark.parametrize(
    "way",
    [_of_cells(_cells.draw_cell), _of_cells(_cells.draw_linear), _groups, _units, _candidates],
    ids=["cells", "tangents", "groups", "units", "candidates"],
)
def test_every_batch_of_users_is_looked_at(way):
    with jax.enable_x64(way not in (_groups, _units, _candidates)):
        jax.eval_shape(lambda: way(_by_words("threefry2x32"), _data("threefry2x32")))
        with pytest.raises(ValueError, match=REFUSED):
            jax.eval_shape(lambda: way(_by_words("rbg"), _data("rbg")))


def test_stages_in_front_of_a_release_are_looked_at():
    def draws(rows, state, params=None):
        number = jax.lax.bitcast_convert_type(rows[0], jnp.uint32)
        key = jax.random.fold_in(jax.random.key(0, impl="rbg"), number)
        return rows + jax.random.normal(key, rows.shape), state

    before = optax.GradientTransformation(lambda params: optax.EmptyState(), draws)
    mean = transforms.clipped_mean(1.0, USERS, NeighboringRelation.REPLACE_ONE)
    release = transforms.privatize(mean, jax.random.key(0), 1.0)
    chain = transforms.private_chain(before, release, optax.sgd(0.1))
    with pytest.raises(ValueError, match=REFUSED):
        chain.update(jnp.ones((USERS, DIM)), chain.init(jnp.ones(DIM)), jnp.ones(DIM))


PUBLIC = jax.random.key(0, impl="rbg")


def _normal(key):
    return jnp.sum(jax.random.normal(key, (3,)))


def _folded(n):
    return jax.random.fold_in(PUBLIC, n)


def _in_layers(n):
    """The key is carried along beside what is a record's own."""

    def layer(carry, _):
        key, x = carry
        key, own = jax.random.split(key)
        return (key, x * _normal(own)), None

    return jax.lax.scan(layer, (PUBLIC, n * 1.0), None, length=3)[0][1]


def _while(stops):
    def of(n):
        def body(carry):
            count, key, x = carry
            key, own = jax.random.split(key)
            return count + 1, key, x * _normal(own)

        return jax.lax.while_loop(lambda c: stops(c[0], n), body, (0, PUBLIC, n * 1.0))[2]

    return of


def _with_a_rule(n):
    """Whose derivative draws, and it alone."""

    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (g * _normal(_folded(n)),))
    return jax.grad(f)(1.0)


KEPT = {
    "a public key": lambda n: n * _normal(PUBLIC),
    "carried by a scan": _in_layers,
    "carried by a loop": _while(lambda count, n: count < 3),
    "in a branch": lambda n: jax.lax.cond(n > 2, _normal, lambda key: 0.0, PUBLIC),
    "threefry": lambda n: _normal(jax.random.key(n)),
    "threefry in a loop": lambda n: jax.lax.fori_loop(
        0, n, lambda i, x: x + _normal(jax.random.key(i)), 0.0
    ),
    "handed on": lambda n: jnp.where(n > 2, _folded(n), PUBLIC),
}
DOUBTED = {
    "folded": lambda n: _normal(_folded(n)),
    "a seed": lambda n: _normal(jax.random.key(n, impl="unsafe_rbg")),
    "in a call": lambda n: jax.jit(_normal)(_folded(n)),
    "rematerialized": lambda n: jax.checkpoint(lambda n: _normal(_folded(n)))(n),
    "how often is an own matter": _while(lambda count, n: count < n),
    "a branch chooses the key": lambda n: _normal(
        jax.lax.cond(n > 2, lambda: PUBLIC, lambda: jax.random.key(1, impl="rbg"))
    ),
    "carried from an earlier trip": lambda n: jax.lax.scan(
        lambda c, _: ((_folded(c[1]), n, _normal(c[0])), None), (PUBLIC, 0, 0.0), None, length=3
    )[0][2],
    "a rule of derivatives": _with_a_rule,
    "gamma": lambda n: jax.random.gamma(_folded(n), 2.0),
    "its words": lambda n: jax.random.key_data(jax.random.split(_folded(n)))[1],
    "raw": lambda n: jax.lax.rng_bit_generator(jnp.full(4, n, jnp.uint32), (3,))[1],
    "in a solve": lambda n: jax.lax.custom_linear_solve(
        lambda x: x + _normal(_folded(n)), n * 1.0, lambda matvec, b: b
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_keys_that_are_public_or_draw_apart_work(name):
    _record_keys.refuse(jax.make_jaxpr(KEPT[name])(3), [True])


@pytest.mark.parametrize("name", DOUBTED)
def test_keys_that_depend_on_a_record_are_found_wherever_they_draw(name):
    program = jax.make_jaxpr(DOUBTED[name])(3)
    with pytest.raises(ValueError, match=REFUSED):
        _record_keys.refuse(program, [True])
    _record_keys.refuse(program, [False])
