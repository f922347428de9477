"""Phases of tested means: noise, certificates, and the theorem on random batches by enumeration."""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import integrate, special, stats

from dpsco_jax import privacy
from dpsco_jax.privacy import loss, pld
from dpsco_jax.privacy.concentrated import _accounting as accounting
from dpsco_jax.privacy.concentrated import _coins, _loss
from dpsco_jax.privacy.concentrated import _proof as proof
from dpsco_jax.privacy.concentrated import _tests as noise
from dpsco_jax.privacy.concentrated._mean_sensitivity import selection_coins
from dpsco_jax.privacy.concentrated.threshold_phase import (
    calibrate_concentrated,
    coupled_sensitivity,
    mean_sensitivity,
)
from dpsco_jax.privacy.curves import composition, subsampling
from dpsco_jax.privacy.pld import pairs
from tests.support import edited_plans

REPLACE_ONE, ZERO_OUT = NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL


@functools.cache
def _plan(sizes, choices):
    users, steps, epsilon, delta = sizes
    return calibrate_concentrated(users, steps, epsilon, delta, **dict(choices))


def plan(*sizes, **choices):
    return _plan(sizes, tuple(sorted(choices.items())))


# The noise of the tests.


@pytest.mark.parametrize("epsilon", [0.25, 2.0])
@pytest.mark.parametrize("t", [0.0, 1.0, 20.0])
def test_a_low_score_passes_as_often_as_quadrature_says(epsilon, t):
    a, b = 4.0 / epsilon, 8.0 / epsilon

    def integrand(x):
        return stats.laplace.pdf(x, scale=a) * stats.laplace.sf(t - x, scale=b)

    exact = integrate.quad(integrand, -60 * a, 60 * a, points=[0, t], limit=400)[0]
    assert noise.wrong_pass("stream", t, epsilon, 2.0) == pytest.approx(exact, rel=1e-6)
    fresh = stats.laplace.sf(t, scale=2.0 / epsilon)
    assert noise.wrong_pass("fresh", t, epsilon, 2.0) == pytest.approx(fresh, rel=1e-9)
    for test in ("stream", "fresh"):
        traced = jax.jit(lambda g, e, test=test: noise.wrong_pass(test, g, e, 2.0))(t, epsilon)
        assert float(traced) >= noise.wrong_pass(test, t, epsilon, 2.0)
        assert noise.wrong_pass(test, -t - 1e-3, epsilon, 2.0) == 1.0


@pytest.mark.parametrize("test", ["stream", "fresh"])
@pytest.mark.parametrize("failure", [1e-300, 1e-9, 0.3])
def test_gaps_invert_the_probability_to_pass_by_mistake(test, failure):
    gap = noise.gap_for(test, failure, 0.5, 2.0)
    assert noise.wrong_pass(test, gap, 0.5, 2.0) == pytest.approx(failure, rel=1e-9)


def test_false_halts_of_a_stream_are_exact():
    # All scores at the threshold: the laws of one, two and three passes in a row are known.
    for steps, passes in ((1, 1 / 2), (2, 7 / 24), (3, 3 / 16)):
        assert noise.false_halt("stream", 0.0, steps, 0.5, 2.0) == pytest.approx(
            1 - passes, abs=5e-5
        )
    assert noise.false_halt("fresh", 0.0, 2, 0.5, 2.0) == pytest.approx(0.75)
    union = 200 * noise.wrong_pass("stream", 150.0, 0.5, 2.0)
    assert 0.9 * union < noise.false_halt("stream", 150.0, 200, 0.5, 2.0) < union
    for test in ("stream", "fresh"):
        gap = noise.false_halt_gap(test, 0.05, 200, 0.5, 2.0)
        assert noise.false_halt(test, gap, 200, 0.5, 2.0) == pytest.approx(0.05, rel=1e-4)


# Dominating pairs.


def curve(pair, epsilons):
    """Hockey-stick divergences, from below, of the masses on a fine grid of losses."""
    p, q = pair.cells(np.unique(np.concatenate([np.linspace(-8, 8, 8001), [0.0]])))
    return [float(np.sum(np.maximum(p - math.exp(e) * q, 0))) for e in epsilons]


