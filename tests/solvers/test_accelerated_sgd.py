"""Accelerated user-level SGD: deterministic limit, halts, ledger, batches, the numbers that it promises."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import transforms
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.means import Clipped, OutlierRemoved
from dpsco_jax.solvers.user_level import accelerated_sgd
from dpsco_jax.transforms.outlier_removed_mean import halted
from tests.support.planned import planned

USERS, ITEMS, DIM = 60, 4, 3
QUADRATIC = Objective(
    loss=lambda w, z: 0.5 * jnp.sum(jnp.square(w - z)),
    lipschitz=20.0,
    smoothness=1.0,
    domain=domains.ball(8.0),
    loss_strong_convexity=0.0,
)
LOGISTIC = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0), ridge=0.1)
SIZES = {
    "num_users": USERS,
    "items_per_user": ITEMS,
    "dim": DIM,
    "epsilon": 60.0,
    "delta": 1e-2,
    "allow_large_delta": True,
    "regularization": 0.2,
    "stage_length": 4,
    "num_stages": 2,
}


def _plan(objective=QUADRATIC, **changes):
    return planned(accelerated_sgd.plan, objective, **(SIZES | changes))


def _points(seed=0, users=USERS, spread=0.2):
    z = np.random.default_rng(seed).normal(size=(users, ITEMS, DIM)) * spread + [1.0, -0.5, 0.2]
    return UserData(jnp.asarray(z, jnp.float32), None)


def _examples(seed=0, users=USERS):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(users, ITEMS, DIM)).astype(np.float32)
    labels = rng.integers(0, 2, (users, ITEMS)).astype(np.float32)
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)), None)


def _without_noise(plan):
    """The same plan with a threshold that all batches reach and (almost) no noise."""
    releases = dataclasses.replace(plan.releases, noise_stddev=1e-9, threshold=-1e9)
    return plan.replace(releases=releases)


def _trace(params, state, estimate):
    del estimate
    return transforms.ac_sa_eval_params(state, params), halted(state)


@jax.jit
def _quadratic(key, plan, data, start):
    return accelerated_sgd.solve(key, plan, QUADRATIC, data, start, _trace)


@jax.jit
def _logistic(key, plan, data, start):
    return accelerated_sgd.solve(key, plan, LOGISTIC, data, start)


def _reference(gradient, start, smoothness, convexity, lam, length, stages, project):
    """AC-SA as Ghadimi and Lan write it: query point, prox point and aggregate, stage by stage."""
    total_smoothness, ag = smoothness + lam, np.asarray(start, float)
    mu = convexity + lam
    for _ in range(stages):
        x = ag
        for t in range(1, length + 1):
            a, g = 2 / (t + 1), 4 * total_smoothness / (t * (t + 1))
            query = ((1 - a) * (mu + g) * ag + a * ((1 - a) * mu + g) * x) / (g + (1 - a**2) * mu)
            step = gradient(query) + lam * (query - start)
            x = project((a * mu * query + ((1 - a) * mu + g) * x - a * step) / (mu + g))
            ag = a * x + (1 - a) * ag
    return ag


@pytest.mark.parametrize("mean", [OutlierRemoved, Clipped])
def test_with_all_users_and_no_noise_it_is_deterministic_ac_sa(mean):
    plan, data = _plan(mean=mean, radius=2.0), _points()
    if mean is Clipped:
        releases = dataclasses.replace(plan.releases, noise_multiplier=1e-9)
        plan = plan.replace(releases=releases)
    else:
        plan = _without_noise(plan)
    start = np.array([0.5, 0.5, -1.0], np.float32)
    found = _quadratic(jax.random.key(0), plan, data, jnp.asarray(start))
    mean = np.mean(np.asarray(data.items, float), (0, 1))
    expected = _reference(lambda w: w - mean, start, 1.0, 0.0, 0.2, 4, 2, lambda w: w)
    np.testing.assert_allclose(found.params, expected, rtol=1e-5, atol=1e-6)
    assert found.status == Status.OK


def test_all_regularizers_are_exact_and_the_domain_is_kept():
    plan = _without_noise(_plan(LOGISTIC))
    data, start = _examples(), np.array([0.1, -0.2, 0.3], np.float32)
    found = _logistic(jax.random.key(0), plan, data, jnp.asarray(start))
    rows, labels = (np.asarray(x, float).reshape(USERS * ITEMS, -1) for x in data.items)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)

    def gradient(w):
        slopes = 1 / (1 + np.exp(-rows @ w)) - labels[:, 0]
        return rows.T @ slopes / len(rows) + 0.1 * w

    def ball(w):
        return w * min(1.0, 2.0 / np.linalg.norm(w))

    smooth = LOGISTIC.smoothness + 0.1
    expected = _reference(gradient, start, smooth, 0.1, 0.2, 4, 2, ball)
    np.testing.assert_allclose(found.params, expected, rtol=1e-4, atol=1e-5)


def test_a_run_that_halts_midway_returns_the_last_aggregate():
    plan = _plan(radius=2.0)
    # A test that fails every now and then: the score is 60, the noise of scale 4 and 2.
    releases = dataclasses.replace(plan.releases, threshold=USERS - 6.0, test_epsilon=2.0)
    plan = plan.replace(releases=releases)
    data, seen = _points(spread=0.01), set()
    for key in jax.random.split(jax.random.key(0), 40):
        found = _quadratic(key, plan, data, jnp.ones(DIM))
        points, stopped = (np.asarray(x) for x in found.unprivate["trace"])
        steps = int(np.sum(~stopped))
        seen.add(steps)
        assert found.status == (Status.OK if steps == plan.num_steps else Status.HALTED)
        assert np.all(stopped[steps:])
        last = points[steps - 1] if steps else np.ones(DIM, np.float32)
        np.testing.assert_array_equal(found.params, last)
    assert len(seen & set(range(1, plan.num_steps))) >= 3


def test_the_choice_of_batches_has_the_variance_of_subsets_without_repetition():
    """One step without noise moves by the mean of a batch: (n-K)/(n-1) of the variance over K."""
    batch = 20
    plan = _plan(batch_size=batch, stage_length=1, num_stages=1, mean=Clipped)
    releases = dataclasses.replace(plan.releases, noise_multiplier=1e-9)
    plan = plan.replace(releases=releases)
    data = _points(spread=1.0)
    run = jax.jit(
        jax.vmap(lambda k: accelerated_sgd.solve(k, plan, QUADRATIC, data, jnp.zeros(DIM)).params)
    )
    ends = np.asarray(run(jax.random.split(jax.random.key(0), 5_000)), float)
    means = np.mean(np.asarray(data.items, float), 1)
    # The first step of AC-SA goes to start - gradient·t/(2Λ(1 + m)), m = μt(t+1)/(4Λ), t = 1.
    step = 1 / (2 * 1.2 * (1 + 0.2 * 2 / (4 * 1.2)))
    variance = step**2 * (USERS - batch) / (USERS - 1) * np.var(means, axis=0) / batch
    error = np.sqrt(variance.max() / 5_000)
    np.testing.assert_allclose(ends.mean(0), step * means.mean(0), atol=6 * error)
    np.testing.assert_allclose(ends.var(0), variance, rtol=5 * np.sqrt(2 / 5_000))


def test_of_two_means_the_one_with_less_noise_is_taken_and_the_plan_shows_both():
    few = _plan(mean=None)
    assert isinstance(few.mean, Clipped)
    assert few.noise_stddev < few.other_stddev
    many = _plan(items_per_user=100_000, mean=None)
    assert isinstance(many.mean, OutlierRemoved)
    assert many.noise_stddev < many.other_stddev
    assert isinstance(_plan(items_per_user=100_000, mean=Clipped).mean, Clipped)
    assert isinstance(_plan().mean, OutlierRemoved)
    # With too few users for the test there is one choice left, and that is said.
    alone = _plan(num_users=5, epsilon=1.0, mean=None)
    assert isinstance(alone.mean, Clipped)
    assert alone.other_stddev == math.inf
    for text in (str(few), str(many)):
        assert "noise_stddev" in text
        assert "other_stddev" in text


def test_radius_and_failure():
    plan = _plan(items_per_user=1000)
    # √m τ/L: about 1 + √(2 ln(2nT/failure)), never more than a clipped gradient can be long.
    ratio = plan.radius * math.sqrt(1000) / 20.0
    assert 1 + math.sqrt(2 * math.log(2 * 60 * 8 / 1e-3)) < ratio < 12
    assert _plan(items_per_user=1).radius == pytest.approx(20.0)
    assert _plan(items_per_user=1, failure=1e-4).failure <= 0.5e-4 * 1.001
    given = _plan(items_per_user=1000, radius=0.5)
    assert given.failure == 1.0
    assert given.noise_stddev == pytest.approx(plan.noise_stddev * 0.5 / plan.radius, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": "clipped"}, "mean must be means.Clipped, means.OutlierRemoved or None"),
        ({"batch_size": 61}, r"batch_size must be an integer in \[1, 60\]"),
        ({"stage_length": None}, "stage_length and num_stages must be given together"),
        ({"epsilon": 1.0}, "num_users must be at least"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _plan(**changes)


def test_losses_that_are_not_smooth_need_a_radius_and_other_users_are_refused():
    rough = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))
    with pytest.raises(ValueError, match="smoothing_radius must be"):
        _plan(rough)
    smoothed = _plan(rough, smoothing_radius=0.1, mean=Clipped)
    assert smoothed.smoothing_radius == 0.1
    with pytest.raises(ValueError, match=r"data must have plan\.num_users = 60 users, got 59"):
        accelerated_sgd.solve(
            jax.random.key(0), _plan(), QUADRATIC, _points(users=59), jnp.zeros(DIM)
        )
