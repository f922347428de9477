"""What an attacker can tell: exact mechanisms attain the bounds, and no rule of theirs goes above."""

import doctest
import itertools
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import optimize, stats

from dpsco_jax import Budget, privacy
from dpsco_jax.privacy import attacks

ROOT = Path(__file__).parents[2]
RATES = np.linspace(0.0, 1.0, 201)


def worst_mechanism(epsilon, delta):
    """The laws of four outputs under both data sets to which all (ε, δ)-DP mechanisms reduce."""
    share = (1 - delta) / (1 + np.exp(epsilon))
    one = np.array([delta, share * np.exp(epsilon), share, 0.0])
    return one, one[::-1]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-3), (1.0, 0.05), (3.0, 0.0 + 1e-9)])
def test_every_rule_of_the_worst_mechanism_is_below_and_the_best_attains(epsilon, delta):
    member, other = worst_mechanism(epsilon, delta)
    found = privacy.attack_advantage(Budget(epsilon, delta))
    best = 0.0
    for said in itertools.product([0, 1], repeat=4):
        true, false = np.dot(said, member), np.dot(said, other)
        assert true <= found.true_positives(false) + 1e-12
        best = max(best, true - false)
    np.testing.assert_allclose(best, found.advantage, rtol=1e-12)
    np.testing.assert_allclose(
        found.advantage, (np.exp(epsilon) - 1 + 2 * delta) / (np.exp(epsilon) + 1), rtol=1e-12
    )
    assert found.accuracy == 0.5 + found.advantage / 2


def test_the_share_of_true_positives_is_attained_at_every_share_of_false_ones():
    epsilon, delta = 1.0, 0.05
    member, other = worst_mechanism(epsilon, delta)
    found = privacy.attack_advantage(Budget(epsilon, delta))
    # Neyman and Pearson: outputs in the order of their likelihood ratio, the last one by a coin.
    false = np.concatenate([[0.0], np.cumsum(other)])
    true = np.concatenate([[0.0], np.cumsum(member)])
    np.testing.assert_allclose(
        found.true_positives(RATES), np.interp(RATES, false, true), atol=1e-12
    )


def test_the_best_attack_on_a_gaussian_release_is_below_the_bound_of_its_certificate():
    stddev = 1.3  # of one release, in sensitivities
    relation = NeighboringRelation.REPLACE_ONE
    for delta in (1e-6, 1e-3, 0.05):
        certificate = privacy.certificate(privacy.events.gaussian(stddev), delta, relation)
        truth = stats.norm.cdf(stats.norm.ppf(RATES) + 1 / stddev)
        bound = privacy.attack_advantage(certificate).true_positives(RATES)
        assert (truth <= bound + 1e-9).all()
    # At the δ of which the line touches the curve nothing is given away.
    assert np.min(bound - truth) < 1e-3


@pytest.mark.parametrize("records", [2, 5])
def test_several_records_of_one_person_are_a_chain_of_neighbours(records):
    epsilon, delta = 0.7, 1e-3
    found = privacy.attack_advantage(Budget(epsilon, delta), records)
    # Step by step: (ε, δ) for one more record turns (E, D) into (E + ε, D + e^E·δ).
    whole, failure = epsilon, delta
    for _ in range(records - 1):
        whole, failure = whole + epsilon, failure + np.exp(whole) * delta
    np.testing.assert_allclose([found.epsilon, found.delta], [whole, failure], rtol=1e-12)


def test_extremes_are_what_they_mean():
    nothing = privacy.Certificate(np.inf, 1e-6, NeighboringRelation.REPLACE_ONE, "none")
    found = privacy.attack_advantage(nothing)
    assert (found.advantage, found.accuracy) == (1.0, 1.0)
    np.testing.assert_allclose(found.true_positives([0.0, 1e-9, 1.0]), [1e-6, 1.0, 1.0])
    assert privacy.attack_advantage(Budget(800.0, 1e-6), 1000).advantage == 1.0
    perfect = privacy.attack_advantage(nothing._replace(epsilon=0.0), 3)
    np.testing.assert_allclose(perfect.delta, 3e-6)
    np.testing.assert_allclose(perfect.true_positives(RATES), np.minimum(RATES + 3e-6, 1.0))


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan, [0.1, 2.0]])
def test_shares_are_shares(bad):
    with pytest.raises(ValueError, match=r"false_positives must be in \[0, 1\]"):
        privacy.attack_advantage(Budget(1.0, 1e-6)).true_positives(bad)


def tables(text):
    """The rows of numbers of each table of a page, by its heading."""
    found = {}
    for block in text.split("\n\n"):
        rows = [
            line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("|")
        ]
        if rows:
            found.setdefault(rows[0][0], []).append(rows[2:])
    return found


def percent(values):
    return [f"{100 * value:.1f} %" for value in values]


def test_the_page_shows_what_is_true():
    found = tables((ROOT / "docs" / "what_epsilon_means.md").read_text())
    worst, gaussian = found["ε"]
    shares = [0.001, 0.01, 0.1]
    for epsilon, *said in worst:
        attack = privacy.attack_advantage(Budget(float(epsilon), 1e-6))
        assert said == percent([attack.accuracy, *attack.true_positives(shares)])
    for epsilon, *said in gaussian:

        def short(mu, epsilon=float(epsilon)):
            # Balle and Wang 2018, Theorem 8: the δ of one Gaussian release.
            found = stats.norm.cdf(mu / 2 - epsilon / mu)
            return found - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - 1e-6

        mu = optimize.brentq(short, 1e-3, 10.0)
        true = stats.norm.cdf(stats.norm.ppf(shares) + mu)
        assert said == percent([stats.norm.cdf(mu / 2), *true])
    ((*rows,),) = found["rows of a person, ε = 1 and δ = 10⁻⁶ for a row"]
    for records, *said in rows:
        attack = privacy.attack_advantage(Budget(1.0, 1e-6), int(records))
        assert said == [
            f"{attack.epsilon:g}",
            f"{attack.delta:.1e}",
            *percent([attack.accuracy]),
        ]


def test_the_example_of_the_module_runs():
    assert doctest.testmod(attacks).failed == 0
