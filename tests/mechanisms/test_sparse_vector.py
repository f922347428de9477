"""The sparse vector technique: exact laws of the halting time, its guarantee, its state."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
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


def _nodes(scale):
    """Places and weights of a mean over a Laplace variable, Gauss-Legendre on panels with an edge at zero."""
    edges = np.concatenate([-np.geomspace(60, 1e-3, 400), [0.0], np.geomspace(1e-3, 60, 400)])
    points, weights = np.polynomial.legendre.leggauss(6)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    places = (middle[:, None] + half[:, None] * points).ravel()
    return scale * places, (half[:, None] * weights).ravel() * scipy.stats.laplace.pdf(places)


def transcripts(queries, hidden, redraw, scales):
    """The law of the answers to queries, of all 2^T of them, when one more query is asked in their midst.

    ``hidden`` is its place and whether it is found above, for certain: what is released has no answer to it.
    Thresholds are relative to the public one. By quadrature, without a line of the mechanism.
    """
    places, weights = _nodes(scales[0])
    above = scipy.stats.laplace.sf((places - np.reshape(queries, (-1, 1))) / scales[1])
    at, found = hidden
    law = {}
    for word in itertools.product((0, 1), repeat=len(queries)):
        segments, current = [], np.ones_like(places)
        for t, answer in enumerate(word):
            if t == at and found and redraw:
                segments, current = [*segments, current], np.ones_like(places)
            current = current * (above[t] if answer else 1 - above[t])
            if answer and redraw:
                segments, current = [*segments, current], np.ones_like(places)
        law[word] = float(np.prod([weights @ one for one in [*segments, current]]))
    return law


FIRST, EACH, MOVE = 0.02, 0.02, 0.1


def _hidden_pair(moves, at, redraw):
    """Laws of neighbours: one has a query of +10^6 where the other has one of -10^6; the rest move by Δ."""
    scales = MOVE / FIRST, 2 * MOVE / EACH
    queries = scales[1] * np.array([0.0, 0.5, -0.5, 1.0, 0.0, -1.0])
    first = transcripts(queries, (at, True), redraw, scales)
    other = transcripts(queries + MOVE * np.asarray(moves), (at, False), redraw, scales)
    return first, other


def _worst_ratio(pair):
    return max(abs(np.log(pair[0][w] / pair[1][w])) - EACH * sum(w) for w in pair[0])


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("moves", [(1,) * 6, (-1,) * 6, (1, -1, 1, -1, 1, -1)])
def test_a_hidden_query_tells_nothing_by_a_fixed_threshold(at, moves):
    """Exact enumeration: every transcript costs the threshold, and a for each answer above."""
    pair = _hidden_pair(moves, at, redraw=False)
    assert sum(pair[0].values()) == pytest.approx(1, abs=1e-9)
    assert _worst_ratio(pair) <= FIRST + 1e-9
    # The Rényi divergences are below the curve, in both directions.
    loss = sparse_vector.fixed_threshold_loss(FIRST, EACH, 6)
    for a, b in (pair, pair[::-1]):
        p, q = (np.array(list(law.values())) for law in (a, b))
        for place in range(0, len(privacy.ORDERS), 29):
            order = float(privacy.ORDERS[place])
            exact = np.log(np.sum(p * (p / q) ** (order - 1))) / (order - 1)
            assert exact <= loss.rdp[place] * (1 + 1e-9), order


@pytest.mark.parametrize("at", [3, 5])
def test_a_hidden_query_shows_by_a_threshold_drawn_anew(at):
    """The same enumeration finds out the version that the thesis prints (B-i), at any scale of noise."""
    pair = _hidden_pair((0,) * 6, at, redraw=True)
    assert _worst_ratio(pair) > 5 * FIRST
    # Also as a Rényi divergence, of transcripts with one answer at most.
    few = [{word: law[word] for word in law if sum(word) <= 1} for law in pair]
    p, q = (np.array(list(law.values())) for law in few)
    order = float(privacy.ORDERS[-1])
    terms = np.log(p) + (order - 1) * np.log(p / q)
    exact = scipy.special.logsumexp(terms) / (order - 1)
    assert exact > 3 * sparse_vector.fixed_threshold_loss(FIRST, EACH, 1).rdp[-1]


@pytest.mark.parametrize(
    ("below", "ratio", "chance"),
    [(5, 0.72, 4.7e-2), (20, 1.75, 4.3e-3), (100, 3.25, 1.9e-4), (1000, 5.52, 2.0e-6)],
)
def test_how_much_a_threshold_drawn_anew_tells(below, ratio, chance):
    """So many answers below, the hidden query, one answer above: ratios grow with the stream, not with Δ."""
    for scale in (1.0, 1e3):
        places, weights = _nodes(scale)
        above = scipy.stats.laplace.sf(places / (2 * scale))
        silent = (1 - above) ** below
        anew = (weights @ silent) * (weights @ above)
        kept = weights @ (silent * above)
        assert np.log(anew / kept) == pytest.approx(ratio, abs=0.01)
        assert anew == pytest.approx(chance, rel=0.03)


@functools.partial(jax.jit, static_argnames=("redraw", "trials"))
def _answers(key, queries, redraw, trials):
    stream = sparse_vector._stream(
        0.0, (MOVE / FIRST, 2 * MOVE / EACH), MOVE, 10, privacy.zero(), redraw=redraw
    )
    if not redraw:
        stream = sparse_vector.fixed_threshold(0.0, FIRST, EACH, MOVE, 10)
    return jax.vmap(lambda k: sparse_vector.outcomes(k, stream, queries))(
        jax.random.split(key, trials)
    )


@pytest.mark.parametrize("redraw", [False, True])
def test_the_stream_has_the_law_that_was_enumerated(redraw):
    """Of the code itself, with a hidden query of 10^6 in the midst: all 64 transcripts by a χ² test."""
    scales, trials = (MOVE / FIRST, 2 * MOVE / EACH), 60_000
    queries = scales[1] * np.array([0.0, 0.5, -0.5, 1.0, 0.0, -1.0])
    for found in (True, False):
        asked = np.insert(queries, 3, 1e6 if found else -1e6)
        answers = np.asarray(_answers(jax.random.key(5), jnp.float32(asked), redraw, trials))
        assert np.all(answers[:, 3] == found)
        seen = np.delete(answers, 3, axis=1) @ 2 ** np.arange(6)[::-1]
        law = np.array(list(transcripts(queries, (3, found), redraw, scales).values()))
        counts = np.bincount(seen, minlength=64)
        assert scipy.stats.chisquare(counts, law * trials).pvalue > 1e-3


def test_a_fixed_threshold_halts_after_its_answers_and_is_never_drawn_again():
    stream = sparse_vector.fixed_threshold(0.0, 1.0, 1.0, 1.0, max_answers=3)
    state = stream.init(jax.random.key(0))
    for t, query in enumerate([1e6, -1e6, 1e6, 1e6, 1e6]):
        above, after = stream.step(jax.random.key(t + 1), state, query)
        assert after.noisy_threshold == state.noisy_threshold
        assert bool(above) == (query > 0 and t < 4)
        state = after
    assert (int(state.answers), bool(state.halted), int(state.queries)) == (3, True, 5)
    # A query that is no number is below.
    above, _ = stream.step(jax.random.key(9), stream.init(jax.random.key(8)), np.nan)
    assert not above


def test_one_answer_of_a_fixed_threshold_is_above_threshold_at_its_law():
    """c = 1: the law of the first answer above is that of the sparse vector, by quadrature."""
    horizon, trials = 6, 40_000
    found = np.asarray(
        jax.jit(
            jax.vmap(
                lambda k: sparse_vector.outcomes(
                    k,
                    sparse_vector.fixed_threshold(0.0, 0.5, 0.5, 1.0),
                    jnp.full(horizon, -1.5),
                )
            )
        )(jax.random.split(jax.random.key(2), trials))
    )
    times = np.where(np.any(found == 1, axis=1), np.argmax(found == 1, axis=1), horizon)
    law = halting_law(1.5, horizon, 2.0, 4.0)
    counts = np.bincount(times, minlength=horizon + 1)
    assert scipy.stats.chisquare(counts, law * trials).pvalue > 1e-3
    assert np.all((found == -1).sum(axis=1) == np.where(times < horizon, horizon - 1 - times, 0))


def test_the_curve_of_an_answer_is_the_largest_over_all_pairs_of_chances():
    """K by search over all admissible (p, p'), and the two caps of the sheet."""
    share = np.linspace(1e-4, 1 - 1e-4, 2001)
    for a in (1e-3, 0.1, 1.0, 4.0):
        loss = privacy.threshold_answer(a)
        for place in range(0, len(privacy.ORDERS), 29):
            order = float(privacy.ORDERS[place])
            low = np.concatenate([share, 1 / (1 + np.exp(a)) * np.array([1 - 1e-9, 1.0])])
            # p is at most e^a p', and 1 - p at least e^-a (1 - p').
            high = np.minimum(np.exp(a) * low, 1 - np.exp(-a) * (1 - low))
            top = order * np.log(high) + (1 - order) * np.log(low)
            rest = np.exp(order * np.log1p(-high) + (1 - order) * np.log1p(-low))
            found = np.max(top - np.log1p(-rest)) / (order - 1)
            assert found <= loss.rdp[place] * (1 + 1e-9) + 1e-15 / (order - 1)
            assert found >= loss.rdp[place] * (1 - 1e-6) - 1e-15 / (order - 1)
        assert np.all(loss.rdp <= np.minimum(privacy.ORDERS * a**2, a) * (1 + 1e-12))


def test_fixed_threshold_loss():
    # Many answers cost about the root of their number, where those of above_threshold cost as many.
    many = sparse_vector.fixed_threshold_loss(0.1, 0.01, 400)
    assert privacy.epsilon(many, 1e-6) < 0.45 * (0.1 + 400 * 0.01)
    assert many.rdp[-1] <= 0.1 + 400 * 0.01
    # Twice what randomized response costs: queries below are paid for.
    low = privacy.ORDERS <= 3
    parts = privacy.laplace(10.0).rdp + 400 * privacy.ORDERS * 0.01**2
    np.testing.assert_allclose(many.rdp[low], parts[low], rtol=4e-2)
    few = sparse_vector.fixed_threshold_loss(0.3, 0.4)
    assert np.all(few.rdp <= privacy.pure_dp(0.7).rdp)
    traced = jax.jit(sparse_vector.fixed_threshold_loss, static_argnums=2)
    assert np.all(np.isinf(traced(-1.0, 0.1, 2).rdp))
    assert np.all(np.isinf(traced(0.1, np.nan, 2).rdp))


RESETTING = {"max_answers": 2, "num_queries": 5}


def test_resetting_never_finds_a_query_that_is_three_bounds_below():
    scale = 6 * np.sqrt(2 * np.log(5e3))
    far = 3 * scale * np.log(5e4)
    stream = sparse_vector.resetting(10.0, 1.0, 1e-3, 2.0, **RESETTING)
    found = jax.vmap(
        lambda k: sparse_vector.outcomes(k, stream, jnp.full(5, 10.0 - 1.001 * 2.0 * far))
    )(jax.random.split(jax.random.key(0), 10_000))
    assert not np.any(found == 1)
    above = sparse_vector.outcomes(jax.random.key(1), stream, jnp.full(5, 10.0 + 1.001 * 2.0 * far))
    assert above.tolist() == [1, 1, -1, -1, -1]


def test_resetting_halts_after_its_queries():
    stream = sparse_vector.resetting(0.0, 1.0, 1e-3, 1.0, max_answers=2, num_queries=3)
    found = sparse_vector.outcomes(jax.random.key(1), stream, jnp.full(5, -1e6))
    assert found.tolist() == [0, 0, 0, -1, -1]
    assert privacy.epsilon(stream.loss, 2e-3) == pytest.approx(1.0, rel=1e-2)
    assert stream.loss.delta == 1e-3


def test_resetting_refuses_less_noise_than_is_proven():
    least = 6 * np.sqrt(2 * np.log(5e3))
    for bad, name in [
        ({"scale": 0.999 * least}, "scale"),
        ({"bound": 0.999 * least * np.log(5e4)}, "bound"),
        # A larger scale needs a larger bound.
        ({"scale": 2 * least, "bound": least * np.log(5e4)}, "bound"),
        ({"num_queries": 1}, "num_queries"),
    ]:
        with pytest.raises(ValueError, match=name):
            sparse_vector.resetting(0.0, 1.0, 1e-3, 1.0, **RESETTING | bad)
    with pytest.raises(ValueError, match="epsilon must be in"):
        sparse_vector.resetting(0.0, 1.1, 1e-3, 1.0, **RESETTING)


def test_the_printed_constants_of_resetting_are_proven():
    """What docs/theory/sparse_vector.md, section 4, adds up: composition, and what bounded noise misses."""
    for epsilon in (0.01, 0.3, 1.0):
        for delta in (1e-9, 1e-5, 0.1):
            for answers, queries in [(1, 1), (3, 3), (1, 10_000), (500, 10_000)]:
                scale = 6 / epsilon * np.sqrt(answers * np.log(5 / delta))
                rho = answers * (2 / scale) ** 2 / 2
                spent = rho + 2 * np.sqrt(rho * np.log(5 / delta))
                missed = (answers + queries) * delta / (10 * queries)
                assert spent <= 0.52 * epsilon
                assert delta / 5 + (1 + np.exp(spent)) * missed <= 0.75 * delta
