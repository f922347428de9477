"""Section M of docs/corrections.md: tests, sensitivity and accounting of the mean of inliers."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpsco_jax.privacy.concentrated import _proof, _tests
from dpsco_jax.privacy.concentrated.threshold_phase import (
    calibrate_concentrated,
    coupled_sensitivity,
    mean_sensitivity,
)
from dpsco_jax.privacy.curves import composition


def score_degrees_weights_mean(vectors, keep_level=2 / 3, removal_radius=2.0):
    """The mechanism's definitions, radius 1, for vectors [n, d]."""
    n = len(vectors)
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    score = np.sum(distances <= 1 + 1e-9) / n
    degrees = np.sum(distances <= removal_radius + 1e-9, axis=1)
    weights = np.clip((degrees - n / 2) / ((keep_level - 0.5) * n), 0, 1)
    return score, degrees, weights, weights @ vectors / max(weights.sum(), 1e-9)


def on_a_line(first, places, counts):
    return np.concatenate([[first], np.repeat(np.asarray(places, float), counts)])[:, None]


def test_m1_the_printed_noise_does_not_cover_what_a_user_can_move():
    # T = 1, ε = 1, δ = 1e-6; the part of the Gaussian in the printed proof is (ε/2, δ/(2 e^(ε/2))).
    epsilon, delta, n = 1.0, 1e-6, 60
    log_term = math.log(math.exp(epsilon / 2) / delta)
    printed = math.sqrt(8 * log_term * log_term) / (n * epsilon)
    share = epsilon / 2, delta / (2 * math.exp(epsilon / 2))
    covered = composition.response_gaussian_mu(0.0, *share) * printed
    assert n * covered == pytest.approx(4.74, abs=0.05)
    pair = [on_a_line(end, (0, 1, 3), (29, 19, 11)) for end in (2.0, -1.0)]
    (score, _, _, mean), (other, _, _, moved) = map(score_degrees_weights_mean, pair)
    assert min(score, other) > 2 * n / 3 + 1  # where the printed lemma claims concentration
    shift = float(np.abs(mean - moved)[0])
    assert n * shift == pytest.approx(7.061, abs=1e-3)
    spent = composition.log_gaussian_delta(shift / printed, share[0])
    assert spent > math.log(30 * share[1])
    level = math.ceil(max(score, other)) - 1
    assert mean_sensitivity(n, level, 2 / 3) > shift


def test_m2_the_printed_number_of_users_does_not_separate_the_levels():
    # n = 40 log(4T/δ)/ε, threshold 4n/5, noise of the printed (too small) scales 4/ε and 8/ε.
    epsilon, delta, steps = 1.0, 1e-6, 1000
    n = 40 * math.log(4 * steps / delta) / epsilon
    gap = 4 * n / 5 - 2 * n / 3
    wrong = _tests.wrong_pass("stream", gap, epsilon, 2.0)
    assert steps * wrong > 100 * delta  # what the printed proof sums
    assert _tests.wrong_pass("stream", gap, epsilon, 4.0) > 100 * delta
    enough = 120 * math.log(2 * steps / (3 * delta)) / epsilon + 7.5
    gap = 4 * enough / 5 - 2 * enough / 3 - 1
    assert steps * _tests.wrong_pass("stream", gap, epsilon, 4.0) <= delta
    # For passing, n >= (8 log(T/γ) + 8 log(T/δ))/ε is printed: perfect data then mostly halt.
    users = 8 * (math.log(steps / 0.05) + math.log(steps / delta)) / epsilon
    assert _tests.false_halt("stream", users / 5, steps, epsilon / 2, 2.0) > 0.5
    with pytest.raises(ValueError, match=r"num_users must be .*at least"):
        calibrate_concentrated(int(users), steps, epsilon, delta, test="stream")


def test_m3_weights_change_by_up_to_seven_not_two():
    n = 600
    angles = 2 * np.pi * np.arange(n - 1) / (n - 1)
    circle = 1.25 * np.stack([np.cos(angles), np.sin(angles)], -1)
    weights = [
        score_degrees_weights_mean(np.concatenate([[user], circle]))[2]
        for user in ([0.0, 0.0], [90.0, 0.0])
    ]
    # All others have n/2 + 1 users within reach with the first one in the middle, and one less without.
    assert 5 < np.sum(np.abs(weights[0] - weights[1])) <= 7 - 6 / n + 1e-9
    # Given a passed test, the shared weights change by 2 at most.
    pair = [on_a_line(end, (0, 1, 3), (29, 19, 11)) for end in (2.0, -1.0)]
    (score, _, ours, _), (_, _, others, _) = map(score_degrees_weights_mean, pair)
    level = math.ceil(score) - 1
    change = np.sum(np.abs(ours - others)[1:])
    assert change == pytest.approx(1.1)
    assert change <= 6 * (59 - level) / 60 <= 2


