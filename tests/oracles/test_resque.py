"""Reweighted queries: weights with the moments of the docstring, estimates without bias from any centre."""

import functools
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax.oracles import gradients, resque
from dpsco_jax.privacy.resque import _drift as moments
from dpsco_jax.problems import gaussian_smoothing, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import loop
from tests.support.compiled import OPTIMIZED

DRAWS, DIM, RADIUS = 1_000_000, 5, 0.4
ROW = np.asarray([0.6, -0.3, 0.2, 0.5, -0.4], np.float32)
POINT = np.asarray([0.3, 0.1, -0.2, 0.05, 0.1], np.float32)


@pytest.fixture(scope="module")
def weights():
    """Weights of 10^6 shifts at three distances, in units of the radius: 0.25, 0.5 and 1."""

    @jax.jit
    def draw(key):
        shifts = RADIUS * jax.random.normal(key, (DRAWS, DIM))
        directions = jnp.asarray(ROW / np.linalg.norm(ROW)) * RADIUS
        offsets = jnp.asarray([0.25, 0.5, 1.0])[:, None] * directions
        logs = jax.lax.map(lambda v: resque.log_weights(shifts, v, RADIUS), offsets)
        densities = (jnp.sum(shifts**2, 1) - jnp.sum((offsets[2] - shifts) ** 2, 1)) / 2 / RADIUS**2
        return jnp.exp(logs), jnp.max(jnp.abs(logs[2] - densities))

    return jax.tree.map(np.asarray, draw(jax.random.key(0)))


def test_weights_are_ratios_of_densities_with_the_stated_moments(weights):
    values, difference = weights
    assert difference < 1e-4
    for a, w in zip((0.25, 0.5, 1.0), values.astype(np.float64), strict=True):
        for power in (1, 2):
            sample = w**power
            exact = np.exp(power * (power - 1) * a * a / 2)
            error = 5 * sample.std() / np.sqrt(DRAWS)
            assert abs(sample.mean() - exact) < error
            assert error < 0.05 * exact
    np.testing.assert_allclose(np.exp([0.0625, 0.25, 1.0]), [1.0645, 1.2840, 2.7183], atol=5e-5)


def test_single_precision_is_enough_in_high_dimension_and_for_tiny_radii():
    rng = np.random.default_rng(1)
    for radius, dim in ((1e-25, 3), (1e-3, 10_000), (1e3, 10_000)):
        shifts = (radius * rng.normal(size=(20, dim))).astype(np.float32)
        offset = (radius * rng.normal(size=dim) / np.sqrt(dim)).astype(np.float32)
        wide = shifts.astype(float) @ offset.astype(float) / radius**2
        wide -= np.sum(offset.astype(float) ** 2) / (2 * radius**2)
        np.testing.assert_allclose(resque.log_weights(shifts, offset, radius), wide, atol=3e-6)
    one = resque.log_weight(shifts[3], offset, radius)
    np.testing.assert_allclose(one, wide[3], atol=3e-6)


def test_many_rows_are_added_without_loss():
    weights, rows = jnp.full(1_000_001, 0.1), jnp.broadcast_to(jnp.asarray(ROW), (1_000_001, DIM))
    total = jax.jit(resque.weighted_sum)(weights, rows)
    np.testing.assert_allclose(total, 1_000_001 * np.float32(0.1) * ROW.astype(float), rtol=1e-5)
    few = resque.weighted_sum(weights[:3], rows[:3])
    np.testing.assert_allclose(few, 0.3 * ROW, rtol=1e-6)


def quantity(kind):
    """A stochastic gradient, its dimension-long output, and the exact smoothed gradient at a point."""
    if kind == "quadratic":  # whose gradient smoothing does not change
        return lambda keys, points: points + ROW, lambda x: x + ROW
    objective = losses.absolute(float(np.linalg.norm(ROW)) + 0.1)
    item = Example(ROW, 0.1)
    smooth = gaussian_smoothing.smoothed(objective, gaussian_smoothing.absolute, RADIUS)

    def sign_gradient(keys, points):
        return jnp.sign(points @ jnp.asarray(ROW) - 0.1)[:, None] * ROW

    return sign_gradient, lambda x: jax.grad(smooth.loss)(x, item)


