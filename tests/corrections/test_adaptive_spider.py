"""Corrections of T, chapter 7, on adaptive batches: the printed claim fails, ours holds."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpsco_jax.mechanisms.tree import TreeCorrelation


def _delta(mu, eps):
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


def _nodes(t):
    """Blocks of the sum of the first t steps, as (first, last)."""
    blocks, end = [], 0
    for level in reversed(range(t.bit_length())):
        if (t >> level) & 1:
            blocks.append((end + 1, end + 2**level))
            end += 2**level
    return blocks


def test_c7_1_the_first_estimate_has_noise():
    assert _nodes(0) == []  # Algorithm 21 begins with TREE(0)
    for steps in (1, 8, 31):
        tree = TreeCorrelation(steps)
        assert tree.prefix_stddev()[0] == pytest.approx(math.sqrt(tree.levels))
    assert math.sqrt(math.log(1)) == 0.0  # printed, of a stream of one step
    assert TreeCorrelation(1).stretch() == 1.0


def test_c7_2_noise_of_a_stream():
    """Of T = 1,000 steps at ε = 1, with replaced users."""
    levels = TreeCorrelation(1000).levels
    # Lemma 7.3.7, where both of its terms are G/b: σ is 2G/b, what a user moves a share by, times ln(1/δ)/ε;
    # a tree that goes on when the sum begins anew has a user in up to 2H nodes.
    assert _delta(math.sqrt(2 * levels) / math.log(1e5), 1.0) == pytest.approx(1e-3, rel=0.1)
    ours = TreeCorrelation(1000).stretch()
    # A stream of multiplier σ is one Gaussian release of that: noise on a node is σ·√H shares.
    assert levels / ours**2 == pytest.approx(1.0)


@pytest.mark.parametrize(("steps", "squared"), [(8, 5), (16, 7)])
def test_c7_5_one_tree_over_resets_costs_more(steps, squared):
    """The largest squared distance of a user of one step, over all that may be reset, against H."""
    levels = TreeCorrelation(steps).levels
    blocks = sorted({block for t in range(1, steps + 1) for block in _nodes(t)})
    cover = np.array([[block in _nodes(t) for block in blocks] for t in range(1, steps + 1)], float)
    inverse = np.linalg.pinv(cover @ cover.T)
    worst = 0.0
    for first in range(steps):
        for reset in range(first + 1, steps + 1):
            # Sums that have the step: from it on, until the sum begins anew.
            there = np.zeros(steps)
            there[first:reset] = 1.0
            worst = max(worst, float(there @ inverse @ there))
    assert worst == pytest.approx(squared, rel=0.02)
    assert worst > levels
    # Where each beginning has a tree of its own the sums have the step to the end of it.
    whole = max(float(there @ inverse @ there) for there in np.triu(np.ones((steps, steps))))
    assert whole <= levels + 1e-9
