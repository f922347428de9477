"""The proximal sampler: its loop, and what is proven of steps and trials, against exact laws."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.solvers.sampling import alternating_sampler as sampler
from dpsco_jax.solvers.sampling import chain_lengths
from tests.support.compiled import OPTIMIZED

CRITICAL = 1.95  # of Kolmogorov's statistic times the root of the number of draws: 1 in 1000


def gaussian_oracle(step, convexity, acceptance=1.0):
    """Of N(0, 1/m) in one dimension, with trials that succeed with a probability that knows nothing."""
    shrink = 1.0 / (1.0 + step * convexity)

    def diffuse(key, state):
        return state[0], state[0] + math.sqrt(step) * jax.random.normal(key)

    def trial(key, state):
        normal_key, coin_key = jax.random.split(key)
        x = shrink * state[1] + math.sqrt(step * shrink) * jax.random.normal(normal_key)
        return (x, state[1]), jax.random.uniform(coin_key) < acceptance

    return sampler.Oracle(lambda x: (x, x), diffuse, trial, lambda state: state[0])


def counting_oracle(succeeds):
    """Writes down in its state what is done with it: points, y's and keys, with no randomness of its own."""

    def bits(key):
        return jax.random.key_data(key).ravel()[-1].astype(jnp.uint32)

    def init(x):
        return {"x": x, "tried": 0 * x, "y": 0 * x, "keys": jnp.zeros((2,), jnp.uint32)}

    def diffuse(key, state):
        return state | {"y": state["y"] + 1, "keys": state["keys"].at[0].set(bits(key))}

    def trial(key, state):
        first = jax.random.uniform(key) < succeeds
        x = 100 * state["y"] + state["tried"] + 1
        keys = state["keys"].at[1].set(bits(key))
        return state | {"x": x, "tried": state["tried"] + 1, "keys": keys}, first

    return sampler.Oracle(init, diffuse, trial, lambda state: state)


# -- the loop


def test_every_step_has_a_new_y_and_its_point_is_that_of_the_trial_that_succeeded():
    oracle = counting_oracle(1.1)
    for steps in (1, 2, 7):
        end = sampler.run(jax.random.key(0), oracle, jnp.array(0), steps, 50)
        # The y of the last step was the last that was drawn, and each trial succeeded at once.
        assert int(end.params["y"]) == steps
        assert int(end.params["x"]) == 100 * steps + steps
        assert (int(end.num_accepted), int(end.num_trials)) == (steps, steps)


def test_a_capped_loop_returns_the_last_point_that_it_has():
    never = sampler.run(jax.random.key(0), counting_oracle(-1.0), jnp.array(17), 3, 50)
    assert int(never.params["x"]) == 17
    assert int(never.params["tried"]) == 0
    assert (int(never.num_accepted), int(never.num_trials)) == (0, 50)
    some = sampler.run(jax.random.key(3), counting_oracle(0.3), jnp.array(17), 1000, 20)
    assert 0 < int(some.num_accepted) < 20
    assert int(some.num_trials) == 20
    # What failed has left nothing in the state: as many were kept as succeeded.
    assert int(some.params["tried"]) == int(some.num_accepted)
    assert int(some.params["x"]) == 100 * (int(some.params["y"]) - 1) + int(some.num_accepted)


def test_trials_and_steps_have_keys_of_their_own():
    # Of one trip: its trial, and the y that follows.
    end = sampler.run(jax.random.key(1), counting_oracle(1.1), jnp.array(0), 2, 1)
    assert len(set(np.asarray(end.params["keys"]).tolist())) == 2
    # Of the noise itself: x - y/2 and y - x' are independent, in a chain whose trials always succeed.
    oracle = gaussian_oracle(1.0, 1.0)
    kept = sampler.Oracle(oracle.init, oracle.diffuse, oracle.trial, lambda state: state)
    run = jax.jit(jax.vmap(lambda key: sampler.run(key, kept, jnp.array(0.0), 2, 2).params))
    x, y = map(np.asarray, run(jax.random.split(jax.random.key(2), 20_000)))
    assert abs(np.corrcoef(x - y / 2, y)[0, 1]) < 4 / math.sqrt(len(x))


def test_all_trips_are_made_in_constant_time_and_nothing_else_changes():
    oracle = gaussian_oracle(0.5, 1.0, 0.4)
    for seed in range(4):
        fast = sampler.run(jax.random.key(seed), oracle, jnp.array(1.0), 9, 60)
        slow = sampler.run(jax.random.key(seed), oracle, jnp.array(1.0), 9, 60, True)
        np.testing.assert_allclose(fast.params, slow.params, rtol=1e-6)
        assert int(fast.num_trials) == int(slow.num_trials)
    trips = []
    seen = oracle._replace(
        trial=lambda key, state: (
            jax.debug.callback(lambda: trips.append(1)),
            oracle.trial(key, state),
        )[1]
    )
    jax.block_until_ready(sampler.run(jax.random.key(5), seen, jnp.array(1.0), 2, 30, True))
    jax.effects_barrier()
    assert len(trips) == 30