@pytest.mark.parametrize("kind", ["quadratic", "absolute"])
def test_the_estimate_is_unbiased_from_any_centre(kind):
    gradient, exact = quantity(kind)

    @functools.partial(jax.jit, compiler_options=OPTIMIZED)
    def estimate(key, center):
        pool = resque.draw_pool(key, gradient, center, RADIUS, DRAWS)
        result = resque.reweighted_gradient(pool, POINT, RADIUS)
        weights = jnp.exp(resque.log_weights(pool.shifts, POINT - center, RADIUS))
        squares = resque.weighted_sum(jnp.square(weights), jnp.square(pool.gradients)) / DRAWS
        return result, jnp.sqrt(jnp.maximum(squares - result.gradient**2, 0) / DRAWS)

    truth = np.asarray(jax.jit(exact)(POINT))
    for seed, center in enumerate((POINT, POINT + 0.1, POINT - 0.8 * RADIUS * ROW)):
        result, error = estimate(jax.random.key(seed), jnp.asarray(center))
        assert np.all(np.abs(result.gradient - truth) <= 5 * error + 1e-5)
        assert np.max(error) < 3e-3
        share = np.exp(-np.sum((POINT - center) ** 2) / RADIUS**2)
        np.testing.assert_allclose(result.effective_sample_size / DRAWS, share, rtol=0.05)


def test_difference_moments_bound_the_truth_and_improve_on_the_paper():
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(150)
    node_weights = node_weights / node_weights.sum()

    def norm(p, v, w):
        """‖w(v) - w(v')‖_p in one dimension, by quadrature under the tilted law of order p."""
        shift = p * max(v, w)
        xi = nodes + shift
        # log density ratio of N(0, 1) to N(shift, 1) at xi, with the difference to the power p
        logs = -shift * nodes - shift**2 / 2
        first, second = v * xi - v * v / 2, w * xi - w * w / 2
        top = np.maximum(first, second)
        gap = np.abs(np.expm1(-np.abs(first - second)))
        with np.errstate(divide="ignore"):
            terms = logs + p * (top + np.log(gap)) + np.log(node_weights)
        return np.exp(np.logaddexp.reduce(terms) / p)

    for p in (2, 3, 4, 8, 16, 32):
        for a in (1 / p, 1 / (4 * p), p**-0.5, 0.125):
            bound = np.exp(moments.log_difference_norm(p, a))
            pairs = [(v, w) for v in (-a, 0.0, 0.99 * a) for w in (a, 0.9 * a) if v != w]
            worst = max(norm(p, v, w) / abs(v - w) for v, w in pairs)
            assert worst <= bound * (1 + 1e-6)
            if a <= p**-0.5:
                assert bound <= 2 * worst
            if a <= 1 / p:
                assert bound <= 24 * p
    table = {(2, 0.1): 1.106, (8, 0.125): 2.81, (32, 0.031): 4.50}
    for (p, a), value in table.items():
        np.testing.assert_allclose(np.exp(moments.log_difference_norm(p, a)), value, rtol=3e-3)


DATA = UserData(
    Example(
        np.random.default_rng(0).normal(size=(6, 3, DIM)).astype(np.float32),
        np.zeros((6, 3), np.float32),
    ),
    np.arange(18).reshape(6, 3) % 4 != 0,
)