def test_sampled_pairs_have_the_curve_that_amplification_gives():
    epsilons = np.array([-1.0, -0.2, 0.0, 0.1, 0.5, 1.5])
    for q in (0.03, 0.4):
        whole = accounting.with_response(pairs.gaussian(1.7), 0.6)
        found = curve(accounting.sampled_pair(whole, q), epsilons)

        def amplified(e, q=q):
            u = math.log1p(math.expm1(e) / q)
            return q * math.exp(composition.log_response_gaussian_delta(0.6, 1 / 1.7, u))

        exact = [
            amplified(e) if e >= 0 else 1 - math.exp(e) + math.exp(e) * amplified(-e)
            for e in epsilons
        ]
        np.testing.assert_allclose(found, exact, rtol=2e-3, atol=1e-9)
        gaussian = accounting.sampled_pair(pairs.gaussian(1.7), q)
        known = pairs.gaussian_without_replacement(1.7, q)
        np.testing.assert_allclose(curve(gaussian, epsilons), curve(known, epsilons), rtol=1e-9)


@pytest.mark.parametrize(
    ("sigma", "response", "q", "steps"), [(3.0, 0.1, 0.1, 200), (1.0, 0.2, 0.01, 2000)]
)
def test_the_renyi_curve_of_sampled_tests_is_above_the_pairs_and_close(sigma, response, q, steps):
    step = _loss.sampled_response_gaussian(sigma, response, q)
    pair = accounting.sampled_pair(accounting.with_response(pairs.gaussian(sigma), response), q)
    tight = pld.epsilon([(pair, steps)], 1e-6)
    ours = loss.epsilon(loss.scale(step, steps), 1e-6)
    assert tight < ours < 1.12 * tight
    traced = jax.jit(lambda s, e: _loss.sampled_response_gaussian(s, e, q).rdp)
    narrow = privacy.PrivacyLoss(np.asarray(traced(sigma, response), float), np.zeros(()))
    assert ours * (1 - 1e-5) < loss.epsilon(loss.scale(narrow, steps), 1e-6) < 1.01 * ours
    # Without a test it is the Gaussian's.
    alone = _loss.sampled_response_gaussian(sigma, 1e-9, q).rdp
    known = subsampling.subsampled_gaussian_of_fraction(sigma, q).rdp
    low = privacy.ORDERS < 10
    np.testing.assert_array_less(known[low] * (1 - 1e-6), alone[low])
    np.testing.assert_array_less(alone[low], 1.02 * known[low])


# Known plans.


@pytest.mark.parametrize(
    ("users", "steps", "epsilon", "radius", "threshold", "level", "kappa", "mu", "stddev"),
    [
        (5000, 1000, 1.0, 1.0, 4848.03, 4512, 8.41795, 0.122695, 0.433922),
        (1000, 60, 2.0, 0.3, 946.523, 801, 12.7348, 0.232445, 0.127312),
        (1000, 60, 8.0, 0.3, 986.631, 951, 6.77934, 0.816420, 0.0192961),
    ],
)
def test_the_plain_split_reproduces_reference_plans_and_the_search_beats_it(
    users, steps, epsilon, radius, threshold, level, kappa, mu, stddev
):
    """Half of ε and of δ for the tests, θ = 2/3, failures counted in each step: all by hand."""
    delta, test_epsilon = 1e-6, epsilon / 2
    scale = 8 / test_epsilon
    halts = scale * math.log(2 * steps / (3 * 0.05))
    wrong = scale * math.log(2 * steps / (3 * delta / 2))
    assert users - halts == pytest.approx(threshold, abs=6e-3)
    assert math.ceil(users - halts - wrong) == level
    shift = mean_sensitivity(users, level - 1, 2 / 3)
    assert users * shift == pytest.approx(kappa, rel=1e-5)
    distance = composition.response_gaussian_mu(test_epsilon, epsilon, delta / 2)
    assert distance == pytest.approx(mu, rel=1e-5)
    by_hand = shift * math.sqrt(steps) / distance
    assert radius * by_hand == pytest.approx(stddev, rel=1e-5)
    same = plan(users, steps, epsilon, delta, test="stream", keep_level=2 / 3, test_share=0.5)
    assert plan(users, steps, epsilon, delta).noise_stddev < 0.9 * same.noise_stddev
    assert same.noise_stddev < by_hand


