"""The quantile of whitened SGD where a class is rare: by hand, and what it is for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses, reference
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import _rare_class, whitened_sgd

LOGISTIC = losses.logistic(2.0)


def _logit(share):
    return jnp.asarray(np.log(share / (1 - share)), jnp.float32)


def _quantile(objective, intercept, items=1, least=0.001, planned=0.9):
    model = objective.linear_model
    return float(_rare_class.quantile(planned, least, model, objective, intercept, items))


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    ("share", "items", "expected"),
    [
        (0.02, 1, 0.99),
        (0.02, 5, 1 - (1 - 0.98**5) / 2),
        (0.15, 1, 0.925),
        (0.21, 1, 0.9),  # at 0.9 half of them are inside
        (0.3, 1, 0.9),
        (0.5, 1, 0.9),
        (0.08, 4, 0.9),  # with a planned quantile that is above 1 - (1 - 0.92⁴)/2
    ],
)
def test_the_midst_of_the_rarer_class_is_inside(share, items, expected, other):
    found = _quantile(LOGISTIC, _logit(1 - share if other else share), items)
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_class_that_noise_hides_has_no_room():
    """0.02·0.98 = 0.0196."""
    assert _quantile(LOGISTIC, _logit(0.02), least=0.0195) == pytest.approx(0.99, abs=1e-5)
    assert _quantile(LOGISTIC, _logit(0.02), least=0.0197) == pytest.approx(0.9, abs=1e-6)
    assert _quantile(LOGISTIC, jnp.asarray(-200.0)) == pytest.approx(0.9, abs=1e-6)
    assert _quantile(LOGISTIC, jnp.asarray(jnp.nan)) == pytest.approx(0.9, abs=1e-6)


def test_a_class_that_is_not_steep_needs_no_room():
    """At 0.3 the slopes of the rarer class are 0.7, and 0.42 in the mean."""
    assert _quantile(LOGISTIC, _logit(0.3), planned=0.6) == pytest.approx(0.6, abs=1e-6)
    assert _quantile(LOGISTIC, _logit(0.2), planned=0.6) == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize("least", [0.001, 0.02])
def test_of_many_classes_the_rarest_that_is_seen_has_room(least):
    """Shares 0.96, 0.03, 0.01: the rarer the class, the longer its slope, softmax - e_k."""
    objective = losses.softmax(2.0, 3)
    found = _quantile(objective, jnp.log(jnp.asarray([0.96, 0.03, 0.01])), least=least)
    # Outside a quantile below 0.96 are both of the others; 0.01·0.99 is below 0.02.
    assert found == pytest.approx(0.995 if least == 0.001 else 0.98, abs=1e-5)
    assert _quantile(objective, jnp.zeros(3), planned=0.6) == pytest.approx(0.6, abs=1e-6)


def test_numbers_are_no_classes():
    for objective in (losses.huber(2.0), losses.squared(2.0, 1.0, 1.0)):
        assert _quantile(objective, jnp.asarray(-3.9)) == pytest.approx(0.9, abs=1e-6)


def test_the_bound_follows_noise_and_a_given_quantile_stays():
    problem = Problem(LOGISTIC, num_users=1000, items_per_user=1, dim=9)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0)
    less = whitened_sgd.plan(problem, Budget(4.0, 1e-5), intercept=0)
    # 1 - quantile = 12 s/(1 + 12 s), and s·√columns is what hides.
    noise = (1 / plan.quantile - 1) / 12
    assert plan.least_class == pytest.approx(noise * 3 / 1.5, rel=1e-6)
    assert less.least_class < plan.least_class / 2
    given = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0, quantile=0.8)
    assert given.least_class == 1.0


def test_a_rare_class_is_not_clipped_away():
    """Three users in a hundred are of one class; with the quantile of the plan held what is left is bias."""
    rng, num_users, dim = np.random.default_rng(3), 5000, 5
    rows = np.clip(0.4 * rng.normal(size=(num_users, 1, dim)), -1, 1).astype(np.float32)
    rows[..., 0] = 1.0
    margin = rows @ np.asarray([-4.3, 2.0, -2.0, 1.5, 0.0], np.float32)
    labels = (rng.random(margin.shape) < 1 / (1 + np.exp(-margin))).astype(np.float32)
    assert 0.02 < labels.mean() < 0.05
    data = UserData(Example(jnp.asarray(rows), jnp.asarray(labels)), None)
    objective = losses.logistic(dim**0.5, ridge=1e-5)
    best = reference.solve(objective, data, dim).params

    def excess(weights):
        def value(w):
            margin = rows.astype(float) @ np.asarray(w, float)
            return np.mean(np.logaddexp(0.0, margin) - labels * margin)

        return np.mean([value(w) for w in weights]) - value(best)

    problem = Problem(objective, num_users=num_users, items_per_user=1, dim=dim)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0, num_steps=100)
    held = whitened_sgd.plan(
        problem, Budget(1.0, 1e-5), intercept=0, num_steps=100, quantile=plan.quantile
    )

    @jax.jit
    def run(key, plan):
        return whitened_sgd.solve(key, plan, objective, data, jnp.zeros(dim)).params

    ends = [[run(jax.random.key(seed), each) for seed in range(3)] for each in (plan, held)]
    assert excess(ends[0]) < 0.4 * excess(ends[1])
