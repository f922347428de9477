"""Clip levels that follow a quantile: the run in NumPy, neighbours by enumeration, what it costs, tails."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.problems import heavy_tailed
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import _quantile_clip, _terms, clipped_gd
from tests.solvers.test_clipped_gd import BUDGET, DIM, LAMBDA, LINEAR, USERS, gradients, users_of

STEPS = 30


@functools.cache
def planned(**settings):
    problem = Problem(LINEAR, num_users=USERS, dim=DIM, distance=1.0)
    given = {"regularization": LAMBDA, "num_steps": STEPS} | settings
    return clipped_gd.plan(problem, BUDGET, **given)


@jax.jit
def run(key, plan, rows):
    return clipped_gd.solve(key, plan, LINEAR, users_of(rows), jnp.zeros(DIM)).params


def test_without_noise_it_is_the_recursion_by_hand():
    rows, plan = gradients(0), planned(clip_norm=0.1, quantile=0.7)
    lengths = np.linalg.norm(rows.astype(float), axis=1)
    level, x, total = 0.1, np.zeros(DIM), np.zeros(DIM)
    for t in range(STEPS):
        total += (t + 4) * x
        mean = (rows * np.minimum(1.0, level / lengths)[:, None]).mean(0)
        level *= math.exp(-0.5 * ((lengths <= 0.9 * level).mean() - 0.7))
        pull = 4 / (t + 1)
        x = (x - pull / LAMBDA * mean) / (1 + pull)
        x *= min(1.0, 1.0 / np.linalg.norm(x))
    found = run(jax.random.key(0), plan.replace(noise_multiplier=jnp.float32(1e-6)), rows)
    np.testing.assert_allclose(found, total / (STEPS * (STEPS + 7) / 2), rtol=2e-3)
    assert abs((lengths <= 0.9 * level).mean() - 0.7) < 0.05


def test_no_two_users_are_farther_apart_than_the_sensitivity():
    """All pairs of a grid of lengths around 0.9 and 1, opposite, across and alike; NaN and infinity too."""
    level, users = 0.5, 7
    aggregate = transforms.centred_clip(level, users, centre_rate=0.0, quantile=0.5)
    lengths = [0.0, 1e-30, 0.3, 0.9 - 1e-6, 0.9, 0.9 + 1e-6, 1.0, 1.0 + 1e-6, 3.0, 1e30]
    ways = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    vectors = [level * length * way for length in lengths for way in ways]
    vectors += [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, 1.0]]
    state = aggregate.init(jnp.zeros(2))

    @jax.jit
    @jax.vmap
    def statistic(user):
        rows = jnp.zeros((users, 2)).at[3].set(user)
        found, _ = aggregate.update(rows, state)
        return jnp.concatenate([jnp.ravel(jnp.asarray(x)) for x in jax.tree.leaves(found)])

    each = np.asarray(statistic(np.float32(vectors)), float)
    apart = np.linalg.norm(each[:, None] - each[None], axis=-1)
    assert apart.max() <= aggregate.sensitivity * (1 + 1e-6)
    assert apart.max() >= 0.99 * aggregate.sensitivity == 0.99 * 2 / users


def test_a_run_costs_what_a_run_with_a_fixed_clip_does():
    """T steps of multiplier s are T/(2s²)-zCDP: one Gaussian release of s/√T."""
    plan = planned()
    fixed = planned(moments=Moments(math.inf, 1.0))
    assert plan.noise_multiplier == fixed.noise_multiplier
    assert plan.certificate() == fixed.certificate()
    assert plan.certificate().epsilon <= BUDGET.epsilon
    rho = _terms.rho_of(USERS, BUDGET, "tight", "pld")
    np.testing.assert_allclose(STEPS / (2 * plan.noise_multiplier**2), rho, rtol=1e-3)
    np.testing.assert_array_equal(plan.loss().rdp, fixed.loss().rdp)
    assert np.all(np.isinf(plan.replace(clip_norm=0.0).loss().rdp))
    assert plan.excess_bound == math.inf


def test_defaults_are_of_public_numbers():
    plan = planned()
    rho = _terms.rho_of(USERS, BUDGET, "tight", "pld")
    assert plan.quantile == 1 - 8.0 * math.sqrt(2 * DIM / rho) / USERS
    assert plan.clip_norm == LINEAR.lipschitz / 1e6
    assert plan.radius == 2.0
    both = planned(moments=Moments(4.0, 3.0, 2.0, 1.5), quantile=0.9)
    assert (both.clip_norm, both.quantile, both.radius) == (1.5, 0.9, 1.5)
    assert _quantile_clip.best_share(2, 100, 0.1) == 0.5
    endless = Problem(LINEAR._replace(domain=domains.whole_space()), num_users=9, dim=DIM)
    with pytest.raises(ValueError, match="radius"):
        clipped_gd.plan(endless, BUDGET, regularization=1.0)
    with pytest.raises(ValueError, match="quantile"):
        planned(constants="paper")


def test_what_is_not_finite_counts_as_zero():
    rows, plan = gradients(3), planned(clip_norm=1.0)
    for bad in (np.nan, np.inf, -np.inf):
        rows[7] = bad
        found = run(jax.random.key(0), plan, rows)
        assert np.all(np.isfinite(found))
        wanted = rows.copy()
        wanted[7] = [0.0, 0.0, 0.0, bad, 0.0]
        np.testing.assert_array_equal(found, run(jax.random.key(0), plan, wanted))


@pytest.mark.parametrize("index", [2.5, 4.0])
def test_it_is_as_good_as_the_best_clip_in_hindsight(index):
    """Labels with the noise of Student's t; nothing is known of it."""
    made = heavy_tailed.linear_model(heavy_tailed.Tail("student", index), dim=5, radius=2.0)
    users, objective = 1024, made.objective
    problem = made.problem(users, distance=1.0)
    data = jax.vmap(lambda key: made.draw(key, users))(jax.random.split(jax.random.key(1), 6))

    @jax.jit
    @jax.vmap
    def excess(key, data, plan):
        return made.excess(clipped_gd.solve(key, plan, objective, data, jnp.zeros(5)).params)

    def error(**given):
        plan = clipped_gd.plan(
            problem, Budget(4.0, 1e-6), regularization=0.02, num_steps=100, **given
        )
        plans = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (6,)), plan)
        return float(np.mean(excess(jax.random.split(jax.random.key(2), 6), data, plans)))

    moments = Moments(math.inf, 1.0)
    best = min(error(clip_norm=clip, moments=moments) for clip in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0))
    assert error(clip_norm=0.01) <= 1.3 * best


