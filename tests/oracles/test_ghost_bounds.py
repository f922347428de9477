"""Bounds of ghost sums: of one example's part, and of what one example moves, whoever the others are."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.oracles import ghost, sampling
from dpsco_jax.oracles.ghost import _adding, _backward, _leaves, _terms
from dpsco_jax.oracles.ghost._program import Program
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from tests.support import adversarial_sums

RNG = np.random.default_rng(0)


def _product(p, example):
    left, right = example
    return jnp.sum((left @ p) * right)


def _alone(shape, kind=jnp.float32, **options):
    """Parts of examples, each summed by itself: ``(examples, clip_norm) -> [examples, ...]``."""

    def of_one(example, bound):
        one = jax.tree.map(lambda x: x[None], example)
        return ghost.clipped_sum(_product, jnp.zeros(shape, kind), one, bound, **options)

    return jax.jit(jax.vmap(of_one, (0, None)))


def _lengths(parts):
    return np.linalg.norm(np.asarray(parts, float).reshape(len(parts), -1), axis=1)


def test_one_product_of_any_size_is_no_longer_than_the_bound():
    """Among them vectors whose squares vanish, whose partners make up for it."""
    left, right = RNG.standard_normal((8, 1, 40)), RNG.standard_normal((8, 1, 30))
    run = _alone((40, 30))
    for size, other, bound in itertools.product(
        (1e-30, 1e-24, 1e-22, 1e-10, 1.0, 1e15),
        (1e-22, 1e-5, 1.0, 1e18),
        (1e-13, 1e-11, 1e-3, 1e9),
    ):
        given = jnp.asarray(np.float32(left * size)), jnp.asarray(np.float32(right * other))
        assert np.all(_lengths(run(given, bound)) <= bound), (size, other, bound)


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_search_finds_no_part_that_is_longer_than_the_bound(kind):
    """Items that cancel each other, changed a little where that makes the part longer."""
    rng, run, bound = np.random.default_rng(1), _alone((12, 9), kind), 1.0
    shapes = (16, 6, 12), (16, 6, 9)
    best = [rng.standard_normal(shape) for shape in shapes]
    best[0][:, 1::2], best[1][:, 1::2] = best[0][:, ::2], -best[1][:, ::2] * (1 + 1e-4)
    best = [x * 10.0 ** rng.uniform(0, 6, (16, 1, 1)) for x in best]
    longest = np.zeros(16)
    for round_ in range(40):
        noise = 10.0 ** rng.uniform(-8, 0 if round_ % 2 else -4, (16, 1, 1))
        tried = [x * (1 + noise * rng.standard_normal(x.shape)) for x in best]
        found = _lengths(run(tuple(jnp.asarray(np.float32(x)) for x in tried), bound))
        better = found > longest
        longest = np.maximum(longest, found)
        best = [np.where(better[:, None, None], a, b) for a, b in zip(tried, best, strict=True)]
        assert np.all(found <= bound)
    assert np.max(longest) > 0.5  # else the search is none


def test_a_user_whose_items_cancel_counts_as_a_thirtieth_of_their_lengths():
    """So that what others' products round is bounded; one whose items cancel to a tenth is as it is."""
    left, right = RNG.standard_normal((1, 1, 40)), RNG.standard_normal((1, 1, 30))

    def given(rest):
        both = np.concatenate([left, left], 1), np.concatenate([right, (rest - 1) * right], 1)
        return jax.tree.map(lambda x: jnp.asarray(np.float32(x)), both)

    run, longest = _alone((40, 30)), 2 * np.linalg.norm(left) * np.linalg.norm(right)
    nearly, tenth = run(given(1e-3), 1.0), run(given(0.2), 1.0)
    expected = 1e-3 * longest / 2 / (longest * _adding.LEAST_SHARE)
    assert _lengths(nearly)[0] == pytest.approx(expected, rel=0.02)
    assert 0.99 <= _lengths(tenth)[0] <= 1


def test_norms_of_items_that_cancel_are_bounded_without_a_share():
    """As where there are so many items that no example shares a product: rounding hides what is left."""
    bound = jax.jit(lambda *terms: _terms.norm_bound([_terms.Terms(*terms)], [False]))
    left, right = RNG.standard_normal((600, 1, 1, 40)), RNG.standard_normal((600, 1, 1, 30))
    rest = np.geomspace(1e-6, 1e-2, 600)[:, None, None, None]
    moved = rest * RNG.standard_normal((600, 1, 1, 30))
    given = np.concatenate([left, left], 2), np.concatenate([right, moved - right], 2)
    single = [np.asarray(x, np.float32) for x in given]
    exact = np.einsum("bstk,bstn->bkn", *(x.astype(float) for x in single))
    assert np.all(np.asarray(bound(*single)) >= np.linalg.norm(exact, axis=(1, 2)))


