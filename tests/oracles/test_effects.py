"""What a loss does beside computing a number is refused by name, wherever it is traced; but for a print."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback

from dpsco_jax.geometry import domains
from dpsco_jax.oracles import (
    chunks,
    clipped_sums,
    ghost,
    gradients,
    linear,
    smoothed,
    unclipped,
)
from dpsco_jax.problems.objective import Example, LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level._unit_updates import gradient_update

PARAMS = {"a": jnp.ones((3, 2)), "b": jnp.ones(2)}
ITEMS = jnp.ones((4, 2, 3))
SEEN = []


def _model(p, x):
    return jnp.sum(jnp.tanh(x @ p["a"] + p["b"]))


def _a_reference_in_a_loop(p, x):
    total = jax.new_ref(jnp.zeros(2))

    def add(i, _):
        total[...] += x[i] * p["a"][i]
        return 0

    lax.fori_loop(0, 3, add, 0)
    return jnp.sum(jnp.square(total[...] + p["b"]))


def _a_reference_outside(p, x, kept=jax.new_ref(jnp.zeros(3))):  # noqa: B008
    kept[...] = x
    return _model(p, x)


def _a_reference_in_a_branch(p, x, kept=jax.new_ref(jnp.zeros(3))):  # noqa: B008
    def write(x):
        kept[...] = x
        return x

    return _model(p, jax.jit(lambda x: lax.cond(x[0] > 0, write, lambda x: x, x))(x))


def _a_callback(p, x):
    io_callback(SEEN.append, None, x)
    return _model(p, x)


def _a_callback_in_order(p, x):
    io_callback(SEEN.append, None, x, ordered=True)
    return _model(p, x)


def _a_callback_for_debugging(p, x):
    def body(x):
        jax.debug.callback(SEEN.append, x)
        jax.debug.print("{}", x)
        return x

    return _model(p, lax.map(body, x[None])[0])


def _a_print_in_order(p, x):
    jax.debug.print("{}", x, ordered=True)
    return _model(p, x)


def _a_check(p, x):
    checkify.check(x[0] > 0, "not positive")
    return _model(p, x)


@jax.custom_vjp
def _told(x):
    return x


def _tell(_, slope):
    io_callback(SEEN.append, None, slope)
    return (slope,)


_told.defvjp(lambda x: (x, None), _tell)


def _a_callback_on_the_way_back(p, x):
    return jax.jit(lambda x: _told(x))(_model(p, x))


CASES = {
    _a_reference_in_a_loop: "addupdate|get|new_ref|swap",
    _a_reference_outside: "swap",
    _a_reference_in_a_branch: "swap",
    _a_callback: "io_callback",
    _a_callback_in_order: "io_callback",
    _a_callback_for_debugging: "debug_callback",
    _a_print_in_order: "debug_print",
    _a_check: "check",
    _a_callback_on_the_way_back: "io_callback",
}
NEVER_BATCHED = (
    _a_reference_outside,
    _a_reference_in_a_branch,
    _a_callback_in_order,
    _a_print_in_order,
)


def _objective(loss):
    return Objective(loss, np.inf, 1.0, domains.whole_space())


def _of_users(oracle):
    return lambda: oracle(jax.random.key(0), PARAMS, UserData(ITEMS))


def _routes(loss):
    """Everything that takes the loss of a stranger."""
    objective = _objective(loss)
    by_user = gradients.user_gradient(objective)
    foreign = jax.grad(lambda p, x: jnp.mean(jax.vmap(loss, (None, 0))(p, x)))
    loose = lambda key, p, x, mask: foreign(p, x)  # noqa: E731
    update = gradient_update(objective)
    return {
        "explain": lambda: ghost.explain(loss, PARAMS, ITEMS[0, 0]),
        "sum": lambda: ghost.clipped_sum(loss, PARAMS, ITEMS[:, 0], 1.0),
        "chunks of a sum": lambda: ghost.clipped_sum(loss, PARAMS, ITEMS[:, 0], 1.0, chunk_size=2),
        "ghost": _of_users(ghost.clipped_gradient_sum(objective, 1.0)),
        "summed": _of_users(gradients.clipped_gradient_sum(by_user, 1.0, chunk_size=2)),
        "rows": _of_users(gradients.per_user_gradients(by_user)),
        "chunks of rows": _of_users(gradients.per_user_gradients(by_user, chunk_size=2)),
        "foreign rows": _of_users(gradients.per_user_gradients(loose)),
        "foreign sum": _of_users(gradients.clipped_gradient_sum(loose, 1.0)),
        "smoothed": _of_users(
            gradients.clipped_gradient_sum(smoothed.user_gradient(objective, 0.1), 1.0)
        ),
        "smoothed items": _of_users(
            gradients.clipped_gradient_sum(smoothed.user_gradient_by_item(objective, 0.1), 1.0)
        ),
        "unclipped": _of_users(unclipped.mean_gradient(objective, 4)),
        "updates": lambda: update(0, PARAMS, ITEMS[0], None),
    }


@pytest.mark.parametrize("loss", CASES, ids=lambda loss: loss.__name__[1:])
def test_effects_are_refused_by_name_by_all_that_take_a_loss(loss):
    for name, route in _routes(loss).items():
        if name.startswith("foreign") and loss in NEVER_BATCHED:
            continue  # JAX refuses the batch that the stranger's function makes, in words of its own
        with pytest.raises(ValueError, match=f"side effects.*got .*({CASES[loss]})"):
            jax.eval_shape(route)
    chosen = clipped_sums.choice(_objective(loss), UserData(ITEMS), PARAMS)
    assert chosen.way == "chunks"
    assert re.search(CASES[loss], chosen.why)


def test_an_unordered_print_changes_nothing(capfd):
    def printing(p, x):
        def body(row):
            jax.debug.print("seen {}", row)
            return row

        return _model(p, lax.map(body, x))

    for name, route in _routes(printing).items():
        if name == "explain":
            assert {leaf.way for leaf in route().leaves} != {"unused"}
        else:
            jax.eval_shape(route)
        if name == "chunks of a sum":
            plain = _routes(_model)[name]
            jax.tree.map(np.testing.assert_array_equal, route(), plain())
    jax.effects_barrier()
    assert "seen" in capfd.readouterr().out
    assert not SEEN


def test_a_callback_that_is_said_to_be_pure_is_taken_at_its_word():
    def looked_up(p, x):
        double = jax.pure_callback(
            lambda x: 2 * x, jax.ShapeDtypeStruct((3,), jnp.float32), x, vmap_method="sequential"
        )
        return _model(p, double)

    found = ghost.clipped_sum(looked_up, PARAMS, ITEMS[:, 0], 1.0)
    wanted = ghost.clipped_sum(lambda p, x: _model(p, 2 * x), PARAMS, ITEMS[:, 0], 1.0)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, wanted)


def test_links_of_linear_models_too():
    def derivative(margin, label):
        io_callback(SEEN.append, None, margin)
        return margin - label

    model = LinearModel(lambda m, y: (m - y) ** 2 / 2, derivative, 1.0)
    rows = UserData(Example(ITEMS, jnp.ones((4, 2))))
    oracle = linear.clipped_gradient_sum(model, 1.0)
    with pytest.raises(ValueError, match=r"computed of users must .*io_callback"):
        oracle(jax.random.key(0), jnp.ones(3), linear.prepare(model, rows, 3))


def test_collectives_are_refused_of_users_gradients_too():
    def centred(p, x):
        return jnp.sum(jnp.square(x @ p["a"] - lax.pmean(x @ p["a"], "batch")))

    by_user = gradients.user_gradient(_objective(centred))

    def outer(x):
        with pytest.raises(ValueError, match="collective over a named axis"):
            gradients.per_user_gradients(by_user)(jax.random.key(0), PARAMS, UserData(x))
        return x

    jax.vmap(outer, axis_name="batch")(jnp.ones((2, 4, 2, 3)))


def test_sums_of_strangers_and_of_blocks_on_disk_are_looked_at():
    def told(rows, counted, position):
        io_callback(SEEN.append, None, rows)
        return jnp.sum(rows)

    refused = pytest.raises(ValueError, match="io_callback")
    for at_once in (2, 4):
        with refused:
            chunks.sum_over_users(told, ITEMS, None, at_once)
        with refused:
            chunks.map_over_users(told, ITEMS, None, at_once)
    with refused:
        chunks.add_chunks(0.0, told, ITEMS, jnp.ones(4, bool), jnp.arange(4), 2, 2)
    assert not SEEN
