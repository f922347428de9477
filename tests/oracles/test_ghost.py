"""Sums of clipped gradients without the gradients: equal to those with them, never above the clip norm."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import ghost, gradients
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData

RNG = np.random.default_rng(0)
BATCH = 5


def _normal(*shape, scale=0.4):
    return jnp.asarray(np.float32(scale * RNG.standard_normal(shape)))


def _mlp(p, example):
    x, y = example
    z = jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]
    return -jax.nn.log_softmax(z)[y]


def _tied(p, example):
    h = p["table"][example]
    h = jnp.tanh(h @ p["w"]) * p["scale"]
    return -jnp.mean(jax.nn.log_softmax(h @ p["table"].T)[jnp.arange(4), example])


def _conv(p, example):
    x, y = example
    layout = ("CHWN", "HWIO", "CHWN")
    h = jax.lax.conv_general_dilated(
        x[..., None], p["k"], (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=layout
    )
    return -jax.nn.log_softmax(jnp.tanh(h).reshape(-1) @ p["w"])[y]


def _deep(p, example):
    x, y = example
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w.T + p["shared"]), None), x, p["stack"])
    return -jax.nn.log_softmax(jax.checkpoint(lambda h: h @ p["w"])(h))[y]


def _pair(x, y):
    return x, jnp.asarray(np.int32(RNG.integers(0, 3, BATCH)))


MLP = {"a": _normal(9, 6), "b": _normal(6), "c": _normal(6, 3)}
NETWORKS = {
    "mlp": (_mlp, MLP, _pair(_normal(BATCH, 9, scale=1.0), 3)),
    "tied": (
        _tied,
        {"table": _normal(40, 30), "w": _normal(30, 30), "scale": _normal(30)},
        jnp.asarray(np.int32(RNG.integers(0, 40, (BATCH, 4)))),
    ),
    "conv": (
        _conv,
        {"k": _normal(3, 2, 2, 4), "w": _normal(3 * 5 * 4, 3)},
        _pair(_normal(BATCH, 2, 6, 5, scale=1.0), 3),
    ),
    "deep": (
        _deep,
        {"stack": _normal(3, 7, 7), "shared": _normal(7), "w": _normal(7, 3)},
        _pair(_normal(BATCH, 7, scale=1.0), 3),
    ),
}


def _wide(tree):
    def widened(x):
        return jnp.asarray(x, float) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(widened, tree)


def _norm(tree):
    return np.sqrt(sum(np.sum(np.square(np.asarray(x, float))) for x in jax.tree.leaves(tree)))


def _expected(loss, params, examples, clip_norm):
    """In float64, by a gradient of each."""
    with jax.enable_x64(True):
        rows = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(_wide(params), _wide(examples))
        rows = jax.tree.map(np.asarray, rows)
    size = [_norm(jax.tree.map(lambda x: x[i], rows)) for i in range(BATCH)]  # noqa: B023
    factors = [min(1.0, clip_norm / s) for s in size]
    return jax.tree.map(lambda x: np.tensordot(factors, x, 1), rows), np.median(size)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_sum_is_that_of_clipped_gradients(name):
    loss, params, examples = NETWORKS[name]
    clip_norm = 0.9 * _expected(loss, params, examples, 1.0)[1]
    expected, _ = _expected(loss, params, examples, clip_norm)
    run = jax.jit(lambda p, e, c: ghost.clipped_sum(loss, p, e, c))
    found = run(params, examples, clip_norm)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3 * np.max(np.abs(b)))


def test_explain_says_which_way_every_leaf_goes():
    ways = {}
    for name, (loss, params, examples) in NETWORKS.items():
        report = ghost.explain(loss, params, jax.tree.map(lambda x: x[0], examples))
        ways[name] = {leaf.path: leaf.way for leaf in report.leaves}
        assert str(report).count("\n") == len(report.leaves) + len(report.not_kept)
    assert ways["mlp"] == {"['a']": "factors", "['b']": "rows", "['c']": "factors"}
    assert ways["tied"]["['table']"] == ways["tied"]["['w']"] == "factors"
    assert ways["deep"]["['stack']"] == "factors"


def test_bad_examples_count_as_zero_in_all_leaves_and_spoil_no_others():
    x, y = NETWORKS["mlp"][2]
    run = jax.jit(lambda e, there: ghost.clipped_sum(_mlp, MLP, e, 0.3, counted=there))
    kept = np.array([True, False, False, True, True])
    expected = run((x, y), kept)
    bad = np.array(x)
    bad[1, 2], bad[2, 0] = np.nan, np.inf
    for there in (kept, np.ones(BATCH, bool)):
        found = run((bad, y), there)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), found, expected)
    layers = {"a": 0.1, "b": 0.2, "c": 0.3}
    run = jax.jit(
        lambda e, there: ghost.clipped_sum(_mlp, MLP, e, layers, counted=there, chunk_size=2)
    )
    in_layers, alone = run((bad, y), None), run((x, y), kept)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), in_layers, alone)


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_no_example_is_longer_than_the_clip_norm(kind):
    """Cancelling items, in numbers of any size."""

    def loss(p, example):
        left, right = example
        return jnp.sum((left @ p) * right)

    bound = 1e-3
    run = jax.jit(
        lambda e: jax.vmap(
            lambda one: ghost.clipped_sum(
                loss, jnp.zeros((40, 30), kind), jax.tree.map(lambda x: x[None], one), bound
            )
        )(e)
    )
    base = RNG.standard_normal((12, 1, 40)), RNG.standard_normal((12, 1, 30))
    sizes = [(1.0, 1.0), (5e-20, 1e18), (1e18, 5e-20), (1e-30, 1.0), (1e18, 1.0), (1e9, 1e-9)]
    for size_left, size_right in sizes:
        for sign in (1.0, -1.0, -1.0 + 1e-6):
            left = np.concatenate([base[0], base[0] + 1e-5 * sign], axis=1) * size_left
            right = np.concatenate([base[1], sign * base[1]], axis=1) * size_right
            given = jnp.asarray(np.float32(left)), jnp.asarray(np.float32(right))
            made = run(jax.tree.map(lambda x: x.astype(kind), given))
            made = np.asarray(made, float)
            assert np.all(np.linalg.norm(made, axis=(1, 2)) <= bound)


def test_users_with_items_are_those_of_the_other_oracle():
    objective = losses.logistic(2.0)
    features = _normal(6, 3, 4, scale=1.0)
    mask = RNG.random((6, 3)) < 0.7
    data = UserData(Example(features, jnp.sign(_normal(6, 3))), jnp.asarray(mask))
    plain = gradients.clipped_gradient_sum(gradients.user_gradient(objective), 0.2)
    ours = ghost.clipped_gradient_sum(objective, 0.2, chunk_size=4)
    point = _normal(4)
    first, second = (jax.jit(way)(jax.random.key(0), point, data) for way in (plain, ours))
    np.testing.assert_allclose(first.gradient, second.gradient, atol=1e-4)
    assert int(first.num_gradients) == int(second.num_gradients)


def test_users_look_up_rows_by_single_numbers():
    """Of a mean over items a number becomes an array of them, out of range too."""
    table = {"t": _normal(50, 7), "out": _normal(7)}
    numbers = np.int32([[0, 3, 3], [49, 50, 99], [-1, -50, -60], [7, 8, 9], [3, 3, 3]])

    def loss(p, user):
        one = jax.vmap(lambda i: jnp.tanh(p["t"][i]) @ p["out"])
        return jnp.mean(one(user))

    report = ghost.explain(loss, table, numbers[0])
    assert {leaf.path: leaf.way for leaf in report.leaves}["['t']"] == "factors"
    found = jax.jit(lambda p, e: ghost.clipped_sum(loss, p, e, 1e3))(table, numbers)
    rows = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(table, numbers)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(rows), strict=True):
        np.testing.assert_allclose(a, b.sum(0), atol=1e-5)


def test_a_derivative_of_its_own_is_kept():
    @jax.custom_vjp
    def rounded(w, x):
        return jnp.round(w @ x)

    rounded.defvjp(
        lambda w, x: (jnp.round(w @ x), (w, x)),
        lambda kept, c: (jnp.outer(c, kept[1]), kept[0].T @ c),
    )

    def loss(w, x):
        return jnp.sum(jnp.sin(rounded(w, x)))

    w, x = _normal(3, 4, scale=2.0), _normal(BATCH, 4, scale=2.0)
    found = jax.jit(lambda p, e: ghost.clipped_sum(loss, p, e, 1e3))(w, x)
    rows = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(w, x)
    np.testing.assert_allclose(found, rows.sum(0), atol=1e-4)


@pytest.mark.parametrize(
    ("loss", "said"),
    [(lambda p, e: jnp.sum(p), "loss must depend"), (lambda p, e: p * e, "one real number")],
)
def test_losses_that_are_none_are_refused(loss, said):
    with pytest.raises(ValueError, match=said):
        ghost.clipped_sum(loss, jnp.ones(3), jnp.ones((2, 3)), 1.0)


def test_layers_are_clipped_to_bounds_of_their_own():
    x, y = NETWORKS["mlp"][2]
    layers = {"a": 0.01, "b": 0.02, "c": 0.03}
    run = jax.jit(lambda e: ghost.clipped_sum(_mlp, MLP, e, layers))
    found = run((x[:1], y[:1]))
    for name, bound in layers.items():
        assert 0.99 * bound <= _norm(found[name]) <= bound
    scaled = jax.jit(lambda e: ghost.clipped_sum(_mlp, MLP, e, 0.1, normalize=0.01))((x[:1], y[:1]))
    size = _norm(jax.jit(lambda e: ghost.clipped_sum(_mlp, MLP, e, 1e6))((x[:1], y[:1])))
    assert _norm(scaled) == pytest.approx(0.1 * size / (size + 0.01), rel=1e-3)


def test_no_gradient_of_each_example_is_built():
    """No array of the program is as large as the gradients of all examples in the large leaf."""
    number, params = 64, {"a": jnp.ones((90, 80)), "b": jnp.ones(80), "c": jnp.ones((80, 3))}
    examples = jnp.ones((number, 90)), jnp.zeros(number, jnp.int32)
    text = (
        jax.jit(lambda p, e: ghost.clipped_sum(_mlp, p, e, 1.0)).lower(params, examples).as_text()
    )
    sizes = [
        np.prod([int(n) for n in shape.split("x")[:-1]], dtype=int)
        for shape in re.findall(r"tensor<((?:\d+x)+)", text)
    ]
    assert max(sizes) <= 2 * 90 * 80 < number * 90 * 80


@pytest.mark.parametrize(
    ("layout", "shape", "kernel", "options"),
    [
        (("NCH", "OIH", "NCH"), (2, 3, 11), (4, 3, 3), {"strides": (3,), "dilation": (2,)}),
        (("NWC", "WIO", "NWC"), (2, 9, 3), (4, 3, 2), {"padding": ((-1, 4),), "spread": (2,)}),
        (("NHWC", "HWIO", "CNHW"), (2, 7, 6, 3), (3, 2, 3, 4), {"strides": (1, 2)}),
        (
            ("CDWNH", "IHDOW", "NDHWC"),
            (3, 4, 5, 2, 6),
            (3, 2, 3, 4, 2),
            {"strides": (2, 1, 3), "dilation": (1, 2, 1), "padding": ((1, 0), (2, 3), (0, 1))},
        ),
    ],
)
def test_factors_of_a_convolution_are_its_derivative(layout, shape, kernel, options):
    images, weights = _normal(*shape, scale=1.0), _normal(*kernel, scale=1.0)
    space = len(shape) - 2

    def convolved(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            options.get("strides", (1,) * space),
            options.get("padding", ((1, 1),) * space),
            options.get("spread"),
            options.get("dilation"),
            layout,
        )

    (eqn,) = jax.make_jaxpr(convolved)(images, weights).eqns
    result, pull = jax.vjp(lambda w: convolved(images, w), weights)
    cotangent = _normal(*result.shape, scale=1.0)
    rule = ghost.RULES["conv_general_dilated"](eqn, 1)
    left, right = rule.factors([images, None], cotangent)
    axes = [axis for group in rule.axes for axis in group]
    total = np.einsum("stk,stn->skn", np.asarray(left, np.float64), np.asarray(right, np.float64))
    found = total.reshape([kernel[axis] for axis in axes]).transpose(np.argsort(axes))
    assert rule.num_products == right.shape[1] == result.size // right.shape[2]
    np.testing.assert_allclose(found, pull(cotangent)[0], rtol=1e-4, atol=1e-5)


def test_collectives_which_mix_examples_are_refused():
    """As of batch normalization, over an axis of whoever maps over the sum."""

    def centred(p, x):
        return jnp.sum(jnp.square(x @ p - jax.lax.pmean(x @ p, "batch")))

    def outer(x):
        with pytest.raises(ValueError, match="collective over a named axis"):
            ghost.clipped_sum(centred, MLP["a"], x, 1.0)
        return x

    jax.vmap(outer, axis_name="batch")(jnp.zeros((2, 3, 9)))


def test_what_is_stopped_has_no_gradient():
    """Even in a loop that has none."""

    def loss(p, x):
        stopped = jax.lax.stop_gradient((p, x))
        still = jax.lax.while_loop(lambda h: h[0] > 1, lambda h: h @ stopped[0]["b"], stopped[1])
        return jnp.sum(jnp.tanh((x + still) @ p["a"]))

    params, rows = {"a": MLP["a"], "b": _normal(9, 9)}, _normal(2, 9)
    assert [x.way for x in ghost.explain(loss, params, rows[0]).leaves] == ["factors", "unused"]
    total = jax.jit(lambda rows: ghost.clipped_sum(loss, params, rows, 1e3))(rows)
    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.sum(0), rtol=1e-3), total, each)


def test_an_index_into_layers_holds_each_for_every_example():
    def loss(p, x):
        return jnp.sum(jax.lax.fori_loop(0, 8, lambda i, h: jnp.tanh(h @ p[i]), x))

    (leaf,) = ghost.explain(loss, _normal(8, 9, 9), _normal(9)).leaves
    assert leaf.way == "factors"
    assert leaf.numbers_held >= 8 * 9 * 9
