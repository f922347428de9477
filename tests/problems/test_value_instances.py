"""Hard linear instances: exact minimizers and risks, bounds on records, and algorithms that stay above."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from dpsco_jax.problems import value_instances
from dpsco_jax.rates import bounded_losses, norms, sampling, value_queries

DIM, USERS, QUERIES, RADIUS, LIPSCHITZ = 6, 40, 120, 1.5, 2.0
KINDS = [
    (p, bounded, direction)
    for p in (1.0, 1.4, 2.0)
    for bounded in (False, True)
    for direction in ("signs", "axis")
    if not (p == 1.0 and bounded and direction == "signs")
]


def instance(kind, seed=0, dim=DIM, queries=QUERIES, num_users=USERS):
    p, bounded, direction = kind
    return value_instances.hard_linear_instance(
        jax.random.key(seed), num_users, dim, queries, LIPSCHITZ, 2 * RADIUS, p, bounded, direction
    )


def records_of(hard, count):
    keys = jax.random.split(jax.random.key(7), count)
    drawn = jax.jit(jax.vmap(lambda key: hard.draw(key).items.features))(keys)
    return np.asarray(drawn, np.float64).reshape(-1, len(hard.direction))


@pytest.mark.parametrize("kind", KINDS)
def test_minimizer_and_least_risk_are_exact(kind):
    hard, p = instance(kind), kind[0]
    assert np.linalg.norm(hard.minimizer, p) == pytest.approx(RADIUS)
    risk = hard.mean * hard.direction @ hard.minimizer
    assert risk == pytest.approx(hard.optimum, rel=1e-14)
    # Hölder: no point of the ball is below -R·‖mean·v‖_q.
    dual = np.linalg.norm(hard.mean * hard.direction, norms.dual_exponent(p))
    assert hard.optimum == pytest.approx(-RADIUS * dual, rel=1e-14)
    points = np.random.default_rng(0).standard_normal((500, DIM))
    points *= RADIUS / np.linalg.norm(points, p, axis=1, keepdims=True)
    excess = np.asarray(hard.excess(points))
    np.testing.assert_allclose(
        excess, hard.mean * points @ hard.direction - hard.optimum, atol=1e-5
    )
    assert excess.min() >= 0
    assert abs(float(hard.excess(hard.minimizer))) <= 1e-6
    if kind[0] == 1.0 and kind[2] == "signs":
        assert hard.lower_bound == 0.0
    else:
        assert 0 < hard.lower_bound <= -hard.optimum


@pytest.mark.parametrize("kind", KINDS)
def test_records_have_the_mean_the_moment_and_the_bound_that_are_said(kind):
    hard, (p, bounded, direction) = instance(kind), kind
    records = records_of(hard, 3000)
    error = records.std(axis=0).max() / math.sqrt(len(records))
    np.testing.assert_allclose(records.mean(axis=0), hard.mean * hard.direction, atol=4.5 * error)
    sizes = np.linalg.norm(records, norms.dual_exponent(p), axis=1)
    assert np.mean(sizes**2) <= LIPSCHITZ**2 * (1 + 0.01)
    cut = np.mean(np.all(records == 0, axis=1))
    if bounded:
        assert sizes.max() <= LIPSCHITZ * (1 + 1e-6)
        assert 0 < cut < 0.01
        assert hard.mean < value_queries.hard_scales(QUERIES, DIM, LIPSCHITZ, p, direction).mean
    else:
        assert sizes.max() > LIPSCHITZ
        assert cut == 0
    shown = np.asarray(hard.data.items.features)
    assert shown.shape == (USERS, 1, DIM)
    assert not np.any(hard.data.items.label)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1]])
def test_the_objective_is_the_linear_loss(kind):
    hard, p = instance(kind), kind[0]
    objective = hard.objective
    assert objective.globally_convex_lipschitz
    assert objective.lipschitz == pytest.approx(LIPSCHITZ * DIM ** (1 / p - 0.5))
    assert objective.domain.contains(jnp.asarray(hard.minimizer), 1e-5)
    outside = objective.domain.project(jnp.asarray(np.float32(3.0 * hard.minimizer)))
    assert objective.domain.contains(outside, 1e-5)
    assert not objective.domain.contains(jnp.asarray(1.01 * hard.minimizer), 1e-5)
    items = jax.tree.map(lambda leaf: leaf[:, 0], hard.data.items)
    params = jnp.asarray(np.float32(np.random.default_rng(1).standard_normal(DIM)))
    loss = objective.loss
    losses = jax.jit(jax.vmap(loss, (None, 0)))(params, items)
    np.testing.assert_allclose(losses, np.asarray(items.features) @ np.asarray(params), atol=1e-5)
    assert objective.smoothness == pytest.approx(objective.lipschitz / (2 * RADIUS))
    model = objective.linear_model
    np.testing.assert_array_equal(model.remainder(jnp.ones(3), jnp.zeros(3), jnp.ones(3)), 0.0)
    np.testing.assert_array_equal(model.derivative(jnp.ones(3), jnp.zeros(3)), 1.0)
    # Records far out are brought back, so that the Lipschitz constant holds of any record.
    wild = items._replace(features=np.full((USERS, DIM), 1e3, np.float32))
    slope = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, wild)
    assert np.linalg.norm(slope, axis=1).max() <= objective.lipschitz * (1 + 1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1]])
def test_a_strong_cut_shows_in_the_mean(kind):
    """Where one value is seen, some percent of the records are cut off, and the mean is off by as much."""
    p, _, direction = kind
    hard = instance(kind, dim=2, queries=1, num_users=1)
    law = bounded_losses.bounded_scales(1, 2, LIPSCHITZ, p, direction, 1)
    records = records_of(hard, 60_000)
    assert np.mean(np.all(records == 0, axis=1)) == pytest.approx(law.missing, rel=0.15)
    error = records.std(axis=0).max() / math.sqrt(len(records))
    np.testing.assert_allclose(records.mean(axis=0), hard.mean * hard.direction, atol=4 * error)
    assert law.mean - law.kept_mean > 8 * error
    assert hard.mean == law.kept_mean
    assert hard.lower_bound == pytest.approx(2 * RADIUS * law.risk)


def test_without_a_bound_there_is_no_lipschitz_constant():
    assert instance((2.0, False, "signs")).objective is None


def test_the_direction_is_drawn_and_symmetric():
    signs = np.stack([instance((2.0, False, "signs"), seed).direction for seed in range(60)])
    axes = np.stack([instance((2.0, False, "axis"), seed).direction for seed in range(60)])
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert np.abs(signs.mean(axis=0)).max() < 4.5 / math.sqrt(60)
    np.testing.assert_array_equal(np.abs(axes).sum(axis=1), 1.0)
    assert np.all(np.abs(axes).sum(axis=0) > 0)
    assert {-1.0, 1.0} <= set(np.unique(axes))


def test_the_better_direction_is_chosen():
    for dim, p in ((4, 2.0), (400, 2.0), (400, 1.0), (400, 1.2)):
        free = value_instances.hard_linear_instance(jax.random.key(0), 5, dim, 100, p=p)
        bounds = [value_queries.hard_scales(100, dim, 1.0, p, w, 5).risk for w in ("signs", "axis")]
        assert free.lower_bound == max(bounds)
        by_axis = np.abs(free.direction).sum() == 1.0
        assert by_axis == (bounds[1] > bounds[0])


def _linear_minimizers(slopes, p):
    """The minimizers of <slopes, x> over the ℓp ball of radius R."""
    if p == 1.0:
        best = np.abs(slopes) == np.abs(slopes).max(axis=1, keepdims=True)
        return -RADIUS * np.sign(slopes) * best
    power = 1 / (p - 1)
    points = np.sign(slopes) * np.abs(slopes) ** power
    lengths = np.linalg.norm(points, p, axis=1, keepdims=True)
    return -RADIUS * points / np.maximum(lengths, 1e-300)


@pytest.mark.parametrize("kind", KINDS)
def test_u5_empirical_minimizers_of_all_records_stay_above(kind):
    """All nd values are seen of n records; 400 data sets. Symmetric, so v may be fixed."""
    p = kind[0]
    hard = instance(kind, queries=USERS * DIM)
    records = records_of(hard, 400).reshape(400, USERS, DIM)
    excess = np.asarray(hard.excess(_linear_minimizers(records.mean(axis=1), p)))
    error = excess.std() / math.sqrt(len(excess))
    if not (p == 1.0 and kind[2] == "signs"):
        assert excess.mean() - 4 * error >= hard.lower_bound
    # And no bound is far below what can be done: at p = 1 signs prove nothing.
    assert excess.mean() <= 40 * hard.lower_bound or (p < 1.5 and kind[2] == "signs")
    # The bound on the best private draw is above both.
    theta = norms.regularizer_range(p, DIM, RADIUS)
    promised = sampling.sco(1e3, USERS, DIM, LIPSCHITZ, 2 * LIPSCHITZ, theta).risk
    assert promised >= max(hard.lower_bound, excess.mean() - 4 * error)


@pytest.mark.parametrize("kind", KINDS)
def test_few_values_spread_over_axes_stay_above(kind):
    """k values at the axes, each of another record, k/d for each: the best non-adaptive design."""
    p, bounded, _ = kind
    each = QUERIES // DIM
    hard = instance(kind, num_users=QUERIES)
    records = records_of(hard, 500).reshape(500, QUERIES, DIM)
    values = records.reshape(500, each, DIM, DIM)[:, :, np.arange(DIM), np.arange(DIM)]
    excess = np.asarray(hard.excess(_linear_minimizers(values.mean(axis=1), p)))
    error = excess.std() / math.sqrt(len(excess))
    if not (p == 1.0 and kind[2] == "signs"):
        assert excess.mean() - 4 * error >= hard.lower_bound
        assert hard.lower_bound >= excess.mean() / (60 if bounded else 30)


def test_at_one_a_single_sign_is_enough():
    """All k values at e₁ tell v₁ of the signs, and -R·v₁·e₁ is a minimizer; with an axis for v that fails."""
    dim, queries = 60, 200
    for direction, fails in (("signs", False), ("axis", True)):
        hard = instance((1.0, False, direction), dim=dim, queries=queries, num_users=queries)
        found = records_of(hard, 400).reshape(400, queries, dim)[..., 0].mean(axis=1)
        points = np.zeros((400, dim))
        points[:, 0] = -RADIUS * np.sign(found)
        excess = np.asarray(hard.excess(points)).mean()
        claimed = (
            LIPSCHITZ * 2 * RADIUS / math.log(dim) * math.sqrt(dim / (queries * math.log(dim)))
        )
        if fails:
            assert excess >= hard.lower_bound > claimed / 10
        else:
            # P(wrong) = Φ(-√d/2) = 5e-5.
            assert excess <= 2 * -hard.optimum * 40 * stats.norm.cdf(-math.sqrt(dim) / 2)
            assert excess < claimed / 50


def test_sampling_instances():
    # In one dimension, exp(-cvx - μx²/2) on [-R, R] for v = 1 and -1: whoever does not know v is off by at
    # least half of the distance between the two, on average; that is above the bound.
    for condition, queries in ((1e6, 10), (1e8, 1000)):
        hard = value_instances.hard_sampling_instance(
            jax.random.key(0), 1, queries, math.sqrt(condition), 1.0
        )
        assert hard.distance > 0
        radius, slope = hard.diameter / 2, hard.losses.mean
        assert radius == pytest.approx(math.sqrt(1 / 0.5))
        points = np.linspace(-radius, radius, 200_001)
        laws = []
        for v in (1.0, -1.0):
            density = np.exp(-slope * v * points - points**2 / 2 - slope * radius)
            laws.append(density / integrate.trapezoid(density, points))
        between = 0.5 * integrate.trapezoid(np.abs(laws[0] - laws[1]), points)
        assert between / 2 >= hard.distance
        # The exact draw keeps to d + μΘ above the least F, from which the bound comes.
        excess = integrate.trapezoid(laws[0] * (slope * points), points) + slope * radius
        assert excess <= 1 + hard.regularizer.range(radius)
        assert hard.losses.lower_bound > 1 + hard.regularizer.range(radius)
    shapes = value_instances.hard_sampling_instance(jax.random.key(0), 5, 30, 1e3, 0.1, 1.0)
    assert shapes.losses.data.items.features.shape == (30, 1, 5)
    assert (shapes.regularizer.p, shapes.regularizer.dim) == (1.0, 5)
    assert shapes.losses.objective.lipschitz == pytest.approx(1e3 * math.sqrt(5))


def test_bad_arguments():
    with pytest.raises(ValueError, match="p must be above 1"):
        instance((1.0, True, "signs"))
    with pytest.raises(ValueError, match="direction"):
        instance((2.0, True, "diagonal"))
    with pytest.raises(ValueError, match=r"p must be in \[1, 2\]"):
        instance((3.0, True, "signs"))