PAPER = [
    (2000, 2000, 50, 2, 1e-5, "stream", 0.3477, 0.5),
    (5000, 2500, 50, 2, 1e-5, "stream", 0.4684, 0.3),
    (5000, 2500, 50, 2, 1e-5, "fresh", 0.888, None),
    (20000, 20000, 200, 2, 1e-6, "stream", 0.0433, 0.1),
    (20000, 20000, 200, 2, 1e-6, "fresh", 0.347, None),
    (20000, 5000, 200, 2, 1e-6, "stream", 0.2640, 0.2),
    (20000, 5000, 200, 2, 1e-6, "fresh", 0.363, None),
    (20000, 2000, 200, 2, 1e-6, "stream", 0.499, 0.5),
    (20000, 2000, 200, 2, 1e-6, "fresh", 0.392, None),
    (100000, 5000, 2000, 2, 1e-6, "stream", 0.1850, 0.2),
    (100000, 5000, 2000, 2, 1e-6, "fresh", 0.212, None),
    (1000, 1000, 30, 8, 1e-5, "stream", 0.1039, 0.2),
]


@pytest.mark.parametrize(
    ("users", "batch", "steps", "epsilon", "delta", "test", "stddev", "share"), PAPER
)
def test_paper_plans_reproduce_reference_values(
    users, batch, steps, epsilon, delta, test, stddev, share
):
    found = plan(users, steps, epsilon, delta, batch_size=batch, test=test, constants="paper")
    assert found.noise_stddev == pytest.approx(stddev, rel=0.01)
    if share is not None:
        assert found.test_epsilon == pytest.approx(share * epsilon, rel=1e-4)


@pytest.mark.parametrize(
    ("users", "batch", "steps", "epsilon", "delta"), sorted({row[:5] for row in PAPER})[1:5]
)
def test_tight_plans_need_a_quarter_of_the_papers_noise(users, batch, steps, epsilon, delta):
    papers = plan(users, steps, epsilon, delta, batch_size=batch, constants="paper")
    ours = plan(users, steps, epsilon, delta, batch_size=batch)
    assert ours.noise_stddev < 0.25 * papers.noise_stddev


def test_what_is_too_small_for_the_paper_is_refused_with_the_smallest_number():
    with pytest.raises(ValueError, match=r"num_users must be .*at least 1224 "):
        calibrate_concentrated(1223, 50, 2, 1e-5, constants="paper", test="stream")
    assert (
        calibrate_concentrated(1224, 50, 2, 1e-5, constants="paper", test="stream").test_epsilon
        > 1.19
    )
    with pytest.raises(ValueError, match=r"batch_size must be .*at least") as error:
        calibrate_concentrated(20000, 200, 2, 1e-6, batch_size=100, test="stream")
    least = int(str(error.value).split("at least ")[1].split()[0])
    assert (
        calibrate_concentrated(20000, 200, 2, 1e-6, batch_size=least, test="stream").noise_stddev
        > 0
    )
    with pytest.raises(ValueError, match="no room"):
        calibrate_concentrated(1000, 10, 1, 1e-6, threshold=0.5)


# Soundness of plans.

SIZES = [
    ((1500, 40, 2.0, 1e-6), {"test": "stream"}),
    ((1500, 1, 1.0, 1e-6), {}),
    ((400, 5, 4.0, 1e-5), {"test": "fresh"}),
    ((5000, 60, 2.0, 1e-6), {"batch_size": 1500, "test": "stream"}),
    ((5000, 60, 2.0, 1e-6), {"batch_size": 1500, "test": "fresh"}),
    ((1500, 40, 2.0, 1e-6), {"selection": "bernoulli"}),
    ((5000, 60, 2.0, 1e-6), {"batch_size": 1500, "selection": "bernoulli", "test": "stream"}),
    ((1500, 40, 2.0, 1e-6), {"relation": ZERO_OUT, "threshold": 0.8, "keep_level": 0.7}),
]


@pytest.mark.parametrize(("sizes", "choices"), SIZES)
def test_plans_spend_their_budget_and_no_more(sizes, choices):
    found = plan(*sizes, **choices)
    certificate = found.certificate()
    assert certificate.delta == sizes[3]
    assert 0.999 * sizes[2] < certificate.epsilon <= sizes[2]
    at_budget = found.delta_at(sizes[2])
    assert 0.99 * sizes[3] < at_budget <= sizes[3] * (1 + 1e-4)
    assert found.delta_at(0.7 * sizes[2]) > at_budget
    assert found.failure < sizes[3]
    assert found.core >= found.keep_level * found.batch_size
    if "threshold" not in choices:
        assert found.false_halt() == pytest.approx(0.05, rel=1e-3)
    else:
        assert found.threshold == pytest.approx(0.8 * found.batch_size, rel=1e-6)
    # What ledgers say: not less, and not much more.
    spent = float(loss.epsilon(found.loss(), sizes[3]))
    assert certificate.epsilon <= spent < 1.25 * certificate.epsilon
    if "selection" not in choices or "batch_size" not in choices:
        assert float(_traced_epsilon(found, sizes[3])) == pytest.approx(spent, rel=2e-2)