@pytest.fixture(scope="module")
def drifting():
    """Two data sets of 2^13 examples that differ in the first, and their sums: with T = 1 and as look-ups."""
    number, columns = 2**13, 64
    rows = adversarial_sums.drifting(number, 64)
    spread = [jnp.asarray(np.float32(np.repeat(r[:, None] / 8, columns, 1))) for r in rows]
    return number, spread


def _moved(run, spread):
    sums = [[np.asarray(part, np.longdouble) for part in run(x)] for x in spread]
    return float(np.linalg.norm((sum(sums[0]) - sum(sums[1])).astype(float)))


@pytest.fixture(params=["cpu", "others"])
def platform(request, monkeypatch):
    """Sums as a CPU makes them, and as other chips do."""
    if request.param == "others":
        monkeypatch.setattr(jax.lax, "platform_dependent", _of_others)


def _of_others(*given, cpu, default):
    del cpu
    return default(*given)


def test_one_example_moves_the_sum_by_what_it_is(drifting, platform):
    """Where a sum in float32 moves by more than 2C."""
    number, spread = drifting
    ones, nothing = jnp.ones((number, 1)), jnp.zeros((1, 64))

    @jax.jit
    def dense(x):
        return ghost.clipped_sum(_product, nothing, (ones, x), 1.5, in_parts=True)

    @jax.jit
    def rounded(x):
        return (ghost.clipped_sum(_product, nothing, (ones, x), 1.5),)

    def bias(p, x):
        return jnp.sum(p * x)

    @jax.jit
    def rows(x):
        return ghost.clipped_sum(bias, jnp.zeros(64), x, 1.5, in_parts=True, chunk_size=100)

    def table(p, x):
        return jnp.sum(p[jnp.argmax(x)] * x)

    @jax.jit
    def looked_up(x):
        return ghost.clipped_sum(table, jnp.zeros((3, 64)), x, 1.5, in_parts=True)

    for run in (dense, rows, looked_up):
        assert _moved(run, spread) == pytest.approx(2.0, abs=2e-6)
    assert _moved(rounded, spread) <= 3.0 * (1 - 1e-3)

    def plain(x):  # one after the other
        return (jax.lax.scan(lambda total, row: (total + row, None), jnp.zeros(64), x)[0],)

    assert _moved(jax.jit(plain), spread) > 2.01


def _convolved(params, x):
    layout = ("NCHW", "OIHW", "NCHW")
    seen = jax.lax.conv_general_dilated(
        x[None], params["kernel"], (2, 1), "SAME", dimension_numbers=layout
    )
    return jnp.sum(jnp.tanh(seen) * params["scale"])


def test_gradients_of_kernels_are_added_up_alike_on_every_chip(platform):
    """Of more examples than a product has; one that is not finite counts as nothing."""
    rng = np.random.default_rng(5)
    x = np.float32(rng.standard_normal((600, 2, 5, 4)))
    x[300, 1, 2, 3] = np.nan
    params = {
        "kernel": jnp.asarray(np.float32(rng.standard_normal((3, 2, 2, 2)))),
        "scale": jnp.ones((3, 3, 4)),
    }
    one = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    ways = ghost.explain(_convolved, params, one).leaves
    assert [leaf.way for leaf in ways] == ["products", "rows"]
    assert f"of {4 * 12 * 8} bytes of patches" in ways[0].why
    assert "patches" not in ways[1].why
    found = jax.jit(lambda x: ghost.clipped_sum(_convolved, params, x, 1e3))(jnp.asarray(x))
    there = np.delete(x, 300, axis=0)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (params, there))
        rows = jax.jit(jax.vmap(jax.grad(_convolved), (None, 0)))(*wide)
        rows = jax.tree.map(np.asarray, rows)
    for name, gradients in rows.items():
        np.testing.assert_allclose(found[name], np.sum(gradients, 0), atol=1e-3)
    short = jax.jit(lambda x: ghost.clipped_sum(_convolved, params, x, 1e-2))(jnp.asarray(x))
    flat = np.concatenate([gradients.reshape(len(there), -1) for gradients in rows.values()], 1)
    lengths = np.linalg.norm(flat, axis=1)
    for name, gradients in rows.items():
        clipped = np.tensordot(1e-2 / lengths, gradients, 1)
        np.testing.assert_allclose(short[name], clipped, atol=2e-2 * np.max(np.abs(clipped)))


