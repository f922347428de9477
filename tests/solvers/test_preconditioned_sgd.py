"""Preconditioned DP-SGD: its budget, its limits without noise, and that data reach it by releases only."""

import dataclasses
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms import additive
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses, reference
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers.user_level import preconditioned_sgd
from tests.support.planned import planned

USERS, ITEMS, FIELDS = 300, 6, (2, 60)
DIM, COLUMNS = sum(FIELDS), len(FIELDS)
OBJECTIVE = losses.logistic(feature_bound=1.0, domain=domains.ball(40.0), ridge=1e-3)
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "delta": 1e-5}
GUESS = preconditioned_sgd.one_hot_moments(1.0, FIELDS)


def _data(seed=0, users=USERS, missing=0.2):
    rng = np.random.default_rng(seed)
    first = rng.integers(0, FIELDS[0], (users, ITEMS))
    second = np.minimum(rng.geometric(0.05, (users, ITEMS)), FIELDS[1]) - 1
    effects = rng.normal(size=DIM)
    columns = np.stack([first, FIELDS[0] + second], -1).astype(np.int32)
    labels = rng.random((users, ITEMS)) < 1 / (1 + np.exp(-1.5 * effects[columns].sum(-1)))
    mask = rng.random((users, ITEMS)) >= missing
    return UserData(Example(OneHot(columns), labels.astype(np.float32)), mask)


DATA = jax.tree.map(jnp.asarray, _data())


def _plan(epsilon=4.0, num_steps=40, **settings):
    sizes = SIZES | {"columns_per_row": COLUMNS, "second_moments": GUESS} | settings
    return planned(
        preconditioned_sgd.plan, OBJECTIVE, epsilon=epsilon, num_steps=num_steps, **sizes
    )


def _run(key, plan, data=DATA):
    return preconditioned_sgd.solve(key, plan, OBJECTIVE, data, jnp.zeros(DIM))


RUN = jax.jit(_run)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.6])
@pytest.mark.parametrize("epsilon", [0.3, 5.0])
def test_the_budget_is_met_and_used_up(epsilon, share):
    plan = _plan(epsilon, moments_share=share)
    assert 0.999 * epsilon < plan.certificate().epsilon <= epsilon
    # The two kinds of releases together are one Gaussian release.
    precision = plan.num_steps / plan.noise_multiplier**2
    precision += 0.0 if share == 0.0 else 1 / plan.moments_multiplier**2
    once = privacy.certified_noise_multiplier(
        privacy.FullBatch(), 1, epsilon, 1e-5, plan.certificate().relation
    )
    assert 1 / math.sqrt(precision) == pytest.approx(once, rel=1e-5)
    ledger = _plan(epsilon, moments_share=share, accountant="rdp")
    assert 0.999 * epsilon < ledger.ledger_epsilon() <= epsilon


@pytest.mark.slow
def test_without_noise_it_finds_the_minimum():
    plan = _plan(num_steps=600, quantile=0.98)
    quiet = dataclasses.replace(plan, noise_multiplier=1e-6, moments_multiplier=1e-6)
    optimum = reference.solve(OBJECTIVE, DATA, DIM)
    value = mean_loss(OBJECTIVE)(RUN(jax.random.key(0), quiet).params, DATA)
    start = mean_loss(OBJECTIVE)(jnp.zeros(DIM), DATA) - optimum.value
    assert 0 <= value - optimum.value < 0.02 * start


@pytest.mark.slow
def test_the_radius_finds_its_quantile():
    plan = dataclasses.replace(_plan(num_steps=150), noise_multiplier=1e-3, quantile=0.6)
    solution = RUN(jax.random.key(0), plan)
    radius = np.asarray(solution.unprivate["trace"])
    np.testing.assert_allclose(radius[-30:], radius[-1], rtol=0.1)
    lower = dataclasses.replace(plan, quantile=0.1)
    assert RUN(jax.random.key(0), lower).unprivate["trace"][-1] < 0.8 * radius[-1]


def test_less_noise_clips_fewer_users():
    quantiles = [float(_plan(epsilon).quantile) for epsilon in (0.1, 1.0, 10.0, 100.0)]
    assert quantiles == sorted(quantiles)
    assert 0 < quantiles[0] < 0.1
    assert 0.7 < quantiles[-1] < 1
    assert _plan(1.0, quantile=0.4).quantile == 0.4


@pytest.mark.parametrize("columns", [None, 1, 2])
def test_moments_get_the_noise_that_users_without_a_common_column_need(columns):
    """Such users are √2·B²/√k apart: the noise is the multiplier times that over N, and not half of it."""
    objective, users, bound = losses.logistic(feature_bound=1.5), 4, 1.5
    plan = planned(preconditioned_sgd.plan,
        objective, num_users=users, items_per_user=1, dim=4, epsilon=1.0, delta=1e-5, num_steps=1,
        columns_per_row=columns, moments_share=0.5,
    )  # fmt: skip
    model, sums, noise = objective.linear_model, [], []
    right = additive.gaussian

    def record(key, tree, stddev):
        jax.debug.callback(
            lambda found: sums.append(np.asarray(found, np.float64)), tree, ordered=True
        )
        jax.debug.callback(lambda found: noise.append(float(found)), stddev, ordered=True)
        return right(key, tree, stddev)

    @jax.jit
    def moments(data):
        prepared = linear.prepare(model, data, 4)
        return preconditioned_sgd._feature_moments(jax.random.key(0), plan, model, prepared)

    with mock.patch.object(additive, "gaussian", record):
        for first in (0, columns or 1):
            if columns is None:
                features = jnp.zeros((users, 1, 4)).at[0, 0, first].set(bound)
            else:
                here = jnp.arange(first, first + columns, dtype=jnp.int32)
                features = OneHot(jnp.zeros((users, 1, columns), jnp.int32).at[0, 0].set(here))
            moments(UserData(Example(features, jnp.zeros((users, 1))), None))
        jax.effects_barrier()
    apart = np.linalg.norm(sums[0] - sums[1])
    expected = math.sqrt(2.0) * bound**2 / math.sqrt(columns or 1) / users
    assert apart == pytest.approx(expected, rel=2e-5)
    np.testing.assert_allclose(noise, plan.moments_multiplier * expected, rtol=1e-5)


def test_losses_that_are_not_smooth_linear_models_are_refused():
    with pytest.raises(ValueError, match="smooth linear model"):
        planned(preconditioned_sgd.plan, losses.hinge(feature_bound=1.0), epsilon=1.0, **SIZES)
    with pytest.raises(ValueError, match="second_moments"):
        _plan(second_moments=np.zeros(DIM))
    with pytest.raises(ValueError, match="columns_per_row = 3, got 2"):
        _run(jax.random.key(0), _plan(columns_per_row=3))


def test_traces_where_ranks_are_not_promoted():
    """One-hot rows, whose moments and components are released too."""
    plan = _plan(num_steps=2)
    with jax.numpy_rank_promotion("raise"):
        jax.eval_shape(lambda key: _run(key, plan), jax.random.key(0))