def test_edited_plans_are_charged_without_bound_or_refused():
    """Attacked: clips that are no lengths, and plans that say that only some of the users take part."""
    plan, rows = planned(clip_norm=1.0), gradients(0)

    @jax.jit
    def charged(plan, rows):
        found = clipped_gd.solve(jax.random.key(0), plan, LINEAR, users_of(rows), jnp.zeros(DIM))
        return found.privacy.rdp

    traced = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), plan)
    assert np.all(np.isfinite(charged(traced, rows)))
    for clip in (-1.0, 0.0, 1e-44, 1e-36, 1e31, 1e38, math.nan, math.inf):
        edited = traced.replace(clip_norm=jnp.float32(clip))
        assert np.all(np.isinf(charged(edited, rows))), clip
    drawn = dataclasses.replace(plan.mean.releases, batch_size=USERS // 2)
    edited = dataclasses.replace(plan, mean=dataclasses.replace(plan.mean, releases=drawn))
    with pytest.raises(ValueError, match="scheme"):
        run(jax.random.key(0), edited, rows)
    for relation in ("ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL"):
        other = dataclasses.replace(
            plan.mean.releases,
            sampling="poisson",
            poisson_relation=getattr(NeighboringRelation, relation),
        )
        with pytest.raises(ValueError, match="relation"):
            dataclasses.replace(plan, mean=dataclasses.replace(plan.mean, releases=other))
    with pytest.raises(ValueError, match="radius"):
        transforms.centred_clip(1e-36, 5, quantile=0.5)