def test_the_flat_loop_has_the_law_of_the_nested_one():
    step, convexity, steps, chains, p = 0.3, 2.0, 4, 20_000, 0.45
    oracle = gaussian_oracle(step, convexity, p)
    run = jax.jit(
        jax.vmap(lambda key: sampler.run(key, oracle, jnp.array(2.0), steps, 400)),
        compiler_options=OPTIMIZED,
    )
    flat = run(jax.random.split(jax.random.key(6), chains))
    rng = np.random.default_rng(7)
    x, trials = np.full(chains, 2.0), np.zeros(chains, int)
    for _ in range(steps):
        y = x + math.sqrt(step) * rng.normal(size=chains)
        waiting = np.ones(chains, bool)
        while waiting.any():
            proposed = (y + math.sqrt(step * (1 + step * convexity)) * rng.normal(size=chains)) / (
                1 + step * convexity
            )
            taken = waiting & (rng.random(chains) < p)
            trials += waiting
            x = np.where(taken, proposed, x)
            waiting &= ~taken
    bound = CRITICAL * math.sqrt(2 / chains)
    assert stats.ks_2samp(flat.params, x).statistic < bound
    counts = np.asarray(flat.num_trials)
    assert abs(counts.mean() - steps / p) < 4 * math.sqrt(steps * (1 - p)) / p / math.sqrt(chains)
    assert stats.ks_2samp(counts, trials).statistic < bound
    assert np.all(np.asarray(flat.num_accepted) == steps)
    # And that of the chain itself, in closed form.
    r = 1 + step * convexity
    variance = (1 - r ** (-2 * steps)) / convexity
    law = stats.norm(2.0 * r**-steps, math.sqrt(variance))
    assert stats.kstest(np.asarray(flat.params), law.cdf).statistic < CRITICAL / math.sqrt(chains)


# -- what is proven


def _gaussian_distance(mean, deviation, convexity):
    """Total variation of N(mean, deviation²) and N(0, 1/m), by quadrature."""
    grid = np.linspace(-40.0, 40.0, 400_001) / math.sqrt(convexity)
    p = stats.norm.pdf(grid, mean, deviation)
    q = stats.norm.pdf(grid, 0.0, 1 / math.sqrt(convexity))
    return 0.5 * np.trapezoid(np.abs(p - q), grid)


@pytest.mark.parametrize("step", [0.5, 0.1, 0.02])
@pytest.mark.parametrize(("convexity", "start"), [(1.0, 0.0), (1.0, 3.0), (4.0, 1.0)])
def test_steps_are_enough_for_gaussian_chains_and_not_too_many(step, convexity, start):
    r = 1 + step * convexity
    far = math.sqrt(start**2 + 1 / convexity)
    for steps in (1, 2, 5, 20, 60, 200):
        deviation = math.sqrt((1 - r ** (-2 * steps)) / convexity)
        true = _gaussian_distance(start * r**-steps, deviation, convexity)
        bound = chain_lengths.mixing_variation(steps, step, convexity, far)
        assert true <= bound
        # A start at the mean is within a distance that falls twice as fast.
        if start > 0 and 1e-9 < true < 0.1:
            assert bound <= 20 * true


def test_the_least_number_of_steps_is_found():
    for variation in (0.3, 1e-3, 1e-9, 1e-30):
        for step in (1e-4, 0.3, 20.0):
            steps = chain_lengths.mixing_steps(variation, step, 2.0, 3.0)
            assert chain_lengths.mixing_variation(steps, step, 2.0, 3.0) <= variation
            assert steps == 1 or chain_lengths.mixing_variation(
                steps - 1, step, 2.0, 3.0
            ) > variation * (1 - 1e-9)
            printed = 3.0 / (2 * math.sqrt(step)) * (1 + 2.0 * step) ** -(steps - 1)
            assert chain_lengths.mixing_variation(steps, step, 2.0, 3.0) == pytest.approx(
                min(1.0, printed), rel=1e-9, abs=0
            )


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_trials_that_fall_short_are_as_rare_as_is_said(p, steps):
    for more in (1.0, 1.01, 1.2, 2.0, 6.0):
        trials = math.ceil(more * steps / p)
        true = stats.binom.cdf(steps - 1, trials, p)
        bound = chain_lengths.trials_variation(steps, trials, p)
        assert true <= bound
        # Chernoff's bound, which is that of T or fewer, loses a polynomial factor and no rate.
        if 1e-250 < true < 0.1:
            assert bound < 6 * math.sqrt(trials) * stats.binom.cdf(steps, trials, p)
    if steps > 1:
        assert chain_lengths.trials_variation(steps, steps - 1, p) == 1.0


def test_the_least_number_of_trials_is_found():
    for steps, p, variation in (
        (1, 0.5, 1e-12),
        (1000, 0.4999, 1e-9),
        (37, 0.03, 0.2),
        (5, 1.0, 0.1),
    ):
        trials = chain_lengths.capped_trials(steps, p, variation)
        assert chain_lengths.trials_variation(steps, trials, p) <= variation
        if trials > steps:
            assert chain_lengths.trials_variation(steps, trials - 1, p) > variation
        assert stats.binom.cdf(steps - 1, trials, p) <= variation


def test_impossible_requests():
    with pytest.raises(Infeasible, match=r"2\^31"):
        chain_lengths.capped_trials(10**9, 0.1, 1e-3)
    with pytest.raises(ValueError, match="acceptance"):
        chain_lengths.trials_variation(3, 10, 1.5)
    with pytest.raises(ValueError, match="convexity"):
        chain_lengths.mixing_variation(3, 0.1, 0.0, 1.0)
    with pytest.raises(ValueError, match="num_steps"):
        sampler.run(jax.random.key(0), gaussian_oracle(1.0, 1.0), jnp.array(0.0), 0, 5)
    with pytest.raises(ValueError, match="num_trials"):
        sampler.run(jax.random.key(0), gaussian_oracle(1.0, 1.0), jnp.array(0.0), 1, 0)
    with pytest.raises(ValueError, match="oracle"):
        sampler.run(jax.random.key(0), "oracle", jnp.array(0.0), 1, 1)
