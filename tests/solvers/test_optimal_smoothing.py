"""Selection of a Goldstein-stationary point: what is compared, what it gives away, and that bounds hold."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import fixtures, losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import optimal_smoothing

pytestmark = pytest.mark.usefixtures("x64")
CAPPED = fixtures.capped_distance(1.0)


@pytest.fixture(scope="module")
def x64():
    with jax.enable_x64(True):
        yield


@functools.cache
def _points(users=300, dim=1):
    rng = np.random.default_rng(0)
    return 0.2 * rng.standard_normal((users, 1, dim)) + np.where(
        rng.random((users, 1, 1)) < 0.4, 1.5, 0
    )


def _plan(users=300, dim=1, epsilon=4.0, **given):
    settings = {"initial_gap": 1.0, "smoothing_radius": 0.4, "most_points": 300} | given
    return optimal_smoothing.plan(
        Problem(CAPPED, num_users=users, dim=dim), Budget(epsilon), **settings
    )


def _solve(plan, data, start, loss=CAPPED, key=None):
    run = jax.jit(
        lambda k, p, d: optimal_smoothing.solve(k, p, loss, UserData(d), jnp.asarray(start))
    )
    return run(jax.random.key(0) if key is None else key, plan, data)


def _compared(monkeypatch, plan, start, loss=CAPPED):
    """The function from data to the norms that are compared, the sensitivity, and the solution."""
    seen = []

    def argmin(key, scores, epsilon, sensitivity):
        del key, epsilon
        seen.append((-scores, sensitivity))
        return jnp.argmax(scores)

    monkeypatch.setattr(optimal_smoothing.selection, "permute_and_flip", argmin)

    def run(data):
        key = jax.random.key(0)
        found = optimal_smoothing.solve(key, plan, loss, UserData(data), jnp.asarray(start))
        return *seen[-1], found.params

    return jax.jit(run)


def _capped_slope(x, z):
    """Of the distance to z, capped at one, in one dimension."""
    return np.where(np.abs(x - z) < 1, np.sign(x - z), 0.0)


def test_of_balls_means_of_slopes_at_the_same_places_are_compared(monkeypatch):
    plan, data = _plan(draws=8, most_points=40), _points()
    found, sensitivity, chosen = _compared(monkeypatch, plan, [0.5])(data)
    assert sensitivity == pytest.approx(2 / 300, rel=1e-6)
    assert sensitivity >= 2 / 300
    # The places, drawn by the key that the solver splits off.
    shapes_key, _ = jax.random.split(jax.random.key(0))
    places = np.asarray(
        jax.vmap(lambda k: optimal_smoothing.shapes.uniform_ball(k, jnp.zeros(1), 1.0))(
            jax.random.split(shapes_key, 8)
        )
    )[:, 0]
    width = 2 * float(plan.half_width) / plan.cells
    grid = 0.5 + width * (np.arange(plan.cells) - (plan.cells - 1) / 2)
    around = grid[:, None] + 0.4 * places
    wanted = np.abs(_capped_slope(around[:, :, None], data[:, 0, 0]).mean(axis=(1, 2)))
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert float(chosen[0]) == pytest.approx(grid[np.argmin(wanted)])


def _smoothed_slope(h, grid, scale):
    """(x - z)/λ of min over z of max over y of h(y) - (z - y)²/4λ + (x - z)²/2λ, by brute force."""
    square = (grid[:, None] - grid[None, :]) ** 2
    inner = np.max(h[None, :] - square / (4 * scale), axis=1)
    place = np.argmin(inner[None, :] + square / (2 * scale), axis=1)
    return (grid - grid[place]) / scale


def test_of_lasry_and_lions_slopes_of_users_smoothed_are_compared(monkeypatch):
    plan = _plan(users=20, smoothing="lasry_lions", most_points=60)
    data = _points(20)
    found, _, _ = _compared(monkeypatch, plan, [0.5])(data)
    width = 2 * float(plan.half_width) / plan.cells
    line = np.arange(-plan.margin, plan.cells + plan.margin)
    grid = 0.5 + width * (line - (plan.cells - 1) / 2)
    scale = (0.4 - 3 * width) / 3
    each = [_smoothed_slope(np.minimum(np.abs(grid - z), 1.0), grid, scale) for z in data[:, 0, 0]]
    inner = slice(plan.margin, plan.margin + plan.cells)
    wanted = np.abs(np.mean(np.clip(each, -1.0, 1.0), axis=0))[inner]
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    # Users' slopes are gradients within α, up to the grid: the saw of the proof.
    for slopes, z in zip(each, data[:, 0, 0], strict=True):
        for x, slope in zip(grid[inner], slopes[inner], strict=True):
            near = _capped_slope(np.linspace(x - 0.4, x + 0.4, 401), z)
            assert near.min() - width / scale <= slope <= near.max() + width / scale


@pytest.mark.parametrize("smoothing", ["ball", "lasry_lions"])
def test_no_user_moves_a_norm_by_more_than_is_declared(monkeypatch, smoothing):
    """Of steep, rough, far and broken users: 45 pairs."""
    plan = _plan(users=6, smoothing=smoothing, draws=3, most_points=30)
    steep = Objective(
        lambda w, z: 50.0 * jnp.sum(jnp.abs(w - z[0])) * z[1], 1.0, None, domains.whole_space(),
        loss_strong_convexity=-1.0, loss_range=1.0,
    )  # fmt: skip
    plan = plan.replace(made_for=None)
    run = _compared(monkeypatch, plan, [0.0], steep)
    rng, worst = np.random.default_rng(1), 0.0
    base = rng.normal(size=(6, 1, 2))
    base[1:, 0, 1] = 0.0
    ends = [[0.0, 1.0], [0.0, -1.0], [np.nan, 1.0], [1e30, 1.0], *rng.normal(size=(6, 2))]
    found = []
    for end in ends:
        rows = base.copy()
        rows[0, 0] = end
        norms, sensitivity, _ = run(rows)
        assert np.all(np.isfinite(norms))
        found.append(norms)
    for first in found:
        for other in found:
            worst = max(worst, np.max(np.abs(first - other)))
    assert worst <= sensitivity
    pair = []
    for sign in (1.0, -1.0):
        rows = base.copy()  # one each: a program that still runs may read the array itself
        rows[1:, 0] = [0.0, 1.0]  # the others agree
        rows[0, 0] = [0.0, sign]
        pair.append(run(rows)[0])
    assert np.max(np.abs(pair[0] - pair[1])) >= 0.99 * sensitivity


@pytest.mark.parametrize("smoothing", ["ball", "lasry_lions"])
def test_the_bound_holds_and_is_not_idle(smoothing):
    """The Goldstein norm of the mean loss, in 20 runs: of a line, by its slopes on a fine grid."""
    users = 300
    points = 40 if smoothing == "ball" else 150
    given = {"draws": 100, "most_points": points, "initial_gap": 0.2}
    plan = _plan(users, epsilon=40.0, smoothing=smoothing, **given)
    data = np.asarray(_points(users))
    bound = float(plan.stationarity_bound)
    assert 0.1 < bound < 0.95
    keys = jax.random.split(jax.random.key(3), 20)
    run = jax.jit(
        lambda keys: jax.lax.map(
            lambda k: (
                optimal_smoothing.solve(k, plan, CAPPED, UserData(data), jnp.asarray([0.7])).params
            ),
            keys,
        )
    )
    for x in np.asarray(run(keys))[:, 0]:
        near = np.linspace(x - 0.4, x + 0.4, 401)
        slopes = _capped_slope(near[:, None], data[:, 0, 0]).mean(axis=1)
        # On a line the hull of slopes is an interval; users who choose have a larger one.
        assert max(slopes.min(), -slopes.max(), 0.0) <= bound


def test_bounds_are_those_of_the_formula():
    plan = _plan(draws=100, failure_probability=0.1)
    half, cells, log = float(plan.half_width), plan.cells, math.log(2 * plan.cells / 0.1)
    width = 2 * half / cells
    wanted = (1 + 0.4 / 2) / half + width / 2 / 0.4 + 4 * log / (300 * 4.0)
    wanted += (1 + math.sqrt(2 * math.log(20))) / 10
    assert plan.stationarity_bound == pytest.approx(wanted, rel=1e-6)
    plan = _plan(smoothing="lasry_lions")
    half, width = float(plan.half_width), 2 * float(plan.half_width) / plan.cells
    scale = (0.4 - 3 * width) / 3
    wanted = (1 + width / 2 + scale) / (half - width) + 2 * width / scale
    wanted += 4 * math.log(plan.cells / 0.05) / (300 * 4.0)
    assert plan.stationarity_bound == pytest.approx(wanted, rel=1e-6)
    assert plan.margin * width >= 0.8
    assert math.isinf(_plan(dim=2, smoothing="lasry_lions").stationarity_bound)
    assert _plan(most_points=1000, smoothing="lasry_lions").stationarity_bound < wanted


def test_a_saw_of_which_no_tooth_is_stationary_is_smoothed_over():
    """All teeth have slopes ±1 of mean zero: by Lasry and Lions every point is nearly stationary, none is."""
    teeth = Objective(
        lambda w, z: jnp.sum(jnp.abs((w / 0.02) % 2 - 1)) * 0.02 + 0 * jnp.sum(z),
        1.0, None, domains.whole_space(), loss_strong_convexity=-1.0, loss_range=1.0,
    )  # fmt: skip
    problem = Problem(teeth, num_users=10, dim=1)
    plan = optimal_smoothing.plan(
        problem, Budget(1e6), smoothing_radius=0.5, initial_gap=0.02, smoothing="lasry_lions",
        most_points=400,
    )  # fmt: skip
    found = _solve(plan, np.zeros((10, 1, 1)), [0.013], teeth)
    assert found.params.shape == (1,)
    assert float(plan.stationarity_bound) < 0.7


def test_two_dimensions_and_other_structures():
    users = 200
    data = np.asarray(_points(users, 2))
    for smoothing in ("ball", "lasry_lions"):
        plan = _plan(users, 2, 1e5, smoothing=smoothing, draws=64, most_points=400)
        found = _solve(plan, data, [0.3, 0.2])
        w = np.asarray(found.params)
        # In one of the clusters, or beyond the reach of all: where the mean slope nearly vanishes.
        away = w - data[:, 0]
        far = np.linalg.norm(away, axis=1, keepdims=True)
        slope = np.mean(np.where(far < 1, away / far, 0), axis=0)
        assert np.linalg.norm(slope) < 0.25


def test_costs_and_numbers():
    plan = _plan()
    assert plan.certificate().epsilon == 4.0
    assert plan.certificate().delta == 0.0
    assert plan.user_gradients == 300 * plan.cells * 256
    assert plan.num_values == 0
    lions = _plan(smoothing="lasry_lions")
    assert lions.num_values == 300 * (lions.cells + 2 * lions.margin)
    assert lions.user_gradients == 0
    for wrong in (
        {"epsilon": 0.0},
        {"lipschitz": 0.0},
        {"lipschitz": math.inf},
        {"epsilon": math.nan},
    ):
        assert plan.replace(**wrong).certificate().epsilon == math.inf
        assert np.all(np.isinf(plan.replace(**wrong).loss().rdp))
    assert "with probability 0.95" in str(plan)
    traces = []

    def once(key, plan):
        traces.append(None)
        return optimal_smoothing.solve(key, plan, CAPPED, UserData(_points()), jnp.asarray([0.5]))

    run, base = jax.jit(jax.vmap(once, (0, None))), _plan(draws=4, most_points=20)
    for changes in ({}, {"half_width": 2.0}, {"epsilon": 1.0}, {"smoothing_radius": 0.3}):
        keys = jax.random.split(jax.random.key(0), 2)
        assert np.all(np.isfinite(run(keys, base.replace(**changes)).params))
    assert len(traces) == 1


def test_refusals_name_what_would_do():
    boxed = losses.huber(1.0, domain=domains.ball(1.0))
    with pytest.raises(ValueError, match="domain"):
        optimal_smoothing.plan(
            Problem(boxed, num_users=10, dim=1), Budget(1.0), smoothing_radius=0.1, initial_gap=1.0
        )
    with pytest.raises(ValueError, match="ridge"):
        optimal_smoothing.plan(
            Problem(losses.huber(1.0, ridge=0.1), num_users=10, dim=1),
            Budget(1.0),
            smoothing_radius=0.1,
            initial_gap=1.0,
        )
    with pytest.raises(ValueError, match=r"problem\.dim"):
        _plan(dim=3, smoothing="lasry_lions")
    with pytest.raises(ValueError, match="most_points"):
        _plan(dim=6, most_points=300)
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        _plan()