def test_less_noise_for_more_users_and_larger_budgets_and_more_for_more_steps():
    base = plan(1500, 40, 2.0, 1e-6, test="stream").noise_stddev
    assert plan(3000, 40, 2.0, 1e-6, test="stream").noise_stddev < 0.5 * base
    assert plan(1500, 40, 3.0, 1e-6, test="stream").noise_stddev < base
    assert plan(1500, 40, 2.0, 1e-5, test="stream").noise_stddev < base
    assert plan(1500, 80, 2.0, 1e-6, test="stream").noise_stddev > 1.3 * base
    assert plan(1500, 40, 2.0, 1e-6, test="stream", relation=ZERO_OUT).noise_stddev < base
    assert plan(1500, 40, 2.0, 1e-6, test="stream", keep_level=0.7).noise_stddev > base
    assert plan(1500, 40, 2.0, 1e-6, selection="bernoulli").noise_stddev > base


def test_random_selection_costs_a_third_more_noise_and_not_five_times_as_much():
    for sizes, choices in (
        ((1500, 40, 2.0, 1e-6), {}),
        ((5000, 60, 2.0, 1e-6), {"batch_size": 1500}),
    ):
        weighted = plan(*sizes, **choices, test="stream").noise_stddev
        kind = {"test": "stream"} if choices else {}
        random = plan(*sizes, **choices, **kind, selection="bernoulli").noise_stddev
        assert 1.05 * weighted < random < 1.35 * weighted


def test_random_selections_of_a_known_pair_are_dominated_by_the_mixture():
    """Clusters at 0, 1 and 3 and a user at 2 or -1: the law of the mean is a sum over cluster counts."""
    n, sizes, sigma = 60, (29, 19, 11), 0.12
    x = np.linspace(-1.5, 3.5, 4001)
    laws = []
    for user, degrees in ((2.0, (49, 60, 31, 60)), (-1.0, (49, 60, 30, 49))):
        chances = np.clip((np.array(degrees) - n / 2) / (n / 6), 0, 1)
        assert chances[0] == chances[1] == 1.0
        density = np.zeros_like(x)
        for kept in range(sizes[2] + 1):
            for own in (0, 1):
                weight = stats.binom.pmf(kept, sizes[2], chances[2])
                weight *= chances[3] if own else 1 - chances[3]
                mean = (sizes[1] + 3 * kept + user * own) / (sizes[0] + sizes[1] + kept + own)
                density += weight * stats.norm.pdf(x, mean, sigma)
        laws.append(density)
    core = math.ceil(0.690556 * n) - 1
    coins = selection_coins(n, core, 2 / 3, 1e-12)
    mu = coupled_sensitivity(n, core, 2 / 3, 1e-12) / sigma
    counts = np.arange(coins.most + 1)
    reach = (6 * 59 - 2 * core - 59) / 59
    np.testing.assert_allclose(sigma * mu * coins.fractions(), (2 + counts) * reach / core)
    # The ramp of float32 weights is steeper by 2^-21 θ/(θ - ½) = 4·2^-21.
    binomial = stats.binom.pmf(counts, 59 - core, (1 + 2**-19) / 10)
    np.testing.assert_allclose(coins.weights(), binomial, rtol=1e-6, atol=1e-12)
    pair = _coins.pair(coins, mu)
    epsilons = np.array([0.0, 0.2, 0.5, 1.0])
    mixture = curve(pair, epsilons)
    weights, parts = coins.weights(), mu * coins.fractions()
    exact = [
        sum(
            w * math.exp(composition.log_gaussian_delta(m, e))
            for w, m in zip(weights, parts, strict=True)
        )
        for e in epsilons
    ]
    np.testing.assert_allclose(mixture, exact, rtol=2e-3)
    for p, q in (laws, laws[::-1]):
        found = [np.trapezoid(np.maximum(p - math.exp(e) * q, 0), x) for e in epsilons]
        np.testing.assert_array_less(found, mixture)


