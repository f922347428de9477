"""T, chapter 13: private online learning, with tests that fail on what is printed."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget
from dpsco_jax.privacy.online import LazyReleases, l2p_epsilon_thesis
from dpsco_jax.problems import hard_instances, streams
from dpsco_jax.rates.online import regret, regret_exponent
from dpsco_jax.solvers.online import experts


def test_c13_1_batching_costs_more_than_is_printed():
    rounds, size, eta, dim = 20_000, 100, 1e-4, 50
    extra = []
    for seed in range(10):
        vectors = np.random.default_rng(seed).integers(0, 2, (rounds // size, dim)).astype(float)
        batched = single = 0.0
        total = np.zeros(dim)
        for vector in vectors:
            # The weights before each round of the batch, and those of its first round for all.
            seen = total + np.arange(size)[:, None] * vector
            weights = np.exp(-eta * (seen - seen.min(axis=1, keepdims=True)))
            lost = (weights / weights.sum(axis=1, keepdims=True)) @ vector
            single += lost.sum()
            batched += size * lost[0]
            total += size * vector
        extra.append(batched - single)
    printed = rounds * size**2 * eta**2
    assert printed == pytest.approx(2.0)
    assert np.mean(extra) > 10 * printed
    assert np.mean(extra) == pytest.approx(rounds * size * eta / 8 * (1 - 1 / dim), rel=0.05)
    assert max(extra) <= eta * rounds * size / 8


def test_c13_2_one_play_a_batch_loses_more_than_the_printed_rate():
    # At ε = T^-1/4 and B = 1/ε, T from 10^8 to 10^16: the lower bound over the printed rate grows.
    ratios = []
    for rounds in (1e8, 1e16):
        epsilon = rounds**-0.25
        lower = 0.5 * math.sqrt(rounds / epsilon)
        ratios.append(lower / regret("L2P, experts, printed", rounds, epsilon))
    assert ratios[1] / ratios[0] == pytest.approx(10.0, rel=1e-3)
    # And it is what a run loses: half of all rounds, whatever it has learned.
    plan = experts.plan(6400, 20, Budget(1.0, 1e-6), batch_size=64)
    losses = streams.repeated(jax.random.key(0), 20, 64)
    run = jax.jit(jax.vmap(lambda key: experts.solve(key, plan, losses).unprivate))
    out = run(jax.random.split(jax.random.key(1), 40))
    lost = np.asarray(out["trace"]["loss"]).sum(axis=1)
    best = experts.totals([np.asarray(leaf)[0] for leaf in out["statistic"]]).min()
    assert lost.mean() - best > 0.5 * math.sqrt(6400 * 64)
    assert lost.mean() - best <= plan.regret_bound + 3 * lost.std() / math.sqrt(40)
    assert regret_exponent("L2P, experts", 0) == regret_exponent("L2P, experts, printed", 0)


def test_c13_3_printed_parameters_miss_their_budget():
    epsilon, delta, dim = 1.0, 1e-6, 1000
    for rounds, least in ((10**4, 4.0), (10**6, 1.5)):
        eta = min(rounds**-0.25 * math.log(dim) ** 0.75, epsilon) ** (2 / 3) / rounds ** (1 / 3)
        p = eta / epsilon
        run = LazyReleases(rounds, 1, "lagged", eta, 2 * eta, p, p, eta**2 / 2, delta)
        assert run.certificate().epsilon > least * epsilon
        # Nor does the theorem that they are from say anything.
        assert l2p_epsilon_thesis(rounds, 1, eta, p, delta) == math.inf
        assert eta * math.log(1 / delta) / p > 1


def test_c13_4_the_convex_parameters_contradict_themselves():
    eta, epsilon = 0.01, 0.5
    assert eta / (eta / epsilon) > epsilon / 2
    for delta, over in ((1e-6, 2.4), (1e-9, 2.9)):
        lipschitz, strength = 3.0, 0.7
        beta = eta**2 * strength / (20 * lipschitz**2)
        bound = math.sqrt(8 * lipschitz**2 * beta * math.log(2 / delta) / strength)
        assert bound == pytest.approx(over * eta, rel=0.01)
        assert bound / math.sqrt(math.log(2 / delta)) == pytest.approx(0.63 * eta, rel=0.01)


def test_c13_5_one_draw_has_twice_the_printed_ratio():
    eta, dim = 0.1, 1000
    loss = np.r_[0.0, np.ones(dim - 1)]
    laws = [np.exp(-eta * each) / np.exp(-eta * each).sum() for each in (loss, 1 - loss)]
    largest = np.abs(np.log(laws[0] / laws[1])).max()
    assert 1.9 * eta < largest <= 2 * eta
    for alpha in (1.5, 8.0, 100.0):
        divergence = math.log(np.sum(laws[0] ** alpha * laws[1] ** (1 - alpha))) / (alpha - 1)
        assert divergence <= alpha * eta**2 / 2


def test_c13_6_given_a_switch_the_rest_still_tells():
    p, eta = 0.05, 0.1
    chances = []
    for moved in (-eta, eta):
        fresh = 1 - (1 - p) * math.exp(-eta + moved)
        chances.append(fresh / (1 - (1 - fresh) * (1 - p)))  # of x, given that any is fresh
    assert abs(math.log(chances[0] / chances[1])) > 2 * eta


def test_c13_7_printed_composition_is_above_the_sum():
    one, count, delta = 0.01, 10_000, 1e-6
    deviation = math.sqrt(2 * count * one**2 * math.log(1 / delta))
    printed = count * one + deviation
    true = count * one * math.expm1(one) / (math.exp(one) + 1) + deviation
    assert true < 0.1 * count * one < count * one < printed


def test_c13_8_a_reference_is_drawn_where_its_coin_is_zero():
    base = experts.plan(
        200, 50, Budget(1.0, 1e-6), reference="lagged", batch_size=1, redraw_probability=0.5
    )

    def references(chance):
        plan = base.replace(reference_probability=chance)
        state, seen = experts.init(jax.random.key(3), plan), []
        step = jax.jit(experts.step)
        for _ in range(60):
            state, _ = step(state, jnp.zeros(50))
            seen.append(int(state.secret.reference))
        return np.mean(np.diff(seen) != 0)

    assert references(0.0) == 0.0
    assert references(1.0) > 0.9


def test_c13_9_parts_may_have_more_than_the_whole():
    alpha, second = 20.0, math.log(3)
    first, other = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    powers = first**alpha * other ** (1 - alpha)
    parts = math.log(powers.sum()) / (alpha - 1) + 0.5 * second
    given = np.array([1.0, math.exp((alpha - 1) * second)])
    whole = math.log(np.sum(powers * given)) / (alpha - 1)
    assert parts == pytest.approx(1.20, abs=0.01)
    assert whole < 0.6 * parts


def test_c13_10_the_best_of_two_experts_is_not_as_good_as_printed():
    made = hard_instances.low_switching_adversary(jax.random.key(0), 10**6, 2, 1e-3)
    printed = made.length * math.sqrt(made.num_epochs)
    assert made.advantage == pytest.approx(0.5 / math.sqrt(math.pi) * printed, rel=1e-3)
    for dim, enough in ((27, False), (28, True)):
        wide = hard_instances.low_switching_adversary(jax.random.key(0), 10**6, dim, 1e-3)
        assert (wide.advantage >= printed) == enough