def test_m4_a_replaced_user_counts_on_both_sides_though_its_coins_agree():
    n = 100
    pair = [on_a_line(end, (0.0,), (n - 1,)) for end in (1.99, -1.99)]
    (_, _, ours, mean), (_, _, others, moved) = map(score_degrees_weights_mean, pair)
    np.testing.assert_array_equal(ours, 1.0)
    np.testing.assert_array_equal(others, 1.0)
    # No coin can differ, so the printed count of differing users is 0; yet:
    assert float(np.abs(mean - moved)[0]) == pytest.approx(2 * 1.99 / n)
    assert coupled_sensitivity(n, n - 1, 2 / 3, 1e-6) >= 2 * 1.99 / n


def test_m5_failures_of_a_stream_count_once():
    # 200 scores, all of them ten scales of the noise below the threshold.
    steps, test_epsilon, gap = 200, 0.5, 160.0
    scale = 4 / test_epsilon

    def some_pass_and_the_run_goes_on(x):
        # The run ends at the first failure: only a pass at the first of them counts.
        return stats.laplace.pdf(x, scale=scale) * stats.laplace.sf(gap + x, scale=2 * scale)

    points = [-gap, 0.0]
    exact = integrate.quad(some_pass_and_the_run_goes_on, -60 * scale, 60 * scale, points=points)[0]
    once = _tests.wrong_pass("stream", gap, test_epsilon, 2.0)
    assert once == pytest.approx(exact, rel=1e-6)
    phase = _proof.Phase("stream", 1.0, steps, test_epsilon, once, 0.0, 0.01)
    assert _proof.test_failure(phase) == once
    # Printed: a union over steps, times e^(ε/2) for the two-sided conditioning.
    assert once < 0.01 * math.exp(test_epsilon) * steps * once


def test_m6_values_are_not_amplified_at_the_rate_given_the_bits():
    # Batches with the user pass surely, the others with e^(-ε₁/4) of that: one step at fixed threshold.
    test_epsilon, rate, mu, epsilon = 4.0, 0.4, 1.0, 1.0
    with_user, without = rate, (1 - rate) * math.exp(-test_epsilon / 4)
    passes = with_user + without
    u = math.log(1 + math.expm1(epsilon) * passes / with_user)
    exact = with_user * math.exp(composition.log_gaussian_delta(mu, u))

    def amplified(at_rate):
        inner = math.log1p(math.expm1(epsilon) / at_rate)
        return at_rate * math.exp(composition.log_gaussian_delta(mu, inner))

    assert exact > 1.05 * amplified(rate)
    assert exact < amplified(_proof.effective_rate(rate, test_epsilon))


def test_m7_with_one_radius_for_score_and_removal_the_core_loses_its_weight():
    # 12 % at -1, 38 % at 0, 50 % at 1: all are within the radius of those at 0, and the score passes.
    vectors = np.repeat([-1.0, 0.0, 1.0], [12, 38, 50])[:, None]
    score, _, weights, _ = score_degrees_weights_mean(vectors, removal_radius=1.0)
    assert score > 80
    np.testing.assert_array_equal(weights[:12], 0.0)
    np.testing.assert_array_equal(score_degrees_weights_mean(vectors)[2], 1.0)


def test_m8_the_printed_laplace_noise_fails_more_often_than_its_proof_says():
    n, m, epsilon, delta = 10_000, 10, 10.0, 1e-6
    groups = 100 * math.log(20 * n * m * math.exp(epsilon) / delta) / epsilon
    exceeds = math.exp(-(2 * groups / 15) / (20 / epsilon))
    claimed = delta / (10 * math.exp(epsilon))
    assert exceeds == pytest.approx(8.0e-12, rel=0.02)
    assert claimed == pytest.approx(4.5e-12, rel=0.02)
    # One release with its own test: the same groups, certified.
    plan = calibrate_concentrated(round(groups), 1, epsilon, delta, test="fresh")
    assert plan.certificate().epsilon <= epsilon


@pytest.mark.parametrize(
    ("users", "batch", "steps", "epsilon", "delta"),
    [(2000, 2000, 50, 2, 1e-5), (20000, 5000, 200, 2, 1e-6), (100000, 5000, 2000, 2, 1e-6)],
)
def test_m9_the_printed_noise_of_the_accelerated_method_is_a_guess(
    users, batch, steps, epsilon, delta
):
    dim = 10
    log_term = math.log(users * dim * math.exp(epsilon) / delta)
    # 1000 τ √T log(·)/(εn) in units of the score radius 2τ; no log of T, one log where the proof has two.
    printed = 500 * math.sqrt(steps) * log_term / (epsilon * users)
    papers = calibrate_concentrated(
        users, steps, epsilon, delta, batch_size=batch, test="stream", constants="paper"
    )
    assert 12 < printed / papers.noise_stddev < 120