def test_half_the_noise_is_not_within_the_budget():
    for sizes, choices in SIZES[:5]:
        found = plan(*sizes, **choices)
        broken = jax.tree.map(float, found)
        object.__setattr__(broken, "noise_stddev", 0.5 * found.noise_stddev)
        assert broken.certificate().epsilon > 1.2 * sizes[2]
        object.__setattr__(broken, "noise_stddev", found.noise_stddev)
        object.__setattr__(broken, "threshold", found.threshold - 0.1 * found.batch_size)
        assert broken.delta_at(sizes[2]) > 1.05 * sizes[3]


@pytest.mark.parametrize("selection", ["weighted", "bernoulli"])
def test_in_random_batches_the_special_user_is_replaced_by_one_with_a_weight(selection):
    """Its place in another batch is taken by a user who has a weight: the mean moves as for REPLACE_ONE."""
    found = plan(300, 60, 6.0, 1e-5, batch_size=100, test="stream", relation=ZERO_OUT)
    found = dataclasses.replace(found, selection=selection, coin_failure=1e-9)
    numbers = (100, found.core, found.keep_level)

    def shift(relation):
        if selection == "weighted":
            return mean_sensitivity(*numbers, relation)
        return coupled_sensitivity(*numbers, 1e-9, relation)

    assert shift(ZERO_OUT) < 0.99 * shift(REPLACE_ONE)
    assert found.sensitivity == pytest.approx(shift(REPLACE_ONE), rel=1e-9)
    replaced = dataclasses.replace(found, relation=REPLACE_ONE)
    assert found.certificate().epsilon == replaced.certificate().epsilon
    np.testing.assert_array_equal(found.loss().rdp, replaced.loss().rdp)
    everybody = dataclasses.replace(found, population_size=100)
    assert everybody.sensitivity == pytest.approx(shift(ZERO_OUT), rel=1e-9)


def test_the_noise_for_random_batches_is_that_of_replacement_under_both_relations():
    settings = {"batch_size": 100, "test": "fresh"}
    noises = [
        plan(300, 5, 6.0, 1e-5, **settings, relation=r).noise_stddev
        for r in (ZERO_OUT, REPLACE_ONE)
    ]
    assert noises[0] == noises[1]


# Claims are functions of the numbers that run.


@functools.partial(jax.jit, static_argnums=1)
def _traced_epsilon(releases, delta):
    """In one program for all numbers of phases of the same sizes."""
    return loss.epsilon(releases.loss(), delta)


def _claims(releases, delta):
    """ε of the loss, eager and traced, and of the certificate."""
    eager = float(loss.epsilon(releases.loss(), delta))
    traced = float(_traced_epsilon(releases, delta))
    assert traced == pytest.approx(eager, rel=2e-2) or eager == traced == math.inf
    return eager, releases.certificate().epsilon


@pytest.mark.parametrize("selection", ["weighted", "bernoulli"])
@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("threshold", 0.9),
        ("test_epsilon", 0.1),
        ("test_epsilon", 3.0),
        ("noise_stddev", 0.5),
        ("keep_level", 0.8),
    ],
)
def test_a_number_that_runs_changes_both_claims(selection, name, worse):
    found = plan(1500, 40, 2.0, 1e-6, test="stream", selection=selection)
    edited = dataclasses.replace(found, **{name: worse * getattr(found, name)})
    spent, certified = _claims(edited, 1e-6)
    assert spent >= certified > 1.02 * 2.0


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, 0.0])
@pytest.mark.parametrize(
    "name", ["keep_level", "threshold", "core", "test_epsilon", "noise_stddev", "coin_failure"]
)
def test_numbers_out_of_range_prove_nothing(name, value):
    found = plan(1500, 40, 2.0, 1e-6, selection="bernoulli")
    edited = dataclasses.replace(found, **{name: value})
    assert _claims(edited, 1e-6) == (math.inf, math.inf)
    assert edited.delta_at(2.0) == 1.0
    assert edited.failure >= 1.0


def test_whatever_the_proof_chooses_is_a_bound_and_some_prove_more():
    """A Gaussian and a response by hand; every core gives a true claim, none a better than the best."""
    found = plan(1500, 40, 2.0, 1e-6, test="stream", keep_level=0.7)
    best = edited_plans.tested(found, 1e-6)
    for core in (
        found.core - 40.0,
        found.core - 0.5,
        found.core,
        found.core + 7.0,
        found.core + 200.0,
    ):
        spent, certified = _claims(dataclasses.replace(found, core=core), 1e-6)
        assert spent >= certified >= best * (1 - 1e-6)
    assert _claims(dataclasses.replace(found, core=1500.0), 1e-6) == (math.inf, math.inf)
    assert _claims(dataclasses.replace(found, core=0.69 * 1500), 1e-6) == (math.inf, math.inf)


