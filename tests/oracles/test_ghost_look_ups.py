"""Norms of tables that one example looks up many times: never below that of the gradient, hardly above."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import ghost
from dpsco_jax.oracles.ghost import _adding, _parts
from dpsco_jax.oracles.ghost._terms import Terms

LOOK_UPS, COLUMNS, ROWS, STACK = 33, 5, 40, 2
BOUND = jax.jit(lambda at, r: _parts.norm_bound(Terms(at, r), ROWS))
# Numbers of rows that do not fit into one integer with their places.
OF_A_LARGE_TABLE = jax.jit(lambda at, r: _parts.norm_bound(Terms(at, r), 2**30))


def _norms(at, r):
    """In float64, of the gradients themselves."""
    table = np.zeros((*r.shape[:2], ROWS, COLUMNS))
    for example, stack in np.ndindex(*r.shape[:2]):
        np.add.at(table[example, stack], at[example, stack], r[example, stack].astype(float))
    return np.sqrt(np.sum(table**2, axis=(1, 2, 3)))


def _drawn(seed, rows):
    rng = np.random.default_rng(seed)
    at = rng.integers(0, rows, (24, STACK, LOOK_UPS)).astype(np.int32)
    return at, rng.standard_normal((24, STACK, LOOK_UPS, COLUMNS))


def _cancelling(rows):
    """Second halves are the first ones with the other sign, up to 1e-7 to 1."""
    at, r = _drawn(1, rows)
    half = LOOK_UPS // 2
    at[..., half : 2 * half] = at[..., :half]
    rest = np.geomspace(1e-8, 1.0, 24)[:, None, None, None]
    r[..., half : 2 * half, :] = -r[..., :half, :] * (1 + rest)
    r[..., 2 * half :, :] *= rest
    return at, r


CASES = {
    "any": _drawn(0, ROWS),
    "one row": _drawn(2, 1),
    "few rows": _drawn(3, 4),
    "all different": (np.argsort(_drawn(4, ROWS)[1][..., 0], -1).astype(np.int32), _drawn(5, 1)[1]),
    "one row that cancels": _cancelling(1),
    "rows that cancel": _cancelling(ROWS),
}


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-19, 1.0, 1e15])
@pytest.mark.parametrize("name", CASES)
def test_the_bound_is_at_least_the_norm_and_little_more(name, size):
    at, r = CASES[name]
    r = np.float32(r * size)
    exact = _norms(at, r)
    lengths = np.linalg.norm(r.astype(float), axis=-1).sum((1, 2))
    for bound in (BOUND, OF_A_LARGE_TABLE):
        found = np.asarray(bound(at, r), float)
        assert np.all(found >= exact)
        benign = (exact > 0.1 * lengths) & (size > 1e-15)
        assert np.all(found[benign] <= 1.01 * exact[benign])
    assert benign.any() or size < 1e-15 or "cancel" in name


def test_what_cancels_in_float32_is_bounded():
    """Large vectors of one row hide a small one, in any order of additions."""
    at = np.zeros((1, 1, LOOK_UPS), np.int32)
    for place in range(1, LOOK_UPS):
        r = np.zeros((1, 1, LOOK_UPS, COLUMNS), np.float32)
        r[..., 0, :], r[..., LOOK_UPS - 1, :] = 2.0**25, -(2.0**25)
        r[..., place if place < LOOK_UPS - 1 else 5, :] += 1.0
        assert BOUND(at, r)[0] >= _norms(at, r)[0] > 0


def test_a_bound_is_at_least_its_share_of_lengths():
    at, r = CASES["one row that cancels"]
    r = np.float32(r)
    bound = jax.jit(lambda at, r: _parts.norm_bound(Terms(at, r), ROWS, _adding.LEAST_SHARE))
    lengths = np.sqrt(np.sum(np.linalg.norm(r.astype(float), axis=-1).sum(2) ** 2, 1))
    assert np.all(np.asarray(bound(at, r)) >= _adding.LEAST_SHARE * lengths)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_bad_numbers_have_no_finite_bound(bad):
    at, r = CASES["few rows"]
    r = np.float32(r)
    r[3, 1, 7, 2] = bad
    found = np.asarray(BOUND(at, r))
    assert found[3] == np.inf
    assert np.isfinite(np.delete(found, 3)).all()


def _loss(p, example):
    at, x = example
    rows = p.at[at].get(mode="fill", fill_value=0)
    return jnp.sum(jnp.tanh(rows.astype(jnp.float32)) * x)


def _given(kind=jnp.float32, rows=3000):
    rng = np.random.default_rng(6)
    at = rng.integers(0, 40, (9, LOOK_UPS)).astype(np.int32)
    at[0] = 7
    at[1, ::2], at[2, ::3] = rows + 5, -2  # beyond the table, and from its end
    x = rng.standard_normal((9, LOOK_UPS, COLUMNS)).astype(np.float32)
    x[3, 20:] = 0
    x[4, 16:28] = -x[4, :12]
    at[4, 16:28] = at[4, :12]
    table = jnp.asarray(rng.standard_normal((rows, COLUMNS)), kind)
    return table, (jnp.asarray(at), jnp.asarray(x))


def _clipped(table, examples, clip_norm, counted):
    """In float64 by NumPy, from the table as stored."""
    total = np.zeros(table.shape)
    values = np.asarray(table.astype(jnp.float32), float)
    for at, x, there in zip(*map(np.asarray, examples), counted, strict=True):
        valid = (at >= -len(values)) & (at < len(values))
        row = np.where(valid, at % len(values), 0)
        x = np.where(valid[:, None], x.astype(float), 0)
        gradient = np.zeros(table.shape)
        np.add.at(gradient, row, x / np.cosh(values[row]) ** 2)
        size = np.linalg.norm(gradient)
        total += there * gradient * min(1.0, clip_norm / size)
    return total


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_the_sum_is_that_of_clipped_gradients(kind):
    """Also of several bounds at once; who is not counted, or has NaN, adds nothing."""
    table, examples = _given(kind)
    counted = np.arange(9) != 5
    run = jax.jit(
        jax.vmap(
            lambda c, e: ghost.clipped_sum(_loss, table, e, c, counted=jnp.asarray(counted)),
            (0, None),
        )
    )
    bounds = jnp.asarray([0.5, 1e3])
    found = run(bounds, examples)
    for bound, ours in zip(bounds, found, strict=True):
        expected = _clipped(table, examples, float(bound), counted)
        atol = (1e-3 if kind == jnp.float32 else 1e-2) * np.abs(expected).max()
        np.testing.assert_allclose(ours, expected, atol=atol)
    at, x = examples
    spoiled = run(bounds, (at, x.at[8, 4, 1].set(jnp.nan)))
    for bound, ours in zip(bounds, spoiled, strict=True):
        without = _clipped(table, examples, float(bound), counted & (np.arange(9) != 8))
        atol = (1e-3 if kind == jnp.float32 else 1e-2) * np.abs(without).max()
        np.testing.assert_allclose(ours, without, atol=atol)


def test_the_report_names_the_way_and_its_cost_is_that_of_look_ups():
    def report(rows, number):
        table = jax.ShapeDtypeStruct((rows, COLUMNS), jnp.float32)
        at = jax.ShapeDtypeStruct((number,), jnp.int32)
        x = jax.ShapeDtypeStruct((number, COLUMNS), jnp.float32)
        (leaf,) = ghost.explain(_loss, table, (at, x)).leaves
        return leaf

    large = [report(rows, 128) for rows in (9000, 10**7)]
    for leaf in large:
        assert leaf.way == "factors"
        assert leaf.why.startswith("equal rows added up")
        assert leaf.numbers_held == 128 * COLUMNS
    assert large[0].why.split(" against")[0] == large[1].why.split(" against")[0]
    assert report(50, 128).way == "products"
    assert report(9000, 2).why[0].isdigit()
