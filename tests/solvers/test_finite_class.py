"""Choice from a finite class and from a grid: pure privacy exactly, the best candidate found, bounds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.winsorized import private_range
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import finite_class, metric_entropy
from tests.support.planned import planned
from tests.support.recorder import Recorded

USERS, ITEMS = 300, 5
ABSOLUTE = Objective(
    loss=lambda w, z: jnp.sum(jnp.abs(w - z)) / 2,
    lipschitz=0.5,
    smoothness=None,
    domain=domains.ball(1.0),
)
CANDIDATES = jnp.asarray([-0.8, 0.0, 0.25, 0.9])
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "epsilon": 6.0, "loss_range": (0.0, 1.0)}


def points(seed=0, center=0.25, spread=0.2):
    rng = np.random.default_rng(seed)
    return UserData(jnp.asarray(center + spread * rng.normal(size=(USERS, ITEMS)), jnp.float32))


@functools.cache
def plan_of(**changes):
    settings = SIZES | {"dim": 1, "num_candidates": 4}
    return planned(finite_class.plan, ABSOLUTE, **(settings | changes))


def test_guarantee_is_exact_end_to_end():
    """The density of (choice, value) from the exact laws of the windows, on neighbours: within e^ε."""
    users, epsilon, radius, bound, stop = 12, 1.5, 0.05, 0.5, 0.1
    values = np.linspace(-1.0, 1.0, 801)
    rng = np.random.default_rng(0)

    def density(losses):
        below, each = [], []
        for column in losses.T:
            centers, weight = private_range.law(np.float32(column), epsilon / 6, radius, bound)
            half = 2.25 * radius
            means = centers + np.mean(np.clip(column[:, None] - centers, -half, half), 0)
            law = scipy.stats.laplace(loc=means[:, None], scale=4 * half / (users * epsilon / 3))
            each.append(weight @ law.pdf(values))
            below.append(weight @ law.cdf(values))
        total = np.mean(below, 0)
        return np.array(each) / len(each) * stop / (stop + (1 - stop) * total) ** 2

    together = np.zeros((users, 3))
    pairs = [
        (together + 0.1 * np.eye(users)[0][:, None], together - 0.1 * np.eye(users)[0][:, None])
    ]
    for _ in range(10):
        losses = rng.uniform(-0.5, 0.5, (users, 3)) * rng.choice([0.1, 1.0])
        other = losses.copy()
        other[0] = rng.choice([-0.5, 0.5], 3)
        pairs.append((losses, other))
    worst = max(np.abs(np.log(density(a) / density(b))).max() for a, b in pairs)
    assert 0.25 * epsilon < worst <= epsilon


def test_losses_are_clamped_and_bad_ones_count_as_the_middle():
    """One user with wild losses moves a mean by at most the range over n."""
    plan = plan_of(epsilon=1e6, stopping_probability=0.005)
    run = jax.jit(lambda d: finite_class.solve(jax.random.key(0), plan, ABSOLUTE, d, CANDIDATES))
    clean = run(points())
    for bad, limit in [(np.nan, 0.5), (1e9, 1.0), (-np.inf, 1.0)]:
        data = points()
        data = data._replace(items=data.items.at[0].set(bad))
        found = run(data)
        assert found.unprivate["choice"] == clean.unprivate["choice"]
        moved = abs(float(found.unprivate["value"] - clean.unprivate["value"]))
        assert moved <= limit / USERS + 1e-4


def test_the_noise_covers_a_user_who_goes_from_end_to_end_of_the_range():
    """Laplace noise of scale b on a mean that moves by s costs s/b, of which the plan has a third of ε."""
    plan, point = plan_of(), jnp.full(4, 0.25)
    run = Recorded(
        lambda data: finite_class.solve(jax.random.key(0), plan, ABSOLUTE, data, point), points()
    )
    ends = [points()._replace(items=points().items.at[0].set(at)) for at in (0.25, 1e9)]
    best, worst = (run(data).by_key() for data in ends)
    assert best
    for key, release in best.items():
        assert release.moved(worst[key]) / release.noise == pytest.approx(6.0 / 3, rel=1e-3)


def test_many_items_choose_winsorized_means():
    few, many = plan_of(items_per_user=5), plan_of(items_per_user=20_000, num_users=300)
    assert not few.winsorized
    assert many.winsorized
    assert many.noise_scale < few.noise_scale
    # 27τ/(nε), τ = √(log(2Kn/α₁)/(2m)).
    tau = math.sqrt(math.log(2 * 4 * 300 / 0.01) / 40_000)
    np.testing.assert_allclose(many.noise_scale, 27 * tau / (300 * 6.0), rtol=1e-6)
    assert float(many.stopping_probability) == pytest.approx(0.05 / 20)
    run = jax.jit(lambda d: finite_class.solve(jax.random.key(0), many, ABSOLUTE, d, CANDIDATES))
    found = run(points(spread=0.01))
    assert found.params == 0.25


def test_columns_when_needed_give_the_same(monkeypatch):
    plan, data = plan_of(), points()
    run = lambda: finite_class.solve(jax.random.key(1), plan, ABSOLUTE, data, CANDIDATES)  # noqa: E731
    matrix = run().unprivate
    monkeypatch.setattr(finite_class, "_MATRIX_ENTRIES", 1)
    columns = run().unprivate
    assert matrix["choice"] == columns["choice"]
    np.testing.assert_allclose(matrix["value"], columns["value"], atol=1e-6)


def test_the_grid():
    settings = SIZES | {"dim": 2, "lower": -1.0, "upper": 1.0}
    plan = planned(metric_entropy.plan, ABSOLUTE, points_per_axis=4, **settings)
    grid = np.array([metric_entropy.grid_point(plan, jnp.asarray(i)) for i in range(16)])
    axis = [-0.75, -0.25, 0.25, 0.75]
    np.testing.assert_allclose(sorted(grid.tolist()), [[a, b] for a in axis for b in axis])
    assert float(plan.mesh) == pytest.approx(math.sqrt(2) / 4)
    covered = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    nearest = np.linalg.norm(covered[:, None] - grid, axis=2).min(1)
    assert 0.9 * plan.mesh < nearest.max() <= plan.mesh


def test_the_mesh_balances_choice_and_distance():
    settings = SIZES | {"dim": 1, "lower": -1.0, "upper": 1.0, "num_users": 10_000}
    chosen = planned(metric_entropy.plan, ABSOLUTE, **settings)
    for factor in (1 / 3, 3):
        points_per_axis = max(1, round(factor * chosen.points_per_axis))
        other = planned(metric_entropy.plan, ABSOLUTE, points_per_axis=points_per_axis, **settings)
        assert chosen.excess_bound < other.excess_bound
    assert "excess_bound" in str(chosen)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"loss_range": (1.0, 0.0)}, "loss_range"),
        ({"num_candidates": 10**7}, "stopping_probability"),
    ],
)
def test_arguments(changes, named):
    with pytest.raises(ValueError, match=named):
        plan_of(**changes)


def test_more_arguments():
    ridged = ABSOLUTE._replace(ridge=1.0)
    with pytest.raises(ValueError, match="ridge"):
        planned(finite_class.plan, ridged, num_candidates=2, dim=1, **SIZES)
    with pytest.raises(ValueError, match="num_candidates"):
        finite_class.solve(jax.random.key(0), plan_of(), ABSOLUTE, points(), CANDIDATES[:3])
    box = {"dim": 3, "lower": -1.0, "upper": 1.0}
    with pytest.raises(ValueError, match="points_per_axis"):
        planned(metric_entropy.plan, ABSOLUTE, points_per_axis=200, **box, **SIZES)
    plan = planned(metric_entropy.plan, ABSOLUTE, points_per_axis=2, **box, **SIZES)
    with pytest.raises(ValueError, match="dim"):
        metric_entropy.solve(jax.random.key(0), plan, ABSOLUTE, points(), jnp.zeros(2))