def test_what_was_proven_is_no_field():
    fields = {field.name for field in dataclasses.fields(plan(1500, 1, 1.0, 1e-6))}
    assert not fields & {"sensitivity", "failure", "score_sensitivity"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 3000}, r"batch_size must be an integer in \[2, 1500\], got 3000"),
        ({"num_steps": 0}, "num_steps must be an integer at least 1, got 0"),
        ({"population_size": 1499}, "batch_size must be an integer"),
        ({"relation": "REPLACE_SPECIAL"}, "relation must be of type NeighboringRelation"),
        ({"relation": NeighboringRelation.ADD_OR_REMOVE_ONE}, "relation must be one of"),
        ({"test": "none"}, "test must be one of stream, fresh, got 'none'"),
        ({"selection": None}, "selection must be of type str, got None"),
    ],
)
def test_sizes_and_words_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(plan(1500, 1, 1.0, 1e-6), **change)


def test_where_sampling_alone_is_enough_there_is_next_to_no_noise():
    found = plan(50_000, 3, 1.0, 0.3, batch_size=5000)
    assert found.certificate().epsilon <= 1.0
    assert found.sensitivity / found.noise_stddev == pytest.approx(100.0, rel=1e-5)


def test_one_release_pays_the_larger_of_two_failures():
    found = plan(1500, 1, 1.0, 1e-6)
    assert found.test == "fresh"
    phase = proof.Phase("fresh", 1.0, 1, 0.3, 2e-7, 0.0, 0.1)
    alone = accounting.delta_at(phase._replace(wrong_pass=0.0), 0.6)
    assert accounting.delta_at(phase, 0.6) == max(alone, 2e-7)
    stream = accounting.delta_at(phase._replace(test="stream"), 0.6)
    assert stream == pytest.approx(alone + 2e-7)


@pytest.mark.parametrize("test", ["stream", "fresh"])
def test_everything_is_paid_for(test):
    """Tests are, though the values tell nothing; mistakes and coins come on top."""
    silent = proof.Phase(test, 0.25, 8, 0.5, 0.0, 0.0, 1e-5)
    response = math.log1p(0.25 * math.expm1(0.5))
    least = 0.5 if test == "stream" else 0.0
    spent = accounting.epsilon_at(silent, 1e-4)
    assert least <= spent < least + 8 * response
    if test == "fresh":
        assert spent > 2 * response
    ever = 1 - 0.75**8
    assert proof.test_failure(silent._replace(wrong_pass=1e-3)) == pytest.approx(ever * 1e-3)
    assert accounting.epsilon_at(silent._replace(wrong_pass=1e-3), 0.9 * ever * 1e-3) == math.inf
    coins = proof.coin_failure(silent._replace(coin_failure=1e-6, mu=1.0))
    rate = silent.effective_rate
    assert 8 * rate * 1e-6 < coins < 1.5 * 8 * rate * 1e-6
    assert rate > 0.25 if test == "stream" else rate == 0.25
    # A guess of ε that serves the search only.
    loud = silent._replace(mu=0.3, wrong_pass=1e-7)
    exact = accounting.epsilon_at(loud, 1e-5)
    assert exact < accounting.quick_epsilon(loud, 1e-5) < 1.25 * exact
    assert accounting.delta_at(loud, exact) == pytest.approx(1e-5, rel=5e-3)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"batch_size": 3000}, "batch_size must be"),
        ({"keep_level": 0.5}, "keep_level must be"),
        ({"test_share": 0.0}, "test_share must be"),
        ({"relation": NeighboringRelation.ADD_OR_REMOVE_ONE}, "relation must be"),
    ],
)
def test_bad_choices_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        calibrate_concentrated(2000, 10, 1.0, 1e-6, **choices)


# The theorem on random batches, by enumeration of all transcripts.


