"""The norm and the clip against float64, on inputs chosen to break them."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from dpsco_jax.geometry import norms

SIZE = 6
clip = jax.jit(lambda tree, bound: norms.clip_to_norm(tree, bound))
norm = jax.jit(norms.global_norm)


clip_users = jax.jit(jax.vmap(lambda row: norms.clip_to_norm(two_leaves(row), 1.0)))
all_finite = jax.jit(norms.all_finite)


def exact_norm(tree):
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return float(np.linalg.norm(np.concatenate(leaves))) if leaves else 0.0


def two_leaves(values):
    return {"a": values[:2], "b": values[2:].reshape(2, 2)}


any_floats = hnp.arrays(np.float32, SIZE, elements=st.floats(width=32))
finite_floats = hnp.arrays(
    np.float32, SIZE, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)
bounds = st.floats(2.0**-20, 2.0**20, width=32)


@settings(max_examples=300, deadline=None)
@given(any_floats, bounds)
def test_clipped_norm_never_exceeds_the_bound(values, bound):
    clipped = clip(two_leaves(values), bound)
    assert exact_norm(clipped) <= bound
    if not np.isfinite(values).all():
        assert exact_norm(clipped) == 0.0


@settings(max_examples=300, deadline=None)
@given(finite_floats)
def test_norm_agrees_with_float64(values):
    # The CPU flushes subnormal numbers to zero, hence the absolute term.
    expected = exact_norm(values)
    got = float(norm(two_leaves(values)))
    if expected > 3.3e38:
        assert got > 3.2e38
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_hill_climbing_does_not_leave_the_ball(dtype):
    """Searches vectors near the sphere, where rounding decides, for the one with the largest result."""
    rng = np.random.default_rng(0)
    batch_clip = jax.jit(jax.vmap(lambda row: norms.clip_to_norm(row, 1.0)))
    best = rng.normal(size=(64, 33))
    worst = 0.0
    for _ in range(20):
        candidates = np.repeat(best, 16, axis=0) * rng.choice(
            [1.0, 1.0, 3.0, 100.0], size=(1024, 1)
        )
        candidates += rng.normal(size=candidates.shape) * 10.0 ** rng.uniform(-6, 0, (1024, 1))
        candidates = np.clip(candidates, -6e4, 6e4)  # float16 ends at 65504
        results = np.asarray(batch_clip(jnp.asarray(candidates, dtype)), np.float64)
        sizes = np.linalg.norm(results, axis=1)
        worst = max(worst, sizes.max())
        best = candidates[np.argsort(sizes)[-64:]]
    assert 0.9999 < worst <= 1.0


@pytest.mark.parametrize("shape", [(1154,), (4096,), (5000,), (3, 300_001), (2_000_000,)])
def test_long_sums_do_not_lose_small_terms(shape):
    """One large entry first: added one by one in float32, the others would vanish."""
    values = np.full(shape, 2e-4, np.float32)
    values.flat[0] = 1.0
    clipped = clip(values, 0.5)
    assert 0.999 * 0.5 < exact_norm(clipped) <= 0.5
    np.testing.assert_allclose(float(norm(values)), exact_norm(values), rtol=3e-6)


def test_sum_is_blocked_whatever_the_compiler_does():
    assert norms._additions((4096,)) == 4096
    assert norms._additions((4097,)) <= 4096 + 3
    assert norms._additions((10**10,)) <= 3 * 4096
    assert norms._additions((5000, 100, 7)) <= 3 * 4096
    text = jax.jit(norms.global_norm).lower(jnp.zeros(1_000_000)).as_text()
    assert text.count("optimization_barrier") > 1


@pytest.mark.parametrize(
    "shape",
    [
        (4097,),
        (16384,),
        (300_000,),
        (1000, 1000),
        (100_000, 16),
        (7, 13, 17, 19),
        (4096, 2),
        (2, 5000),
    ],
)
def test_every_term_is_added_once(shape):
    terms = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    assert float(norms._ordered_sum(jnp.asarray(terms))) == terms.sum(dtype=np.float64)


@pytest.mark.parametrize("bound", [1e-35, 1e-30, 1e-20, 1.0, 1e18, 1e19, 1e20, 1e30, 1e38])
def test_no_magnitude_is_taken_for_a_small_one(bound):
    """Squares leave the range of floats on both sides: all magnitudes against all bounds."""
    rows = 10.0 ** np.arange(-38, 38.6, 0.5)[:, None] * np.float32([1.0, 0.7, -0.5])
    rows = rows.astype(np.float32)
    clipped = jax.jit(jax.vmap(lambda row: norms.clip_to_norm(row, bound)))(rows)
    lengths = np.linalg.norm(np.asarray(clipped, np.float64), axis=1)
    true = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert np.all(lengths <= np.float32(bound))
    kept = true < 1e37 * bound
    wanted = np.minimum(true, bound)
    np.testing.assert_allclose(lengths[kept], wanted[kept], rtol=1e-4, atol=2e-38)


@pytest.mark.parametrize("bound", [1e-200, 1.0, 1e150, 1e160, 1e300])
def test_no_magnitude_of_float64_is_taken_for_a_small_one(bound):
    rows = 10.0 ** np.arange(-300, 308, 2.0)[:, None] * np.array([1.0, 0.7, -0.5])
    with jax.enable_x64(True):
        clipped = jax.jit(jax.vmap(lambda row: norms.clip_to_norm(row, bound)))(rows)
    with np.errstate(over="ignore"):
        lengths = np.hypot.reduce(np.abs(np.asarray(clipped) / bound), axis=1)
        true = np.hypot.reduce(np.abs(rows / bound), axis=1)
    assert np.all(lengths <= 1)
    kept = (true < 1e290) & (true > 1e-290)
    np.testing.assert_allclose(lengths[kept], np.minimum(true, 1)[kept], rtol=1e-9)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-20, 1.0, 1e20, 1e30, 3e38])
def test_extreme_magnitudes(magnitude):
    values = np.full(4, magnitude, np.float32)
    if magnitude < 1e38:
        np.testing.assert_allclose(float(norm(values)), 2 * magnitude, rtol=1e-6)
    clipped = np.asarray(clip(values, 1.0))
    expected = values if magnitude < 0.5 else 0.5 * np.ones(4)
    if magnitude < 1e37:
        np.testing.assert_allclose(clipped, expected, rtol=1e-4)
    assert exact_norm(clipped) <= 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_one_bad_entry_empties_that_user_only(bad, place):
    users = np.ones((3, SIZE), np.float32)
    users[1, place] = bad
    clipped = clip_users(users)
    sizes = [exact_norm(jax.tree.map(lambda leaf, u=u: leaf[u], clipped)) for u in range(3)]
    assert sizes[1] == 0.0
    assert sizes[0] == sizes[2] > 0.9999
    assert not all_finite(two_leaves(users[1]))
    assert all_finite(two_leaves(users[0]))


def test_inside_the_ball_nothing_changes():
    values = np.float32([0.3, -0.4, 1e-20, 0.0, 0.1, 0.2])
    for bound in (exact_norm(values) * (1 + 1e-5), 1.0, 1e30):
        np.testing.assert_array_equal(np.asarray(clip(values, bound)), values)


def test_half_precision_is_measured_as_it_is_and_returned_in_float32():
    # In float16 the squares overflow or vanish, and rounding alone can leave the ball.
    for dtype in (jnp.float16, jnp.bfloat16):
        alone = jnp.full(4, 6e4, dtype)
        np.testing.assert_allclose(norm(alone), exact_norm(alone), rtol=1e-6)
        tree = {"half": jnp.full(1000, 60.0, dtype), "single": jnp.ones(3)}
        np.testing.assert_allclose(norm(tree), exact_norm(tree), rtol=1e-6)
        clipped = clip(tree, 1.0)
        assert clipped["half"].dtype == clipped["single"].dtype == jnp.float32
        assert 0.9999 < exact_norm(clipped) <= 1.0


def test_float64_is_kept():
    with jax.enable_x64(True):
        values = jnp.asarray([3.0, 4.0], jnp.float64)
        assert norm(values).dtype == jnp.float64
        clipped = clip({"wide": values, "narrow": jnp.ones(1, jnp.float32)}, 1.0)
        assert clipped["wide"].dtype == jnp.float64
        assert clipped["narrow"].dtype == jnp.float32
        assert 1 - 1e-6 < exact_norm(clipped) <= 1.0


@pytest.mark.parametrize("narrow", [jnp.float16, jnp.float32])
def test_a_leaf_that_is_narrower_than_the_norm_is_rounded_within_the_bound(narrow):
    with jax.enable_x64(True):
        clip_both = jax.jit(norms.clip_to_norm)
        for bound in np.random.default_rng(0).uniform(0.01, 10.0, 50):
            tree = {"narrow": jnp.full(1, 30.0, narrow), "wide": jnp.zeros(1, jnp.float64)}
            assert exact_norm(clip_both(tree, float(bound))) <= bound


def test_gradients_are_finite_also_at_zero():
    zero, far = jnp.zeros(3), jnp.asarray([3.0, 0.0, 4.0])
    gradient = jax.jit(jax.grad(norms.global_norm))
    np.testing.assert_array_equal(gradient(zero), 0.0)
    np.testing.assert_allclose(gradient(far), far / 5.0, rtol=1e-6)
    jacobian = jax.jit(jax.jacobian(lambda x: norms.clip_to_norm(x, 1.0)))
    np.testing.assert_array_equal(jacobian(zero), np.eye(3))
    direction = np.asarray(far) / 5.0
    tangent = (np.eye(3) - np.outer(direction, direction)) / 5.0
    np.testing.assert_allclose(jacobian(far), tangent, atol=1e-5)


@pytest.mark.parametrize("other", [0.0, 1e-37, 1e-20, 1.0, 1e20])
def test_leaves_that_the_compiler_knows_to_be_zero(other):
    """The gradient of an unused parameter is such a leaf."""
    constant = jax.jit(lambda x: norms.global_norm({"unused": jnp.zeros(3), "used": x}))
    np.testing.assert_allclose(constant(jnp.float32(other)), other, rtol=1e-6)
    clipped = jax.jit(lambda x: norms.clip_to_norm({"unused": jnp.zeros(3), "used": x}, 0.5))
    np.testing.assert_allclose(clipped(jnp.float32(other))["used"], min(other, 0.5), rtol=1e-4)
    assert float(jax.jit(lambda: norms.global_norm(jnp.zeros(3)))()) == 0.0


def test_empty_trees_and_leaves():
    assert float(norms.global_norm({})) == 0.0
    assert norms.clip_to_norm({}, 1.0) == {}
    tree = {"none": jnp.zeros((0, 3)), "some": jnp.ones(2)}
    assert clip(tree, 1.0)["none"].shape == (0, 3)
    np.testing.assert_allclose(norm(tree), np.sqrt(2), rtol=1e-6)


def test_factor_is_what_the_clip_multiplies_by():
    tree = two_leaves(np.arange(SIZE, dtype=np.float32))
    factor_of = jax.jit(norms.clip_factor)
    factor = factor_of(tree, 0.7)
    jax.tree.map(
        lambda new, old: np.testing.assert_array_equal(new, old * factor), clip(tree, 0.7), tree
    )
    assert float(factor_of(tree, 100.0)) == 1.0
    assert float(factor_of({"x": jnp.asarray([jnp.nan])}, 1.0)) == 0.0


def test_changing_the_bound_compiles_nothing():
    traces = []

    @jax.jit
    def counted(tree, bound):
        traces.append(1)
        return norms.clip_to_norm(tree, bound)

    for bound in (0.1, 1.0, 10.0):
        counted(jnp.ones(3), bound)
    assert len(traces) == 1


@pytest.mark.parametrize("leaf", [jnp.ones(2, jnp.int32), jnp.ones(2, jnp.complex64)])
def test_other_dtypes_are_refused(leaf):
    with pytest.raises(ValueError, match="real floating"):
        norms.global_norm(leaf)


@pytest.mark.parametrize("value", [0.0, 1e-30, 3.0, 1e30])
def test_a_tree_of_one_number_known_to_the_compiler(value):
    """Seeing that all entries are equal, XLA would square the reciprocal of the scale by itself."""
    norm, factor = jax.jit(
        lambda: (
            norms.global_norm(jnp.full(65, value)),
            norms.clip_factor(jnp.full(65, value), 2.0),
        )
    )()
    np.testing.assert_allclose(norm, value * 65**0.5, rtol=1e-5)
    np.testing.assert_allclose(factor, min(1.0, 2.0 / max(value * 65**0.5, 1.0)), rtol=1e-4)


@pytest.mark.parametrize("order", [1.5, 2.0, 2.5, 4.0, 200.0])
@pytest.mark.parametrize("clip", [0.7, 1.0, 3.0])
def test_the_sharp_bias_is_attained_by_two_points_and_below_the_published_one(order, clip):
    """Zero, and k·C/(k - 1) with the probability that the moment allows."""
    moment = 1.3
    far = order * clip / (order - 1)
    probability = min(1.0, (moment / far) ** order)
    bias = probability * (far - clip)
    sharp = norms.clip_bias(moment, order, clip, sharp=True)
    published = norms.clip_bias(moment, order, clip)
    assert bias <= sharp * (1 + 1e-9)
    assert sharp <= published * (1 + 1e-12)
    if probability < 1.0:
        np.testing.assert_allclose(sharp, bias, rtol=1e-9)


def test_the_bias_of_pareto_lengths_is_within_its_bounds():
    """P(X > t) = t^-a: E(X - C)₊ = C^(1 - a)/(a - 1), E X^k = a/(a - k)."""
    tail = 4.5
    for order in (2.0, 3.0, 4.0):
        moment = (tail / (tail - order)) ** (1 / order)
        for clip in (1.0, 2.0, 10.0):
            bias = clip ** (1 - tail) / (tail - 1)
            assert bias <= norms.clip_bias(moment, order, clip, sharp=True)
    assert norms.clip_bias(2.0, np.inf, 0.5) == 1.5
    assert norms.clip_bias(2.0, np.inf, 3.0) == 0.0
