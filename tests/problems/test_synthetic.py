"""The declared minimizers minimize: zero gradient, in float64."""

import jax
import numpy as np
import pytest

from dpsco_jax.problems import synthetic, users

SIZES = {"num_users": 20, "items_per_user": 5, "dim": 4}
FACTORIES = {
    "mean_estimation": synthetic.mean_estimation,
    "geometric_median": synthetic.geometric_median,
    "linear_regression": synthetic.linear_regression,
    "logistic_regression": synthetic.logistic_regression,
}


@pytest.fixture(scope="module", params=FACTORIES)
def problem(request):
    return FACTORIES[request.param](jax.random.key(0), **SIZES)


def test_gradient_vanishes_at_the_minimizer(problem):
    with jax.enable_x64(True):
        objective = users.mean_loss(problem.objective)
        value, gradient = jax.jit(jax.value_and_grad(objective))(problem.minimizer, problem.data)
        # The data are float32, and so is the rounding when their bound is enforced.
        assert np.linalg.norm(gradient) < 1e-7
        around = problem.minimizer + 0.1 * np.eye(SIZES["dim"])
        assert np.all(jax.jit(jax.vmap(objective, (0, None)))(around, problem.data) > value)
    assert problem.objective.domain.contains(problem.minimizer.astype(np.float32), 1e-6)
    assert users.num_users(problem.data) == SIZES["num_users"]


@pytest.mark.parametrize("name", ["mean_estimation", "geometric_median"])
def test_heterogeneity_is_what_users_have_in_common(name):
    factory = FACTORIES[name]
    sizes = {"num_users": 200, "items_per_user": 30, "dim": 8}
    for heterogeneity in (0.0, 0.6, 1.0):
        items = np.asarray(
            factory(jax.random.key(1), **sizes, heterogeneity=heterogeneity).data.items
        )
        between = items.mean(axis=1).var(axis=0).sum()
        total = items.reshape(-1, 8).var(axis=0).sum()
        expected = heterogeneity**2 + (1 - heterogeneity**2) / 30
        assert abs(between / total - expected) < 0.06


def test_heterogeneous_slopes_spread_the_users():
    def spread(heterogeneity):
        problem = synthetic.linear_regression(
            jax.random.key(2), 30, 40, 3, heterogeneity=heterogeneity, noise=0.0
        )
        x = np.asarray(problem.data.items.features, np.float64)
        y = np.asarray(problem.data.items.label, np.float64)
        slopes = np.stack([np.linalg.lstsq(x[u], y[u])[0] for u in range(30)])
        return np.sqrt(np.square(slopes - slopes.mean(axis=0)).sum(axis=1).mean())

    assert spread(0.0) < 1e-5
    assert abs(spread(0.3) - 0.3) < 0.08


def test_the_slope_minimizes_absolute_regression():
    problem = synthetic.absolute_regression(jax.random.key(3), 60, 4, 2.0, 0.3)
    assert np.linalg.norm(problem.minimizer) == pytest.approx(2.0)
    with jax.enable_x64(True):
        risk = jax.jit(users.mean_loss(problem.objective))
        excess_of = jax.jit(synthetic.absolute_excess)
        at = risk(problem.minimizer, problem.data)
        for direction in np.concatenate([np.eye(4), -np.eye(4)]):
            point = problem.minimizer + 0.2 * direction
            excess = float(excess_of(point, problem.minimizer, problem.data))
            # Labels are float32.
            assert excess == pytest.approx(float(risk(point, problem.data) - at), abs=1e-6)
            assert excess > 1e-3


def test_decay_is_that_of_the_variances_of_coordinates():
    problem = synthetic.absolute_regression(jax.random.key(4), 4000, 20, decay=1.0)
    features = np.asarray(problem.data.items.features)[:2000, 0]
    assert np.all(np.linalg.norm(features, axis=1) <= 1.0 + 1e-6)
    spread = np.log(features.var(axis=0))
    assert np.polyfit(np.log(np.arange(1, 21)), spread, 1)[0] == pytest.approx(-1.0, abs=0.1)


def test_same_key_same_data():
    first, second = (synthetic.mean_estimation(jax.random.key(5), **SIZES) for _ in range(2))
    np.testing.assert_array_equal(first.data.items, second.data.items)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("geometric_median", {"num_users": 3}),
        ("linear_regression", {"num_users": 1, "items_per_user": 2}),
        ("logistic_regression", {"ridge": 0.0}),
    ],
)
def test_sizes_that_make_no_instance_are_refused(name, change):
    with pytest.raises(ValueError, match="must be"):
        FACTORIES[name](jax.random.key(0), **{**SIZES, **change})
    with pytest.raises(ValueError, match="num_users must be even"):
        synthetic.absolute_regression(jax.random.key(0), 5, 2)
