"""Audits: never above the truth, close to it with enough runs, and zero where there is nothing."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.privacy import audit, audit_scores, epsilon_lower_bound
from dpsco_jax.privacy.audits import auditing


def test_counts_against_exact_binomial_tails():
    runs, true, false, delta, confidence = 1000, 400, 100, 1e-3, 0.9
    found = epsilon_lower_bound(true, false, runs, delta, confidence)
    # Clopper-Pearson: the rates at which the counts are as surprising as half the error probability.
    rate = stats.binomtest(true, runs).proportion_ci(confidence, "exact").low
    other = stats.binomtest(false, runs).proportion_ci(confidence, "exact").high
    by_event = math.log((rate - delta) / other)
    by_complement = math.log((1 - other - delta) / (1 - rate))
    assert found == pytest.approx(max(by_event, by_complement), rel=1e-9)


def test_the_complement_of_the_event_counts_too():
    # Almost all runs on one side, all on the other: the rare event is the complement.
    found = epsilon_lower_bound(10_000, 5_000, 10_000, 0.0)
    assert found > 6.0
    assert found == pytest.approx(epsilon_lower_bound(5_000, 0, 10_000, 0.0), rel=1e-9)


def test_counts_at_the_ends():
    assert epsilon_lower_bound(0, 0, 10, 1e-5) == 0.0
    assert epsilon_lower_bound(10, 10, 10, 1e-5) == 0.0
    assert epsilon_lower_bound(0, 10, 10, 1e-5) == 0.0
    # One run proves next to nothing, whatever it shows.
    assert epsilon_lower_bound(1, 0, 1, 0.0) == 0.0
    assert epsilon_lower_bound(50, 50, 100, 1e-5) == 0.0
    assert np.isfinite(epsilon_lower_bound(10, 0, 10, 0.0))
    # δ alone explains an event that is rarer than it.
    assert epsilon_lower_bound(50, 0, 1000, 0.2) == 0.0


def test_bound_grows_with_the_evidence():
    runs = np.array([100, 1000, 10_000])
    bounds = [epsilon_lower_bound(3 * n // 4, n // 4, int(n), 0.0) for n in runs]
    assert np.all(np.diff(bounds) > 0)
    assert bounds[-1] < math.log(3)
    many = epsilon_lower_bound(np.array([10, 75]), np.array([10, 25]), 100, 0.0)
    np.testing.assert_allclose(many, [0.0, bounds[0]])


def test_coverage_over_many_repetitions():
    # Randomized response with ε = 1: the bound must exceed 1 in at most 5 % of repetitions.
    rng = np.random.default_rng(0)
    p = 1 / (1 + math.exp(-1.0))
    true, false = rng.binomial(200, p, 4000), rng.binomial(200, 1 - p, 4000)
    exceeding = np.mean(epsilon_lower_bound(true, false, 200, 0.0, 0.95) > 1.0)
    assert 0.0 < exceeding <= 0.05


def test_scores_of_equal_laws_prove_nothing():
    rng = np.random.default_rng(1)
    scores, others = rng.normal(size=(2, 4000))
    assert audit_scores(scores, others, 1e-5, 0.999).epsilon == 0.0
    constant = np.zeros(100)
    assert audit_scores(constant, constant, 1e-5).epsilon == 0.0


def test_the_direction_of_the_score_does_not_matter():
    rng = np.random.default_rng(2)
    low, high = rng.laplace(size=20_000), 1 + rng.laplace(size=20_000)
    found = [
        audit_scores(a, b, 0.0).epsilon
        for a, b in ((low, high), (high, low), (-low, -high), (-high, -low))
    ]
    assert all(0.75 < bound <= 1.0 for bound in found)


def test_a_nan_that_tells_is_heard():
    rng = np.random.default_rng(3)
    scores, others = rng.normal(size=(2, 2000))
    found = audit_scores(scores, np.where(rng.random(2000) < 0.3, np.nan, others), 1e-5)
    assert found.epsilon > 3.0


@pytest.mark.parametrize("swapped", [False, True])
def test_the_threshold_is_chosen_on_other_runs_than_are_counted(swapped):
    # A separation that only the first quarter shows must not count.
    scores, others = np.zeros(400), np.zeros(400)
    others[:100] = 1.0
    found = audit_scores(*((others, scores) if swapped else (scores, others)), 0.0)
    assert found.num_runs == 300
    assert (found.true_positives, found.false_positives, found.epsilon) == (0, 0, 0.0)


@pytest.fixture(scope="module")
def gaussian_mechanism():
    # σ over sensitivity 3.73063: ε = 1 at δ = 1e-5, exactly.
    return lambda key, data: jnp.sum(data) + 3.73063 * jax.random.normal(key)


def test_audit_of_a_small_mechanism(gaussian_mechanism):
    data, neighbour = jnp.zeros(3), jnp.array([0.0, 1.0, 0.0])
    run = lambda key, mechanism: audit(  # noqa: E731
        key, mechanism, data, neighbour, lambda output: output, 40_000, 1e-5, batch_size=1000
    )
    found = run(jax.random.key(0), gaussian_mechanism)
    assert 0.3 < found.epsilon <= 1.0
    assert found.num_runs == 30_000
    # The same key gives the same audit; noise made for half the sensitivity is seen through.
    assert run(jax.random.key(0), gaussian_mechanism) == found
    weak = run(jax.random.key(0), lambda key, data: gaussian_mechanism(key, 4.0 * data))
    assert weak.epsilon > 2.0


def test_all_runs_have_their_own_noise(monkeypatch):
    seen = []
    monkeypatch.setattr(auditing, "audit_scores", lambda *arguments: seen.extend(arguments[:2]))
    audit(
        jax.random.key(1), lambda key, _: jax.random.uniform(key), 0.0, 1.0, lambda o: o, 50, 1e-5
    )
    assert len(np.unique(np.concatenate(seen))) == 100


def test_audit_of_neighbours_of_different_shape(gaussian_mechanism):
    found = audit(
        jax.random.key(2),
        gaussian_mechanism,
        jnp.zeros(2),
        jnp.full(3, 5.0),
        lambda output: output,
        2000,
        1e-5,
    )
    assert found.epsilon > 3.0


def test_counts_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="true_positives"):
        epsilon_lower_bound(11, 0, 10, 0.0)
    with pytest.raises(ValueError, match="equally many"):
        audit_scores(np.zeros(3), np.zeros(4), 1e-5)


@pytest.mark.slow
def test_enough_runs_prove_four_fifths_of_epsilon(gaussian_mechanism):
    found = audit(
        jax.random.key(0),
        gaussian_mechanism,
        jnp.zeros(1),
        jnp.ones(1),
        lambda output: output,
        16_000_000,
        1e-5,
        batch_size=65_536,
    )
    assert 0.8 <= found.epsilon <= 1.0


@pytest.mark.slow
def test_the_sampled_gaussian_stays_below_its_certificate():
    # Ten steps, batches of 2 out of 6, replace-one; the transcript's exact likelihood ratio is the score.
    from dp_accounting import NeighboringRelation

    from dpsco_jax.privacy import WithoutReplacement, certificate
    from dpsco_jax.privacy.dp_accounting import events

    sampling, steps, sigma, delta = WithoutReplacement(6, 2), 10, 1.5, 1e-5
    claimed = certificate(
        events.repeated(sampling.gaussian_event(sigma), steps),
        delta,
        NeighboringRelation.REPLACE_ONE,
    ).epsilon

    def mechanism(key, sign):
        def step(key):
            batch_key, noise_key = jax.random.split(key)
            drawn = jax.random.uniform(batch_key) < 1 / 3
            # The contributions of the others are zero; that of the record is ±1/2, sensitivity 1.
            return 0.5 * sign * drawn + sigma * jax.random.normal(noise_key)

        return jax.vmap(step)(jax.random.split(key, steps))

    def score(outputs):
        mixture = lambda sign: jnp.log(  # noqa: E731
            2 / 3 + jnp.exp((sign * outputs - 0.25) / (2 * sigma**2)) / 3
        )
        return jnp.sum(mixture(1.0) - mixture(-1.0))

    found = audit(
        jax.random.key(1),
        mechanism,
        jnp.asarray(-1.0),
        jnp.asarray(1.0),
        score,
        4_000_000,
        delta,
        batch_size=65_536,
    )
    assert 0.5 * claimed <= found.epsilon <= claimed
