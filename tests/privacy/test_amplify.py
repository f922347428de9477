"""Amplification of (ε, δ) by sampling, against the laws of releases on all samples of all small data."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.privacy import pld
from dpsco_jax.privacy.concentrated._accounting import sampled_pair
from dpsco_jax.privacy.pld import pairs

ADD, REPLACE, SPECIAL = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)
EPSILON, DELTA = 1.3, 0.05


def response(sample):
    """Whether the sample has a one: the truth with probability δ, said to be so, else a noisy answer."""
    truth, likely = max(sample, default=0), 1 / (1 + math.exp(-EPSILON))
    noisy = np.full(2, 1 - likely)
    noisy[truth] = likely
    return np.concatenate([(1 - DELTA) * noisy, DELTA * np.eye(2)[truth]])


def fixed_size(data, batch, release=response):
    """The law of a release on a uniform set of ``batch`` records."""
    samples = list(itertools.combinations(data, batch))
    return sum(release(sample) for sample in samples) / len(samples)


def poisson(data, probability, release=response):
    """The law of a release on a set that each record is in with a probability."""
    law = 0.0
    for taken in itertools.product([False, True], repeat=len(data)):
        mass = math.prod(probability if t else 1 - probability for t in taken)
        law += mass * release([x for x, t in zip(data, taken, strict=True) if t])
    return law


def divergence(p, q, epsilon):
    return np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0))


def worst(neighbours, law, epsilon):
    return max(divergence(law(a), law(b), epsilon) for a, b in neighbours)


BITS = list(itertools.product([0, 1], repeat=4))
REPLACED = [
    (a, b) for a in BITS for b in BITS if sum(x != y for x, y in zip(a, b, strict=True)) == 1
]
REMOVED = [
    pair
    for a in BITS
    for i in range(4)
    for pair in ((a, a[:i] + a[i + 1 :]), (a[:i] + a[i + 1 :], a))
]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_fixed_size_samples_reach_the_bound_and_not_more(batch):
    epsilon, delta = privacy.amplify(EPSILON, DELTA, privacy.WithoutReplacement(4, batch), REPLACE)
    assert epsilon == pytest.approx(math.log(1 + batch / 4 * (math.exp(EPSILON) - 1)), rel=1e-12)
    found = worst(REPLACED, lambda data: fixed_size(data, batch), epsilon)
    assert found == pytest.approx(delta, rel=1e-9)
    assert worst(REPLACED, lambda data: fixed_size(data, batch), epsilon - 1e-3) > delta * 1.001


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_poisson_samples_reach_the_bound_and_not_more(probability):
    epsilon, delta = privacy.amplify(EPSILON, DELTA, privacy.Poisson(probability), ADD)
    assert (epsilon, delta) == privacy.amplify(
        EPSILON, DELTA, privacy.Poisson(probability), SPECIAL
    )
    found = worst(REMOVED, lambda data: poisson(data, probability), epsilon)
    assert found == pytest.approx(delta, rel=1e-9)
    assert worst(REMOVED, lambda data: poisson(data, probability), epsilon - 1e-3) > delta * 1.001


def test_where_it_is_refused_it_is_false():
    q, claimed = 0.5, math.log(1 + 0.5 * (math.exp(EPSILON) - 1))

    def with_size(sample):  # ε-DP when a bit is replaced: the sample's size is public
        noisy = response(sample)[:2] / (1 - DELTA)
        return np.concatenate([np.eye(2)[len(sample)][k] * noisy for k in range(2)])

    laws = [poisson([bit], q, with_size) for bit in (0, 1)]
    assert divergence(laws[1], laws[0], claimed) > 0.1
    with pytest.raises(ValueError, match="relation"):
        privacy.amplify(EPSILON, 0.0, privacy.Poisson(q), REPLACE)

    def by_content(sample):  # ε-DP when a record is added: the empty sample is between 0 and 1
        low = 0.05
        seen = low * math.exp(EPSILON * (2 if sample[0] else 0))
        return np.array([seen, 1 - seen])

    gap = divergence(fixed_size([0, 1], 1, by_content), fixed_size([0], 1, by_content), claimed)
    assert gap > 0.02
    for relation in (ADD, SPECIAL):
        with pytest.raises(ValueError, match="relation"):
            privacy.amplify(EPSILON, 0.0, privacy.WithoutReplacement(2, 1), relation)
    for scheme in (
        privacy.WithReplacement(4, 2),
        privacy.PoissonUsers(0.5, 2.0),
        privacy.PoissonItems(0.5, 2),
    ):
        with pytest.raises(ValueError, match="sampling"):
            privacy.amplify(EPSILON, 0.0, scheme, REPLACE)


def test_it_is_the_curve_of_the_sampled_pair():
    """The pair that phases compose has the same curve: (ε, δ(ε)) of a Gaussian, amplified."""
    amplified, delta = privacy.amplify(
        1.0, math.exp(_log_delta(1.0)), privacy.WithoutReplacement(10, 3), REPLACE
    )
    found = pld.epsilon([(sampled_pair(pairs.gaussian(1.0), 0.3), 1)], delta)
    assert found == pytest.approx(amplified, rel=1e-3)


def _log_delta(epsilon):
    from dpsco_jax.privacy.curves.composition import log_gaussian_delta

    return log_gaussian_delta(1.0, epsilon)


def test_ends():
    for scheme, relation in (
        (privacy.FullBatch(), REPLACE),
        (privacy.WithoutReplacement(7, 7), REPLACE),
        (privacy.Poisson(1.0), ADD),
    ):
        assert privacy.amplify(0.3, 1e-5, scheme, relation) == (0.3, 1e-5)
        assert privacy.amplify(5.0, 1e-5, scheme, relation) == (5.0, 1e-5)
    assert privacy.amplify(0.3, 1e-5, privacy.Poisson(0.0), ADD) == (0.0, 0.0)
    assert privacy.amplify(0.0, 1e-5, privacy.Poisson(0.5), ADD)[0] == 0.0
    # No overflow, and never below the exact value: e^ε is beyond floats.
    found, _ = privacy.amplify(1000.0, 0.0, privacy.Poisson(0.25), ADD)
    assert 1000.0 + math.log(0.25) <= found <= 1000.0 + math.log(0.25) + 1e-9
    below, above = (
        privacy.amplify(e, 0.0, privacy.Poisson(0.25), ADD)[0] for e in (700 - 1e-9, 700.0)
    )
    assert above == pytest.approx(below, rel=1e-11)