class SmallPhase:
    """Four users, batches of two, two steps, scores and values of any kind that the proof admits."""

    users, size, steps, score_move = 4, 2, 2, 2.0

    def __init__(self, rng, test_epsilon, mu, gap):
        self.batches = list(itertools.combinations(range(self.users), self.size))
        self.test_epsilon, self.mu = test_epsilon, mu
        # Around a common level, by one move of the score between any two that are a replacement apart.
        level = rng.choice([-1.0, 0.0, 1.0]) * self.score_move * 4
        extreme = rng.choice([0.0, 0.5, 1.0], (2, 2, len(self.batches)))
        values = rng.choice([0.0, 1.0], (2, 2, len(self.batches)))
        self.scores = level + self.score_move * extreme  # [data set, half of first values, batch]
        self.values = mu * values
        without = [0 not in batch for batch in self.batches]
        self.scores[1][:, without] = self.scores[0][:, without]
        self.values[1][:, without] = self.values[0][:, without]
        # One batch with the user need not be concentrated: then scores are at most `gap` below, values free.
        self.bad = 0 if gap is not None else None
        if gap is not None:
            self.scores[:, :, 0] = np.minimum(self.scores[:, :, 0], -gap)
            self.scores = np.clip(self.scores, -gap - 2.0, -gap + 2.0)
            self.values[1, :, 0] += 20.0
        self.gap = gap

    def laws(self, cells=24, nodes=400):
        """For both data sets, the probabilities of all transcripts, values on a grid of cells."""
        edges = np.concatenate([[-np.inf], np.linspace(-4, 4 + self.mu, cells - 1), [np.inf]])
        noise_scale = 2 * self.score_move / self.test_epsilon
        grid = (np.arange(nodes) + 0.5) / nodes
        thresholds = stats.laplace.ppf(grid, scale=noise_scale)
        result = []
        for scores, values in zip(self.scores, self.values, strict=True):
            passing = stats.laplace.sf(
                thresholds[:, None, None] - scores[None], scale=2 * noise_scale
            )  # [threshold, half, batch]
            shape = (len(edges) - 1,)
            cell = np.diff(stats.norm.cdf(edges[None, None] - values[..., None]), axis=-1)
            kernel = np.einsum("thb,hbc->thc", passing, cell) / len(self.batches)
            half = (edges[:-1] >= 0.5 * self.mu).astype(int)  # of the first value: what queries see
            fail = 1.0 - kernel.sum(-1)
            first, later = kernel[:, 0], kernel[:, half]
            outcomes = [
                fail[:, 0].mean(keepdims=True),
                np.mean(first * fail[:, half], 0),
                np.einsum("tc,tcd->cd", first, later).reshape(-1) / nodes,
            ]
            assert shape == first.shape[1:]
            result.append(np.concatenate(outcomes))
        return result

    def bound(self, epsilon):
        rate = self.size / self.users
        wrong = (
            0.0
            if self.gap is None
            else noise.wrong_pass("stream", self.gap, self.test_epsilon, 2.0)
        )
        phase = proof.Phase("stream", rate, self.steps, self.test_epsilon, wrong, 0.0, self.mu)
        return accounting.delta_at(phase, epsilon)


@pytest.mark.parametrize("gap", [None, 6.0])
def test_no_small_phase_with_random_batches_exceeds_the_theorem(gap):
    """Exact laws, up to quadrature over the noisy threshold."""
    rng, tightest = np.random.default_rng(1), 0.0
    for _ in range(25):
        small = SmallPhase(rng, test_epsilon=0.5, mu=1.2, gap=gap)
        ours, others = small.laws()
        np.testing.assert_allclose((ours.sum(), others.sum()), 1.0, rtol=1e-9)
        for epsilon in (0.9, 1.6):
            for p, q in ((ours, others), (others, ours)):
                exact = float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)))
                bound = _bound(gap, epsilon)
                assert exact <= bound
                tightest = max(tightest, exact / bound)
    assert tightest > 0.03


@functools.cache
def _bound(gap, epsilon):
    return SmallPhase(np.random.default_rng(0), 0.5, 1.2, gap).bound(epsilon)


def test_bits_are_paid_for_although_batches_are_random():
    """Values are the same on both data sets, and yet the bits alone exceed what values may cost."""
    small = SmallPhase(np.random.default_rng(0), test_epsilon=0.5, mu=0.05, gap=None)
    small.values[:] = 0.0
    without = np.array([0 not in batch for batch in small.batches])
    small.scores[0], small.scores[1] = 0.0, np.where(without, 0.0, -2.0)
    ours, others = small.laws()
    values_alone = proof.Phase("stream", 0.5, 2, 1e-9, 0.0, 0.0, 0.05)
    exact = float(np.sum(np.maximum(ours - math.exp(0.06) * others, 0)))
    assert exact > 5 * accounting.delta_at(values_alone, 0.06)


