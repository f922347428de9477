"""Section B of docs/corrections.md: the printed claim fails, ours holds. Reference values are exact."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpsco_jax.mechanisms import selection, sparse_vector


def answers(stream, queries):
    first, rest = jax.random.split(jax.random.key(0))

    @jax.jit
    def run(first, keys, queries):
        def step(state, key_and_query):
            above, state = stream.step(key_and_query[0], state, key_and_query[1])
            return state, above

        return jax.lax.scan(step, stream.init(first), (keys, queries))

    state, above = run(first, jax.random.split(rest, len(queries)), queries)
    return above.tolist(), bool(state.halted)


def halting_log_ratio(margins, other_margins, threshold_scale, query_scale):
    """log P/P' of "all above but the last", by quadrature over the noise of the one threshold.

    A margin is (query - threshold, how often).
    """
    noise = np.linspace(-60 * threshold_scale, 60 * threshold_scale, 100_001)

    def log_probability(steps):
        logs = stats.laplace.logpdf(noise, scale=threshold_scale)
        for margin, times in steps[:-1]:
            logs += times * stats.laplace.logsf(noise - margin, scale=query_scale)
        logs += stats.laplace.logcdf(noise - steps[-1][0], scale=query_scale)
        return logs.max() + np.log(np.trapezoid(np.exp(logs - logs.max()), noise))

    return log_probability(margins) - log_probability(other_margins)


def test_b1_both_orientations_exist():
    queries = jnp.array([50.0, 50.0, -50.0, 50.0])
    below = sparse_vector.below_threshold(0.0, epsilon=10.0, sensitivity=1.0)
    assert answers(below, queries) == ([True, True, False, False], True)
    above = sparse_vector.above_threshold(0.0, epsilon=10.0, sensitivity=1.0)
    assert answers(above, -queries) == ([False, False, True, False], True)
    # Algorithm 34 as printed, in the place of Algorithm 27: halts at the first good query.
    assert answers(above, queries) == ([True, False, False, False], True)


def test_b2_the_concentration_score_has_sensitivity_two():
    def score(users, radius):
        return np.mean(np.abs(users[:, None] - users) <= radius) * len(users)

    # User 1 is at 0, all others within the radius of it but on both sides of it, or far from it.
    others = np.repeat([-1.0, 1.0], 5)
    moved = score(np.append(0.0, others), 1.0) - score(np.append(99.0, others), 1.0)
    np.testing.assert_allclose(moved, 2 * (1 - 1 / 11))

    # 100 queries that fall when the user is replaced, then one that rises; printed noise at ε/2 = 0.5.
    n = 821
    drop = 2 * (1 - 1 / n)
    stream, neighbour = [(0.0, 100), (0.0, 1)], [(-drop, 100), (drop, 1)]
    np.testing.assert_allclose(halting_log_ratio(stream, neighbour, 4.0, 8.0), 1 - 1 / n, rtol=1e-4)
    assert halting_log_ratio(stream, neighbour, 8.0, 16.0) <= 0.5

    # Ours has the threshold noise of that last line: Lap(2Δ/ε) with Δ = 2, ε = 0.5.
    ours = sparse_vector.below_threshold(0.0, epsilon=0.5, sensitivity=2.0)
    noise = jax.vmap(lambda k: ours.init(k).noisy_threshold)(
        jax.random.split(jax.random.key(1), 20_000)
    )
    np.testing.assert_allclose(jnp.mean(jnp.abs(noise)), 8.0, rtol=0.04)  # 5 standard errors


def test_b3_the_threshold_noise_is_drawn_once():
    # Redrawn: answers are independent coins, and the number of steps until the halt gives away more.
    noise = np.linspace(-400, 400, 20_001)
    density = stats.laplace.pdf(noise, scale=8)

    def halting_law(margin, num_steps):
        passes = np.trapezoid(density * stats.laplace.sf(noise - margin, scale=16), noise)
        before = passes ** np.arange(num_steps + 1)
        return before * np.append(np.full(num_steps, 1 - passes), 1.0)

    redrawn = np.maximum(halting_law(15, 50) - np.exp(0.5) * halting_law(13, 50), 0).sum()
    assert redrawn > 1e-3  # where a pure guarantee of 0.5 is printed

    stream = sparse_vector.below_threshold(0.0, epsilon=0.5, sensitivity=2.0)
    first, *keys = jax.random.split(jax.random.key(2), 4)
    state = stream.init(first)
    for key in keys:
        _, after = stream.step(key, state, 1e4)
        assert after.noisy_threshold == state.noisy_threshold
        state = after


def test_b4_the_exponential_mechanism_needs_the_factor_two():
    # Two candidates, losses in [0, 1]; all records but one prefer the second.
    n, epsilon = 200, 1.0
    losses = np.array([[n - 1, 1.0], [n, 0.0]]) / n  # mean loss of each candidate, on D and on D'

    def log_ratio(rate):
        log_weights = -rate * losses
        logs = log_weights - np.logaddexp(*log_weights.T)[:, None]
        return np.max(np.abs(logs[0] - logs[1]))

    assert log_ratio(rate=epsilon * n) > 1.99 * epsilon  # printed
    assert log_ratio(rate=epsilon * n / 2) <= epsilon

    # Ours draws at the second rate: with sensitivity 1/n, by the odds of a small difference.
    scores = jnp.array([0.0, -1.0 / n])
    keys = jax.random.split(jax.random.key(3), 20_000)
    second = jax.vmap(lambda k: selection.exponential_mechanism(k, scores, epsilon, 1 / n))(keys)
    expected = 1 / (1 + np.exp(epsilon / 2))
    np.testing.assert_allclose(jnp.mean(second), expected, atol=5 * 0.5 / np.sqrt(20_000))