@pytest.mark.parametrize("precision", [None, jax.lax.Precision.HIGHEST])
def test_gradients_that_are_built_are_as_precise_as_the_loss_asks(precision):
    def loss(p, x):
        return jnp.sum(jnp.tanh(jnp.dot(x, p, precision=precision)))

    program = Program(loss, jnp.zeros((3, 2)), jnp.zeros((40, 3)))
    (way,) = _leaves.ways(program)
    assert way.name == "products"
    terms = _terms.Terms(jnp.zeros((5, 1, 40, 3)), jnp.zeros((5, 1, 40, 2)))
    made = jax.make_jaxpr(
        lambda *given: _backward._products(program.uses[0].eqn, way.uses[0], _terms.Terms(*given))
    )(*terms)
    assert ("HIGHEST" in str(made)) == (precision is not None)


def test_the_remainder_is_what_rounding_took():
    x = jnp.asarray(np.float32(RNG.standard_normal((600, 20))))

    def loss(p, x):
        return jnp.sum(p * x)

    total, rest = jax.jit(
        lambda x: ghost.clipped_sum(loss, jnp.zeros(20), x, 100.0, in_parts=True)
    )(x)
    exact = np.sum(np.asarray(x, float), 0)
    both = np.asarray(total, float) + np.asarray(rest, float)
    assert np.any(np.asarray(rest) != 0)
    assert np.max(np.abs(rest)) <= 2.0**-24 * np.max(np.abs(exact))
    # Of 256 rows the sum is rounded.
    np.testing.assert_allclose(both, exact, atol=1e-4)
    assert ghost.clipped_sum(loss, jnp.zeros(20), x[:2], 100.0).dtype == jnp.float32


def test_look_ups_are_added_up_without_rounding():
    """In any order, to the last bit, and near what float64 makes of them; with few and many rows."""

    def loss(p, example):
        at, x = example
        return jnp.sum(p[at] * x)

    for rows in (5, 700):
        at = jnp.asarray(np.int32(RNG.integers(0, 5, (50, 3))))
        x = jnp.asarray(np.float32(RNG.standard_normal((50, 3, 4))))
        run = jax.jit(
            lambda e, rows=rows: ghost.clipped_sum(
                loss, jnp.zeros((rows, 4)), e, 50.0, in_parts=True
            )
        )
        found, order = run((at, x)), RNG.permutation(50)
        jax.tree.map(np.testing.assert_array_equal, found, run((at[order], x[order])))
        exact = np.zeros((rows, 4))
        np.add.at(exact, np.asarray(at), np.asarray(x, float))
        np.testing.assert_allclose(found[0], exact, atol=3e-6)


def _ways(number_of_items, table=False):
    def dense(p, x):
        return jnp.sum(jnp.sin(x @ p["a"]) * p["b"])

    def looked_up(p, at):
        return jnp.sum(jnp.tanh(p["a"][at] @ p["a"].T) @ p["b"])

    params = {"a": jax.ShapeDtypeStruct((300, 200), jnp.float32)}
    params["b"] = jax.ShapeDtypeStruct((300 if table else 200,), jnp.float32)
    shape = (number_of_items,) if table else (number_of_items, 300)
    one = jax.ShapeDtypeStruct(shape, jnp.int32 if table else jnp.float32)
    return _leaves.ways(Program(looked_up if table else dense, params, one))


def test_bounds_are_made_smaller_by_what_rounding_may_take():
    """One example of a thousand who counts, with a gradient of length 1e3, in one float and in two."""
    number = 1000
    given = jnp.full((number, 1, 40), 5.0), jnp.full((number, 1, 30), 5.0)
    first = jnp.arange(number) == 0
    run = jax.jit(
        lambda x, in_parts: ghost.clipped_sum(
            _product, jnp.zeros((40, 30)), x, 1.0, counted=first, in_parts=in_parts
        ),
        static_argnums=1,
    )
    plans = _adding.plans(_leaves.ways(Program(_product, jnp.zeros((40, 30)), _one(given))))
    in_two = _adding.room(plans, number, number, 0)
    length = np.linalg.norm(np.asarray(run(given, True)[0], float))
    assert in_two - 3e-5 <= length <= in_two
    length = np.linalg.norm(np.asarray(run(given, False), float))
    assert in_two - 2e-4 <= length <= in_two - 2 * number * 2.0**-24