@pytest.mark.parametrize("test_epsilon", [0.5, 4.0])
def test_a_step_is_amplified_at_the_effective_rate_and_not_at_the_rate(test_epsilon):
    """Passing batches prefer the user by e^(ε₁/4); its value moves from the others' to μ."""
    users, size, mu = 5, 2, 1.0
    rate, preference = size / users, math.exp(0.25 * test_epsilon)
    x = np.linspace(-9, 10, 20_001)
    spacing = x[1] - x[0]
    effective = proof.effective_rate(rate, test_epsilon)
    rng, exceeds_rate, tightest = np.random.default_rng(2), 0.0, 0.0
    batches = list(itertools.combinations(range(users), size))
    has = np.array([0 in batch for batch in batches])
    for trial in range(40):
        weights = np.where(has, 1.0, 1 / preference)
        places = np.where(has, 1.0, 0.0), np.zeros(len(batches))
        if trial:
            top = rng.choice([1.0, 0.3])
            weights = top * preference ** -rng.choice([0.0, 0.5, 1.0], len(batches))
            places = rng.choice([0.0, 1.0], (2, len(batches)))
            places[1][~has] = places[0][~has]
        p, q = (
            np.exp(-0.5 * (x[:, None] - mu * place) ** 2) @ weights / math.sqrt(2 * math.pi)
            for place in places
        )
        for epsilon in (0.0, 0.3, 1.0):
            exact = spacing * np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) / len(batches)

            def curve_at(r, epsilon=epsilon):
                u = math.log1p(math.expm1(epsilon) / r)
                return r * math.exp(composition.log_gaussian_delta(mu, u))

            assert exact <= curve_at(effective) * (1 + 1e-6)
            tightest = max(tightest, exact / curve_at(effective))
            exceeds_rate = max(exceeds_rate, exact / curve_at(rate))
    assert tightest > 0.6
    if test_epsilon == 4.0:
        assert exceeds_rate > 1.05


@pytest.mark.parametrize("test_epsilon", [0.5, 3.0, 8.0])
def test_halting_laws_diverge_by_less_than_the_ledger_charges_for_a_stream(test_epsilon):
    """By quadrature over the noisy threshold: scores that differ by up to 2, in either direction."""
    rng, steps, orders = np.random.default_rng(0), 4, privacy.ORDERS
    quiet = dataclasses.replace(plan(1500, 40, 2.0, 1e-6, test="stream"), num_steps=steps)
    quiet = dataclasses.replace(quiet, test_epsilon=test_epsilon, noise_stddev=1e9)
    charged = quiet.loss().rdp
    xi = np.linspace(-60, 60, 40001) * 4 / test_epsilon
    weight = stats.laplace.pdf(xi, scale=4 / test_epsilon) * (xi[1] - xi[0])

    def law(scores):
        passing = stats.laplace.sf(xi[:, None] - scores, scale=8 / test_epsilon)
        reached = np.cumprod(np.concatenate([np.ones((len(xi), 1)), passing], 1), 1)
        failed = np.concatenate([1 - passing, np.ones((len(xi), 1))], 1)
        return weight @ (reached * failed)

    most = np.zeros(len(orders))
    for scale in (1.0, 10.0):
        for _ in range(40):
            scores = scale / test_epsilon * rng.normal(size=steps)
            signs = rng.choice([-2.0, 2.0], size=steps) if rng.random() < 0.5 else 2.0
            for p, q in itertools.permutations((law(scores), law(scores + signs))):
                terms = orders[:, None] * np.log(p) + (1 - orders[:, None]) * np.log(q)
                found = special.logsumexp(terms, axis=1) / (orders - 1)
                most = np.maximum(most, found)
    assert np.all(most <= charged * (1 + 1e-3) + 1e-6)
    assert np.max(most / charged) > 0.2


def test_a_phase_that_fails_more_often_than_not_has_no_curve():
    """Conditioned on what does not fail, the curve grows by α/(α-1)·log(1/(1-ζ)), for every ζ."""
    phase = plan(1500, 40, 2.0, 1e-6, test="fresh")
    seen = set()
    for threshold in np.linspace(float(phase.core), float(phase.threshold), 30):
        loss = dataclasses.replace(phase, threshold=threshold).loss()
        failure = float(loss.delta)
        seen.add(failure > 0.5)
        assert bool(np.all(np.isfinite(np.asarray(loss.rdp)))) == (failure <= 0.5), failure
    assert seen == {True, False}
