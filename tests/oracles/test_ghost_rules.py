"""Every rule of the table, and what has none: gradients and norms leaf by leaf, in one program for all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dpsco_jax.oracles import ghost
from dpsco_jax.oracles.ghost.rules import Rule

RNG = np.random.default_rng(0)
BATCH = 3


def _normal(*shape, scale=0.5):
    return jnp.asarray(np.float32(scale * RNG.standard_normal(shape)))


def _whole(*shape, low, high, kind=jnp.int32):
    return jnp.asarray(np.asarray(RNG.integers(low, high, shape), kind))


def _convolved(layout, strides, padding="SAME", **options):
    return lambda p, x: lax.conv_general_dilated(
        x, p, strides, padding, dimension_numbers=layout, **options
    )


def _einsum(spec, first):
    if first:
        return lambda p, x: jnp.einsum(spec, p, x)
    return lambda p, x: jnp.einsum(spec, x, p)


def _recurrent(p, x):
    def step(h, given):
        h = jnp.tanh(given @ p[:4] + h @ p[4:])
        return h, h

    return lax.scan(step, jnp.zeros(6), x, reverse=True)[1]


def _recurrent_in_parts(p, x):
    def step(h, given):
        one, own = given
        h = jnp.tanh(one[:4] @ own + h @ own.T @ own)
        return h, h

    return lax.scan(step, jnp.zeros(5), (x, p), unroll=2)[1]


def _nested(p, x):
    def outer(h, own):
        def inner(g, one):
            return jnp.tanh(g @ own + one[0]), None

        return lax.scan(inner, h, x)

    return lax.scan(outer, jnp.zeros(6), p)[0]


def _nested_stacks(p, x):
    def outer(h, own):
        return lax.scan(lambda g, w: (jnp.tanh(g @ w), None), h, own)

    return lax.scan(outer, x, p)[0]


def _both_ways(p, x):
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p)
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w.T), None), h, p)
    return h


def _leaves_its_loop(p, x):
    h, own = lax.scan(lambda h, w: (jnp.tanh(h @ w), 2 * w), x, p)
    return jnp.sum(jnp.square(own)) * h


def _looked_up(p, at, mode="fill", axis=0):
    found = jnp.take(p, at, axis=axis, mode=mode, fill_value=0)
    return jnp.sin(found + jnp.arange(found.size).reshape(found.shape))


def _tied(p, at):
    return jnp.tanh(p[at]) @ p.T


NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")

# What is computed, the parameters, the examples, and the ways that it may go.
CASES = {
    "stacks": (_einsum("abc,acd->abd", False), _normal(2, 5, 7), _normal(BATCH, 2, 3, 5)),
    "parameters first": (_einsum("cab,bcd->dac", True), _normal(4, 2, 3), _normal(BATCH, 3, 4, 5)),
    "all contracted": (_einsum("abc,cba->", False), _normal(2, 3, 4), _normal(BATCH, 4, 3, 2)),
    "outer": (_einsum("ab,cd->abcd", True), _normal(2, 3), _normal(BATCH, 4, 5)),
    "elementwise": (_einsum("ab,ab->ab", True), _normal(4, 5), _normal(BATCH, 4, 5)),
    "channels first": (
        _convolved(NCHW, (2, 1)), _normal(5, 3, 3, 2), _normal(BATCH, 2, 3, 7, 6),
    ),
    "dilated": (
        _convolved(NHWC, (1, 2), [(-1, 2), (1, -1)], lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
        _normal(3, 2, 3, 5),
        _normal(BATCH, 2, 7, 6, 3),
    ),
    "grouped": (
        _convolved(NCHW, (1, 1), feature_group_count=2),
        _normal(6, 2, 3, 2),
        _normal(BATCH, 2, 4, 5, 4),
    ),
    "grouped images": (
        _convolved(NCHW, (1, 1), batch_group_count=2),
        _normal(4, 2, 3, 2),
        _normal(BATCH, 2, 2, 5, 4),
    ),
    "three dimensions": (
        _convolved(("NDHWC", "DHWIO", "NDHWC"), (1, 2, 1)),
        _normal(2, 2, 3, 2, 3),
        _normal(BATCH, 1, 4, 4, 3, 2),
    ),
    "dropped beyond": (_looked_up, _normal(7, 3), _whole(BATCH, 6, low=-9, high=12)),
    "held beyond": (
        functools.partial(_looked_up, mode="clip"),
        _normal(7, 3),
        _whole(BATCH, 6, low=-9, high=12),
    ),
    "wrapped, columns": (
        functools.partial(_looked_up, mode="wrap", axis=1),
        _normal(2, 7, 3),
        _whole(BATCH, 6, low=-9, high=12),
    ),
    "large table": (_looked_up, _normal(300, 4), _whole(BATCH, 2, low=0, high=2, kind=jnp.uint8)),
    "tied table": (_tied, _normal(30, 40), _whole(BATCH, 3, low=0, high=3)),
    "one row": (
        lambda p, at: lax.dynamic_slice(p, (at, jnp.zeros_like(at)), (1, 3)),
        _normal(7, 3),
        jnp.asarray(np.int32([-20, 3, 99])),
    ),
    "two rows": (
        lambda p, at: lax.dynamic_slice(p, (at, jnp.zeros_like(at)), (2, 3)),
        _normal(7, 3),
        jnp.asarray(np.int32([-20, 3, 99])),
    ),
    "recurrent": (_recurrent, _normal(10, 6), _normal(BATCH, 5, 4)),
    "recurrent, own": (_recurrent_in_parts, _normal(3, 4, 5), _normal(BATCH, 3, 4)),
    "nested": (_nested, _normal(3, 6, 6), _normal(BATCH, 4, 6)),
    "nested stacks": (_nested_stacks, _normal(2, 3, 6, 6), _normal(BATCH, 6)),
    "both ways": (_both_ways, _normal(3, 30, 30), _normal(BATCH, 30)),
    "leaves its loop": (_leaves_its_loop, _normal(3, 5, 5), _normal(BATCH, 5)),
    "complex": (
        lambda p, x: jnp.abs(jnp.fft.fft(p) * jnp.fft.fft(x)), _normal(8), _normal(BATCH, 8),
    ),
    "branches": (
        lambda p, x: lax.cond(x[0] > 0, lambda: x @ p, lambda: jnp.sin(x) @ p.T),
        _normal(6, 6),
        _normal(BATCH, 6),
    ),
    "nothing": (lambda p, x: x[:0] @ p, _normal(0, 4), _normal(BATCH, 2)),
    "no trips": (
        lambda p, x: lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p)[0] * 0,
        _normal(0, 4, 4),
        _normal(BATCH, 4),
    ),
    "stopped": (
        lambda p, x: lax.stop_gradient(p) @ x + p @ lax.stop_gradient(jnp.tanh(p @ x)),
        _normal(4, 4),
        _normal(BATCH, 4),
    ),
}  # fmt: skip
PARAMS = {name: case[1] for name, case in CASES.items()}
EXAMPLES = {name: case[2] for name, case in CASES.items()}


def _loss(params, example):
    return sum(
        jnp.sum(jnp.sin(case[0](params[name], example[name]))) for name, case in CASES.items()
    )


@pytest.fixture(scope="module")
def rows():
    """Gradients of all examples, in float64, by ``jax.grad``."""

    def wide(tree):
        real = lambda x: jnp.issubdtype(x.dtype, jnp.floating)  # noqa: E731
        return jax.tree.map(lambda x: jnp.asarray(x, float) if real(x) else x, tree)

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(jax.grad(_loss), (None, 0)))(wide(PARAMS), wide(EXAMPLES))
        return jax.tree.map(np.asarray, found)


@pytest.fixture(scope="module")
def clipped():
    """Of each example by itself: bounds are an argument."""

    def of_one(example, bounds):
        alone = jax.tree.map(lambda x: x[None], example)
        return ghost.clipped_sum(_loss, PARAMS, alone, bounds)

    return jax.jit(jax.vmap(of_one, (0, None)))


def test_every_rule_gives_the_gradient(rows, clipped):
    found = clipped(EXAMPLES, dict.fromkeys(PARAMS, jnp.float32(1e6)))
    for name, expected in rows.items():
        largest = np.max(np.abs(expected), initial=1e-6)
        np.testing.assert_allclose(found[name], expected, atol=2e-5 * largest, err_msg=name)


def test_every_norm_is_that_of_the_gradient(rows, clipped):
    bounds = {name: jnp.float32(1e-3) for name in PARAMS}
    found = clipped(EXAMPLES, bounds)
    for name, expected in rows.items():
        size = np.linalg.norm(expected.reshape(BATCH, -1), axis=1)
        length = np.linalg.norm(np.asarray(found[name], float).reshape(BATCH, -1), axis=1)
        there = size > 1e-3
        assert np.all(length <= 1e-3), name
        assert np.all(length[there] >= 0.985e-3), name


def test_ways_are_said_and_the_same_for_shapes():
    report = ghost.explain(_loss, PARAMS, jax.tree.map(lambda x: x[0], EXAMPLES))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), PARAMS)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), EXAMPLES)
    assert ghost.explain(_loss, shapes, one) == report
    ways = {leaf.path: leaf.way for leaf in report.leaves}
    assert ways["['tied table']"] == ways["['both ways']"] == ways["['nested stacks']"] == "factors"
    by_rows = ("grouped", "grouped images", "complex", "branches", "two rows", "leaves its loop")
    assert all(ways[f"['{name}']"] == "rows" for name in by_rows)


def test_bounds_and_parameters_may_be_batched():
    def loss(p, x):
        return jnp.sum(jnp.sin(x @ p["a"] + p["b"]))

    x, params = _normal(4, 9), {"a": _normal(2, 9, 8), "b": _normal(2, 8)}
    bounds = jnp.asarray([0.01, 0.5, 30.0])

    def total(p, c):
        return ghost.clipped_sum(loss, p, x, c)

    found = jax.jit(jax.vmap(jax.vmap(total, (None, 0)), (0, None)))(params, bounds)
    run = jax.jit(total)
    for i in range(2):
        for j, bound in enumerate(bounds):
            alone = run(jax.tree.map(lambda leaf: leaf[i], params), bound)  # noqa: B023
            for name in params:
                np.testing.assert_allclose(found[name][i, j], alone[name], rtol=2e-4, atol=1e-6)


def _scale_rule(eqn, position):
    """An elementwise product is one product of single numbers for every entry."""
    if eqn.invars[0].aval.shape != eqn.invars[1].aval.shape:
        return None
    axes = tuple(range(eqn.invars[position].aval.ndim))

    def factors(operands, cotangent):
        return operands[1 - position].reshape(-1, 1, 1), cotangent.reshape(-1, 1, 1)

    return Rule((axes, (), ()), 1, False, factors)


def _scaled(p, x):
    return jnp.sum(jnp.sin(p * x))


def _in_one_program(p, x, clip_norm=0.3):
    """Traced anew in each call: the rules may be others."""
    return jax.jit(lambda p, x: ghost.clipped_sum(_scaled, p, x, clip_norm))(p, x)


def test_rules_may_be_added(monkeypatch):
    p, x = _normal(3, 4), _normal(BATCH, 3, 4)
    before = _in_one_program(p, x)
    monkeypatch.setitem(ghost.RULES, "mul", _scale_rule)
    assert ghost.explain(_scaled, p, x[0]).leaves[0].way in ("factors", "products")
    np.testing.assert_allclose(_in_one_program(p, x), before, rtol=2e-3, atol=1e-6)


def test_rules_whose_factors_have_other_shapes_are_refused(monkeypatch):
    def wrong(eqn, position):
        rule = _scale_rule(eqn, position)
        return rule._replace(num_products=2)

    monkeypatch.setitem(ghost.RULES, "mul", wrong)
    with pytest.raises(ValueError, match="rule of mul must give factors"):
        ghost.clipped_sum(_scaled, _normal(3, 4), _normal(2, 3, 4), 0.3)


def test_numbers_of_no_row_count_as_nothing(monkeypatch):
    """A rule that numbers rows from -1 and from K: two names of one row would be two rows in a norm."""

    def numbered(eqn, position):
        axes = ((), (0,), (1,))

        def factors(operands, cotangent):
            at = jnp.arange(8, dtype=jnp.int32) % 4 - 2
            return at[None], jnp.tile(cotangent, (2, 1))[None]

        return Rule(axes, 8, True, factors)

    monkeypatch.setitem(ghost.RULES, "mul", numbered)
    found = _in_one_program(_normal(4, 90), _normal(1, 4, 90), 0.01)
    assert np.linalg.norm(np.asarray(found, float)) <= 0.01
    np.testing.assert_array_equal(found[2:], 0)