def test_a_pool_of_user_gradients_draws_users_uniformly():
    objective = losses.geometric_median()._replace(
        loss=lambda params, item: jnp.vdot(params, item.features)
    )
    gradient = resque.sampled_user_gradient(objective, DATA)
    keys = jax.random.split(jax.random.key(2), 60_000)
    rows = np.asarray(jax.jit(gradient)(keys, jnp.zeros((60_000, DIM))))
    features = np.where(DATA.mask[..., None], DATA.items.features, 0)
    users = features.sum(1) / DATA.mask.sum(1, keepdims=True)
    counts = [np.sum(np.all(np.abs(rows - user) < 1e-5, axis=1)) for user in users]
    assert sum(counts) == 60_000
    assert np.max(np.abs(np.asarray(counts) - 10_000)) < 5 * np.sqrt(10_000)


def test_a_pool_is_an_oracle_of_the_loop():
    """Gradient descent on the pool's own smoothed function, without a new query."""
    pool = resque.draw_pool(
        jax.random.key(3), lambda keys, points: points - POINT, jnp.zeros(DIM), RADIUS, 20_000
    )
    run = jax.jit(
        lambda key, pool: loop.run(
            key, resque.pool_oracle(RADIUS), optax.sgd(0.5), jnp.zeros(DIM), pool, 20
        )
    )(jax.random.key(4), pool)
    assert run.num_gradients == 0
    np.testing.assert_allclose(run.params, POINT, atol=0.03)
    left = resque.reweighted_gradient(pool, run.params, RADIUS)
    assert jnp.linalg.norm(left.gradient) < 1e-3
    assert left.effective_sample_size < 20_000


def test_user_gradients_queried_at_the_centre_average_to_the_smoothed_gradient():
    objective = losses.absolute(3.0)
    smooth = gaussian_smoothing.smoothed(objective, gaussian_smoothing.absolute, RADIUS)
    center = jnp.asarray(POINT) + 0.1
    oracle = gradients.per_user_gradients(resque.user_gradient(objective, center, RADIUS))
    keys = jax.random.split(jax.random.key(5), 2_000)

    def one_run(key):
        return oracle(key, jnp.asarray(POINT), DATA).gradient[2]

    rows = np.asarray(jax.jit(jax.vmap(one_run))(keys))
    exact = gradients.user_gradient(smooth)
    items, mask = jax.tree.map(lambda leaf: leaf[2], tuple(DATA))
    truth = jax.jit(exact)(jax.random.key(6), jnp.asarray(POINT), items, mask)
    error = 5 * rows.std(axis=0) / np.sqrt(len(rows))
    assert np.all(np.abs(rows.mean(axis=0) - truth) < error)
    assert np.max(error) < 0.15


@pytest.mark.slow
def test_a_pool_may_be_sharded_over_devices():
    program = textwrap.dedent(
        """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from dpsco_jax.oracles import resque
        assert len(jax.devices()) == 2
        mesh = jax.make_mesh((2,), ("queries",), axis_types=(jax.sharding.AxisType.Auto,))
        rows = NamedSharding(mesh, P("queries"))
        gradient = lambda keys, points: jnp.tanh(points) + jax.vmap(jax.random.normal)(keys)[:, None]
        draw = lambda key: resque.draw_pool(key, gradient, jnp.ones(7), 0.5, 64)
        whole = jax.jit(draw)(jax.random.key(0))
        places = resque.Pool(NamedSharding(mesh, P()), rows, rows)
        sharded = jax.jit(draw, out_shardings=places)(jax.random.key(0))
        assert len(sharded.gradients.addressable_shards) == 2
        assert sharded.gradients.addressable_shards[0].data.shape == (32, 7)
        for a, b in zip(whole, sharded):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        reweight = jax.jit(lambda pool, x: resque.reweighted_gradient(pool, x, 0.5))
        compiled = reweight.lower(sharded, jnp.full(7, 1.1)).compile().as_text()
        assert "all-reduce" in compiled and "all-gather" not in compiled
        one, two = (reweight(pool, jnp.full(7, 1.1)) for pool in (whole, sharded))
        np.testing.assert_allclose(one.gradient, two.gradient, rtol=1e-5)
        np.testing.assert_allclose(one.effective_sample_size, two.effective_sample_size, rtol=1e-5)
        """
    )
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
