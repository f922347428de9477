"""The sparse vector technique: exact laws of the halting time, its guarantee, its state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax import privacy
from dpsco_jax.mechanisms import sparse_vector


def halting_law(margin, horizon, threshold_scale, query_scale):
    """P(halt at k), k = 1..horizon, and P(never), for queries ``margin`` above the threshold.

    Of ``below_threshold``: given the threshold's noise ξ a query passes with probability
    π(ξ) = P(ν ≥ ξ - margin). Quadrature over ξ.
    """
    xi = np.linspace(-50, 50, 20_001) * threshold_scale
    weights = scipy.stats.laplace.pdf(xi / threshold_scale) / 200
    passes = scipy.stats.laplace.sf((xi - margin) / query_scale)
    going = []
    for _ in range(horizon):
        weights = weights * passes
        going.append(weights.sum())
    return np.append(-np.diff(np.append(1.0, going)), going[-1])


@functools.partial(jax.jit, static_argnames=("make", "horizon", "trials"))
def simulate(make, key, queries, epsilon, sensitivity, horizon, trials):
    """Answers [trials, horizon] and whether halted [trials, horizon]."""
    stream = make(10.0, epsilon, sensitivity)

    first, rest = jax.random.split(key)
    states = jax.vmap(stream.init)(jax.random.split(first, trials))

    def step(states, inputs):
        keys, query = inputs
        above, states = jax.vmap(stream.step, in_axes=(0, 0, None))(keys, states, query)
        return states, (above, states.halted)

    keys = jax.random.split(rest, (horizon, trials))
    return [part.T for part in jax.lax.scan(step, states, (keys, queries))[1]]


def _continues_twice(*args):
    return sparse_vector.above_threshold(*args, max_answers=2)


@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("margin", [0.0, 6.0])
def test_halting_time(below, margin):
    horizon, trials, epsilon, sensitivity = 8, 40_000, 2.0, 2.0
    make = sparse_vector.below_threshold if below else sparse_vector.above_threshold
    query = 10.0 + (margin if below else -margin)
    above, halted = simulate(
        make, jax.random.key(0), jnp.full(horizon, query), epsilon, sensitivity, horizon, trials
    )
    times = horizon - np.sum(halted, axis=1)
    expected = halting_law(margin, horizon, 2 * sensitivity / epsilon, 4 * sensitivity / epsilon)
    observed = np.bincount(times, minlength=horizon + 1)
    assert scipy.stats.chisquare(observed, expected * trials).pvalue > 1e-3
    # The halting query is answered, every later one is False.
    if below:
        np.testing.assert_array_equal(above, ~np.asarray(halted))
    else:
        assert np.all(np.sum(above, axis=1) == halted[:, -1])


@pytest.mark.parametrize("margin", [-20.0, 0.0, 5.0, 100.0])
def test_halting_laws_of_neighbours(margin):
    # All queries moved the same way by the sensitivity cost ε/2 in the halting time, reached at 0.
    laws = [halting_law(m, 200, 8.0, 16.0) for m in (margin, margin - 2.0)]
    ratio = np.abs(np.log(laws[0] / laws[1])).max()
    assert ratio <= 0.25 + 1e-3
    if margin == 0:
        assert ratio == pytest.approx(0.25, abs=1e-3)


def test_continues_until_all_answers_are_given():
    horizon = 40
    above, halted = simulate(
        _continues_twice, jax.random.key(1), jnp.full(horizon, 9.0), 4.0, 1.0, horizon, 500
    )
    answers = np.cumsum(above, axis=1)
    np.testing.assert_array_equal(answers >= 2, halted)
    assert answers.max() == 2
    # After an answer the threshold is new: the waiting times for both have the same law, and ε/2 each.
    first, second = (np.argmax(answers >= k, axis=1) for k in (1, 2))
    done = halted[:, -1]
    assert scipy.stats.ks_2samp((first + 1)[done], (second - first)[done]).pvalue > 1e-3
    law = halting_law(1.0, horizon, 1.0, 2.0)
    assert np.mean(first == 0) == pytest.approx(law[0], abs=0.08)


def test_threshold_is_drawn_anew_after_an_answer_only():
    stream = sparse_vector.above_threshold(0.0, 1.0, 1.0, max_answers=3)
    state = stream.init(jax.random.key(0))
    above, same = stream.step(jax.random.key(1), state, -1e6)
    assert not above
    assert same.noisy_threshold == state.noisy_threshold
    above, new = stream.step(jax.random.key(2), same, 1e6)
    assert above
    assert new.noisy_threshold != state.noisy_threshold
    assert (new.answers, new.halted) == (1, False)


@pytest.mark.parametrize("query", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_counts_as_below(query):
    for make, halts in [
        (sparse_vector.below_threshold, True),
        (sparse_vector.above_threshold, False),
    ]:
        stream = make(0.0, 1.0, 1.0)
        above, state = stream.step(jax.random.key(1), stream.init(jax.random.key(0)), query)
        assert not above
        assert state.halted == halts


def test_loss():
    one = sparse_vector.below_threshold(0.0, 0.7, 3.0).loss
    np.testing.assert_array_equal(one.rdp, privacy.pure_dp(0.7).rdp)
    assert one.delta == 0
    # Three streams at ε/3: at most ε in total, less at low orders.
    three = sparse_vector.above_threshold(0.0, 0.9, 1.0, max_answers=3).loss
    assert np.all(three.rdp <= 0.9 * (1 + 1e-12))
    np.testing.assert_allclose(three.rdp, 3 * privacy.pure_dp(0.3).rdp, rtol=1e-12)


def test_hyper_parameters_and_dtypes_are_stable_in_a_scan():
    traces = []

    @jax.jit
    def run(threshold, epsilon, sensitivity, queries):
        traces.append(1)
        stream = sparse_vector.below_threshold(threshold, epsilon, sensitivity)
        keys = jax.random.split(jax.random.key(1), queries.shape[0])

        def step(state, inputs):
            passed, state = stream.step(inputs[0], state, inputs[1])
            return state, passed

        passed = jax.lax.scan(step, stream.init(jax.random.key(0)), (keys, queries))[1]
        return passed, stream.loss

    for epsilon in (0.5, 1.0):
        passed, loss = run(1.0, epsilon, 2.0, jnp.full(5, 1e6))
        assert np.all(passed)
        assert loss.rdp[-1] <= epsilon * (1 + 1e-5)
    assert len(traces) == 1