def _one(examples):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), examples)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_several_items_of_which_one_is_bad_count_as_nothing(bad):
    left, right = RNG.standard_normal((3, 4, 40)), RNG.standard_normal((3, 4, 30))
    run = jax.jit(lambda e: ghost.clipped_sum(_product, jnp.zeros((40, 30)), e, 1.0))
    given = [jnp.asarray(np.float32(x)) for x in (left, right)]
    without = run((given[0].at[1].set(0), given[1]))
    np.testing.assert_array_equal(run((given[0].at[1, 2, 3].set(bad), given[1])), without)
    np.testing.assert_array_equal(run((given[0], given[1].at[1, 2, 3].set(bad))), without)


@pytest.mark.parametrize("items", [1, 2, 7, 40])
@pytest.mark.parametrize("table", [False, True])
def test_what_products_round_is_paid_for(items, table):
    """The loss of every group, counted again from its definition, is what the bounds are made smaller by."""
    ways = _ways(items, table)
    plans = _adding.plans(ways)
    lost, unit = 0.0, 2.0**-24
    for way, plan in zip(ways, plans, strict=True):
        assert way.name in ("factors", "rows", "products")
        dense = sum(use.sizes[1] for use in way.uses if not use.rule.looked_up)
        dense = dense if way.name == "factors" else 1
        several = way.name == "factors" and sum(use.sizes[1] for use in way.uses) > 1
        assert plan.share == (_adding.LEAST_SHARE if several and plan.shared else plan.share)
        # Uses that are added up apart may be as many times as long as their sum.
        apart = len(way.uses) / _adding.LEAST_SHARE if several and len(way.uses) > 1 else 1
        assert plan.apart == pytest.approx(apart)
        assert plan.share == (_adding.LEAST_SHARE if apart > 1 else plan.share)
        if plan.group > 1:
            together = plan.group * (plan.group // 2 * dense + 2)
            lost = max(lost, 2 * together * unit / (plan.share or 1.0))
    assert 0 < lost <= 1.07 * 2.0**-8
    # Of a random sample with one example more two groups are others.
    assert _adding.room(plans, 1000, 1000, 0) <= 1 - 2 * lost
    assert _adding.room(plans, 1000, 1000, 1) <= 1 - 2 * lost - 2000 * unit
    # Four examples share a rounding with three others, whatever the size of a product.
    largest = max(plan.group for plan in plans)
    assert _adding.room(plans, 4, 1000, 0) <= 1 - 2 * lost * min(1.0, 4 / largest)
    assert _adding.room(plans, 1000, 1000, 1) > 0.99
    if apart_most := max(plan.apart for plan in plans) - 1:
        many = 2**19
        least = min(plan.group for plan in plans)
        second = 4 * (many * unit) ** 2 / max(least, 1) * apart_most
        assert _adding.room(plans, many, many, 0) <= 1 - 2 * lost - second


def test_draws_with_replacement_share_roundings_as_so_many_users_would():
    objective = Objective(_product, np.inf, None, domains.whole_space())
    ones = jnp.ones((4, 1, 3)), jnp.ones((4, 1, 2))
    lengths = {}
    for draws in (None, 128):
        sampler = (
            None
            if draws is None
            else partial(sampling.with_replacement, num_users=4, num_draws=draws)
        )
        oracle = ghost.clipped_gradient_sum(objective, 0.1, sampler, chunk_size=128)
        total = jax.jit(oracle)(jax.random.key(0), jnp.zeros((3, 2)), UserData(ones)).gradient
        lengths[draws] = float(jnp.linalg.norm(total)) / (draws or 4)
    # By what 124 more examples may lose in each of two groups of products, in both data sets.
    assert lengths[None] - lengths[128] > 0.1 * 4 * 64 * 124 * 2.0**-24


def test_an_offset_that_is_not_positive_makes_the_sum_zero():
    given = jnp.ones((2, 1, 40)), jnp.ones((2, 1, 30))
    run = jax.jit(
        lambda offset: ghost.clipped_sum(
            _product, jnp.zeros((40, 30)), given, 1.0, normalize=offset
        )
    )
    for offset in (-34.6, -1.0, 0.0, np.nan):
        np.testing.assert_array_equal(run(offset), 0)
    assert 1.9 < np.linalg.norm(run(0.1)) < 2
    with pytest.raises(ValueError, match="normalize"):
        ghost.clipped_sum(_product, jnp.zeros((40, 30)), given, 1.0, normalize=-1.0)
    with pytest.raises(ValueError, match="normalize"):
        ghost.clipped_sum(_product, jnp.zeros((40, 30)), given, 1.0, normalize=np.ones(2))
