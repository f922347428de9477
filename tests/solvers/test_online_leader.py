"""The noised leader: its noise, what is charged, its bound, and what steps keep to."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from dpsco_jax import Budget, privacy
from dpsco_jax.problems import streams
from dpsco_jax.solvers.online import noised_leader

BUDGET = Budget(2.0, 1e-6)


@functools.cache
def planned(
    rounds, dim, losses="linear", constants="tight", radius=1.0, lipschitz=1.0, epsilon=2.0
):
    return noised_leader.plan(
        rounds,
        dim,
        Budget(epsilon, 1e-6),
        radius=radius,
        lipschitz=lipschitz,
        losses=losses,
        constants=constants,
        bands=4,
    )


def gradients(kind, rounds, dim):
    """Tables of gradients of length 1."""
    if kind == "ones":
        return np.full((rounds, dim), 1 / math.sqrt(dim))
    coins = streams.repeated(jax.random.key(4), dim, 1 if kind == "coins" else 40)
    return np.asarray(2 * jax.vmap(coins)(jnp.arange(rounds)) - 1, np.float64) / math.sqrt(dim)


@functools.cache
def _many(count):
    def run(plan, table, key):
        losses = streams.rows(table)
        return jax.vmap(lambda key: noised_leader.solve(key, plan, losses).released["plays"])(
            jax.random.split(key, count)
        )

    return jax.jit(run)


def plays_of(plan, table, count):
    return np.asarray(_many(count)(plan, jnp.asarray(table, jnp.float32), jax.random.key(2)), float)


@pytest.mark.parametrize("constants", ["tight", "paper"])
def test_the_noise_in_each_sum_has_one_law_and_is_no_less_than_the_stream_has(constants):
    """A ball so wide that plays are -(S + Z)/(2λ): Z has the planned deviation in every round."""
    plan = planned(9, 2, constants=constants).replace(
        regularization=0.5, radius=1e6, noise_multiplier=3.0, noise_floor=25.0
    )
    table = np.random.default_rng(0).normal(size=(9, 2))
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1.0)
    z = -plays_of(plan, table, 4000) - np.vstack([np.zeros(2), np.cumsum(table, axis=0)[:-1]])
    own = 2 * 3.0 * np.append(0.0, plan.correlation.prefix_stddev()[:-1])
    assert own.max() < 25.0
    for t in range(9):
        for j in range(2):
            assert stats.kstest(z[:, t, j], stats.norm(scale=25.0).cdf).pvalue > 1e-4
    # And without what fills it up, that of the mechanism.
    bare = -plays_of(plan.replace(noise_floor=0.0), table, 4000)
    bare -= np.vstack([np.zeros(2), np.cumsum(table, axis=0)[:-1]])
    np.testing.assert_allclose(bare.std(axis=0)[1:], np.stack([own[1:]] * 2, axis=1), rtol=0.05)
    np.testing.assert_allclose(bare[:, 0], 0.0, atol=1e-6)


def test_one_loss_moves_the_stream_by_what_is_charged():
    """Same key: what two neighbours release differs by the clipped gradients, 2L apart at most."""
    plan = planned(6, 3, lipschitz=0.5)
    step = jax.jit(noised_leader.step)
    rows = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    worst = 0.0
    first = 30 * rows[2]
    for other in (-first, np.float32([np.nan, 1, 1]), np.float32([3e38] * 3), -rows[2]):
        changed = rows.copy()
        rows[2], changed[2] = first, other
        totals = []
        for table in (rows, changed):
            state = noised_leader.init(jax.random.key(3), plan)
            seen = []
            for t in range(5):
                state, _ = step(state, jnp.asarray(table[t]))
                seen.append(np.asarray(state.secret[0], np.float64))
            totals.append(np.array(seen))
        apart = totals[0] - totals[1]
        np.testing.assert_allclose(apart[:2], 0.0, atol=1e-6)
        np.testing.assert_allclose(apart[2:], apart[2:3].repeat(3, axis=0), atol=1e-4)
        worst = max(worst, np.linalg.norm(apart[2]))
        assert np.linalg.norm(apart[2]) <= 2 * 0.5 * (1 + 1e-4)
    assert worst > 0.999 * 2 * 0.5


def test_the_whole_run_is_one_gaussian_release():
    plan = planned(100, 3)
    sigma = plan.noise_multiplier
    exact = special.ndtr(0.5 / sigma - 2.0 * sigma) - math.exp(2.0) * special.ndtr(
        -0.5 / sigma - 2.0 * sigma
    )
    assert 0.999e-6 < exact <= 1e-6
    assert 1.99 < plan.certificate().epsilon <= 2.0
    np.testing.assert_allclose(plan.loss().rdp, privacy.gaussian(sigma).rdp, rtol=1e-6)
    assert plan.replace(noise_multiplier=sigma / 2).certificate().epsilon > 4.0
    lengths = ({"lipschitz": length} for length in (0.0, 3e-38, 1e-40, math.inf))
    for edit in ({"noise_multiplier": 0.0}, *lengths):
        assert plan.replace(**edit).certificate().epsilon == math.inf
        assert np.all(np.isinf(plan.replace(**edit).loss().rdp))
    assert "noised leader" in str(plan)
    assert plan.work().floating_point_operations > 100 * 3


def test_bounds_are_those_of_section_7():
    """Another program for the bound, and what it says of scales."""
    for rounds, dim, constants in ((400, 1, "tight"), (400, 5, "tight"), (400, 5, "paper")):
        plan = planned(rounds, dim, constants=constants)
        noise = 2 * plan.noise_multiplier * np.append(0.0, plan.correlation.prefix_stddev()[:-1])
        s, pull = plan.noise_floor, float(plan.regularization)
        assert s >= noise.max()
        chi = stats.chi(dim)
        flat = math.sqrt(2 / math.pi)
        if dim > 1:
            flat = min(flat, chi.expect(lambda x: 1 / x))
        start = s * chi.mean() if pull == 0 else min(s * chi.mean(), s * s * dim / (4 * pull))
        bend = flat / s if pull == 0 else min(flat / s, 1 / (2 * pull))
        bound = pull + start + 0.5 * rounds * bend
        assert bound * (1 - 1e-5) <= plan.regret_bound <= bound * (1 + 1e-4)
        other = planned(rounds, dim, constants=constants, radius=3.0, lipschitz=0.25)
        assert other.regret_bound == pytest.approx(0.75 * plan.regret_bound, rel=1e-5)
        bent = planned(rounds, dim, "convex", constants)
        pull = float(bent.regularization)
        bound = pull + rounds / (4 * pull) + math.sqrt(dim) * noise.sum() / (2 * pull)
        assert bound * (1 - 1e-5) <= bent.regret_bound <= bound * (1 + 1e-4)
    little = planned(400, 5, epsilon=200.0)
    assert little.regularization > 0
    assert little.regret_bound < 1.3 * math.sqrt(400)


@pytest.mark.parametrize("constants", ["tight", "paper"])
@pytest.mark.parametrize("kind", ["ones", "coins", "epochs"])
def test_the_regret_of_linear_losses_is_below_its_bound(kind, constants):
    plan, table = planned(400, 3, constants=constants), gradients(kind, 400, 3)
    plays = plays_of(plan, table, 20)
    assert np.linalg.norm(plays, axis=-1).max() <= 1 + 1e-5
    regret = np.einsum("std,td->s", plays, table) + np.linalg.norm(table.sum(axis=0))
    assert regret.mean() <= plan.regret_bound + 3 * regret.std() / math.sqrt(20)
    assert plan.regret_bound < 400
    if kind == "ones":
        assert regret.mean() > 0.2 * plan.regret_bound


def test_the_regret_of_convex_losses_is_below_its_bound():
    """‖x - θ_t‖, whose gradients are asked for at the plays."""
    plan = planned(400, 3, "convex", epsilon=8.0)
    points = jax.random.normal(jax.random.key(1), (400, 3)) * 0.1 + jnp.array([0.5, 0.0, -0.2])

    def gradient(t, x):
        away = x - points[t]
        return away / jnp.maximum(jnp.linalg.norm(away), 1e-6)

    run = jax.jit(jax.vmap(lambda key: noised_leader.solve(key, plan, gradient).released["plays"]))
    plays = np.asarray(run(jax.random.split(jax.random.key(2), 20)), np.float64)
    lost = np.linalg.norm(plays - np.asarray(points), axis=-1).sum(axis=1)
    best = np.linalg.norm(np.array([0.5, 0.0, -0.2]) - np.asarray(points), axis=-1).sum()
    assert lost.mean() - best <= plan.regret_bound + 3 * lost.std() / math.sqrt(20)
    assert plan.regret_bound < 2 * 400


def test_steps_are_what_a_whole_run_is_and_then_nothing_moves():
    plan = planned(9, 2)
    table = jnp.asarray(np.random.default_rng(3).normal(size=(9, 2)), jnp.float32)
    whole = jax.jit(noised_leader.solve)(jax.random.key(1), plan, streams.rows(table))
    assert set(whole.released) == {"plays"}
    np.testing.assert_array_equal(whole.params, whole.released["plays"][-1])
    step = jax.jit(lambda state, loss: noised_leader.step(state, loss))  # a cache of its own
    state, plays = noised_leader.init(jax.random.key(1), plan), []
    charged = state.ledger
    for t in range(9):
        plays.append(state.play)
        state, _ = step(state, table[t])
    np.testing.assert_allclose(np.array(plays), whole.released["plays"], atol=1e-5)
    np.testing.assert_array_equal(state.play, plays[-1])  # of the last loss nothing is played
    after, _ = step(state, jnp.ones(2))
    assert int(after.round) == 9
    np.testing.assert_array_equal(after.secret[0], state.secret[0])
    assert step._cache_size() == 1
    np.testing.assert_array_equal(charged.total.rdp, after.ledger.total.rdp)
    spent = float(privacy.epsilon(privacy.privacy_spent(after.ledger), 1e-6))
    assert plan.certificate().epsilon <= spent <= 1.2 * plan.certificate().epsilon
    assert float(privacy.epsilon(whole.privacy, 1e-6)) == pytest.approx(spent, rel=1e-5)


def test_more_bands_have_a_lower_bound_and_a_tree_a_higher_one():
    settings = {"radius": 1.0, "lipschitz": 1.0}
    bounds = [
        noised_leader.plan(512, 4, BUDGET, bands=b, **settings).regret_bound for b in (4, 32, 256)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert (
        noised_leader.plan(512, 4, BUDGET, constants="paper", **settings).regret_bound > bounds[-1]
    )
    with pytest.raises(ValueError, match="num_rounds must be at most"):
        noised_leader.plan(2**24 + 1, 4, BUDGET, **settings)


@pytest.mark.slow
def test_an_audit_of_plays_finds_no_more_than_is_claimed():
    """A stream that differs in its first loss; the score adds up what lies along it in all plays."""
    plan = planned(4, 2, epsilon=1.0).replace(regularization=0.5, radius=1e3)
    table = np.zeros((2, 4, 2), np.float32)
    table[:, 0, 0] = 1.0, -1.0

    def mechanism(plan, key, losses):
        return noised_leader.solve(key, plan, streams.rows(losses)).released["plays"]

    pair = jnp.asarray(table[0]), jnp.asarray(table[1])
    score = lambda plays: plays[1:, 0].sum()  # noqa: E731
    run = functools.partial(mechanism, plan)
    found = privacy.audit(jax.random.key(0), run, *pair, score, 100_000, 1e-6)
    assert found.epsilon <= plan.certificate().epsilon
    quiet = plan.replace(noise_multiplier=plan.noise_multiplier / 8, noise_floor=0.0)
    leaking = privacy.audit(
        jax.random.key(1), functools.partial(mechanism, quiet), *pair, score, 100_000, 1e-6
    )
    assert leaking.epsilon > plan.certificate().epsilon
