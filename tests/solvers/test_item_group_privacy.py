"""Item-level DP-SGD for users: what one user can move, the two ways from items to users, its bound."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import item_group_privacy as group
from dpsco_jax.solvers.user_level import sgd
from tests.support.planned import planned

USERS, ITEMS, DIM, STEPS = 8, 3, 2, 4
BUDGET = {
    "num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "epsilon": 1.0, "delta": 1e-5,
    "num_steps": STEPS,
}  # fmt: skip
LOGISTIC = losses.logistic(1.0, domains.ball(2.0))
# Gradients are the items, whatever the point.
LINEAR = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.whole_space())


def _plan(objective=LOGISTIC, **changes):
    return planned(group.plan, objective, **(BUDGET | changes))


@functools.cache
def _solver(linear):
    objective = LINEAR if linear else LOGISTIC

    def run(key, plan, data):
        return group.solve(key, plan, objective, data, jnp.zeros(DIM))

    return jax.jit(run)


def _items(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    mask = rng.random((USERS, ITEMS)) < 0.7
    items = scale * rng.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
    return UserData(jnp.asarray(items), jnp.asarray(mask))


def _examples(seed=0, scale=1.0):
    data = _items(seed, scale)
    labels = np.random.default_rng(seed).integers(0, 2, (USERS, ITEMS)).astype(np.float32)
    return UserData(Example(data.items, jnp.asarray(labels)), data.mask)


def _noiseless(plan, **changes):
    return plan.replace(noise_multiplier=1e-12, **changes)


def test_without_noise_each_item_is_clipped_by_itself():
    data = _items(scale=3.0)
    plan = _noiseless(_plan(LINEAR, distance=1.0), step_size=0.5)
    found = _solver(True)(jax.random.key(0), plan, data)
    rows = np.asarray(data.items)[np.asarray(data.mask)]
    clipped = rows * np.minimum(1.0, 1.0 / np.linalg.norm(rows, axis=1, keepdims=True))
    step = -0.5 * clipped.sum(0) / (USERS * ITEMS)
    np.testing.assert_allclose(found.params, step * (1 + STEPS) / 2, rtol=1e-4)
    assert found.gradients == plan.item_gradients == STEPS * USERS * ITEMS
    assert found.unprivate["gradients"] == STEPS * len(rows)


def test_drawn_items_are_an_unbiased_sample_of_all_slots():
    data = _items()
    plan = _noiseless(_plan(LINEAR, batch_size=5, num_steps=1, distance=1.0), step_size=1.0)
    keys = jax.random.split(jax.random.key(0), 20_000)
    ends = jax.jit(jax.vmap(lambda k: _solver(True)(k, plan, data).params))(keys)
    items = np.where(np.asarray(data.mask)[..., None], data.items, 0.0).reshape(-1, DIM)
    items *= np.minimum(1.0, 1.0 / np.maximum(1e-9, np.linalg.norm(items, axis=1, keepdims=True)))
    error = 5 * np.sqrt(items.var(0) / 5 / 20_000)
    assert np.all(np.abs(np.mean(ends, 0) + items.mean(0)) <= error)
    np.testing.assert_allclose(np.var(ends, 0), items.var(0) / 5, rtol=0.05)


def test_all_items_cost_a_user_what_all_users_cost():
    """Gaussian noise for m items at once is that of user-level DP-SGD: group privacy loses nothing."""
    ours = _plan(num_steps=50)
    users = planned(
        sgd.plan,
        LOGISTIC,
        num_users=USERS,
        dim=DIM,
        epsilon=1.0,
        delta=1e-5,
        num_steps=50,
        sampling="full",
    )
    assert ours.noise_multiplier == pytest.approx(users.noise_multiplier)
    assert ours.excess_bound == pytest.approx(users.excess_bound)


def test_the_black_box_is_the_weaker_the_more_is_drawn_with_replacement():
    """What it loses: hardly anything on Gaussians, a lot on sampling."""
    sizes = {"num_users": 1000, "items_per_user": 10, "num_steps": 100}

    def ratio(**changes):
        noise = [
            _plan(constants=c, **sizes, **changes).noise_multiplier for c in ("paper", "tight")
        ]
        return noise[0] / noise[1]

    assert 1.0 < ratio() < 1.05
    assert ratio(batch_size=50) > 1.3
    assert group.item_budget(1.0, 1e-5, 1) == (1.0, 1e-5)
    each, failure = group.item_budget(1.0, 1e-5, 10)
    # (ε₀, δ₀), ten times in a row: ε adds up, and δ ← e^ε₀·δ + δ₀.
    total = 0.0
    for _ in range(10):
        total = math.exp(each) * total + failure
    assert (10 * each, total) == (pytest.approx(1.0), pytest.approx(1e-5))


def test_draws_are_accounted_as_users_with_replacement():
    plan = _plan(num_users=500, batch_size=20, num_steps=30)
    step = privacy.subsampled_gaussian_with_replacement(plan.noise_multiplier, 500, 20)
    expected = privacy.epsilon(privacy.scale(step, 30), 1e-5)
    assert plan.certificate().epsilon == pytest.approx(float(expected))
    # One user's m items are not m users: m does not enter.
    more = _plan(num_users=500, batch_size=20, num_steps=30, items_per_user=50)
    assert more.noise_multiplier == plan.noise_multiplier


def test_the_default_step_and_its_bound():
    plan = _plan(num_users=1000, num_steps=50)
    variance = 1 + DIM * plan.noise_stddev**2
    assert plan.step_size == pytest.approx(4 / math.sqrt(50 * variance))
    assert plan.excess_bound == pytest.approx(4 * math.sqrt(variance / 50) * (1 + 1 / 100))
    assert _plan(clip_norm=0.5).excess_bound == math.inf
    assert _plan(step_size=0.1).excess_bound == math.inf
    assert _plan(LOGISTIC._replace(ridge=0.1)).excess_bound == math.inf


def test_bad_arguments():
    with pytest.raises(ValueError, match="distance must be"):
        _plan(LINEAR)
    with pytest.raises(ValueError, match="of 4 item slots a user, as planned, got 3"):
        group.solve(
            jax.random.key(0), _plan(items_per_user=4), LOGISTIC, _examples(), jnp.zeros(DIM)
        )
