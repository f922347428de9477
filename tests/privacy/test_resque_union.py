"""A record that is used several times: the law of shifts against one derived anew from the lemmas.

The reference (``tests/support/resque.py``) shares no line with the package: moments, tails, shares and the
event that one of several phases drifts too far are written again from docs/theory/resque.md.
"""

import numpy as np
import pytest

from dpsco_jax.privacy.resque._drift import drift_factor, log_tail, shift_law
from tests.support import resque as reference

CASES = [(16, 2.5, 2), (16, 4.0, 3), (64, 4.0, 2), (32, 12.0, 2)]


def claimed(queries, ratio, uses):
    """Values, and the probability that the law gives to what is above each of them."""
    values, chances = shift_law(queries, ratio, uses, 1e-9)
    return values[:-1], 1.0 - np.cumsum(chances)[:-1]


@pytest.mark.parametrize(("queries", "ratio"), [(16, 2.5), (64, 4.0), (1024, 12.0)])
def test_tails_of_one_phase(queries, ratio):
    tail = reference.drift_tail(queries, ratio)
    points = np.geomspace(0.9, drift_factor(queries, ratio, 1e-12), 40)
    np.testing.assert_allclose(tail(points), np.exp(log_tail(queries, ratio, points)), rtol=1e-6)


@pytest.mark.parametrize(("queries", "ratio", "uses"), CASES)
def test_a_law_of_shifts_counts_every_phase_that_may_drift(queries, ratio, uses):
    """Exactly, at the values of the law: at least the union over the phases that are touched."""
    values, above = claimed(queries, ratio, uses)
    exact = reference.union_tail(queries, ratio, uses, values)
    assert np.all(above >= exact * (1 - 1e-9))
    # Without the union, every tail would be divided by the number of uses, where it is small: that is seen.
    assert np.any(above[above < 0.2] / uses < exact[above < 0.2])


@pytest.mark.parametrize("ratio", [2.5, 4.0, 12.0])
def test_shares_finer_than_the_grid_of_shares_are_rounded_up(ratio):
    """Phases of more than 128 steps: there alone a share is no multiple of the grid's 1/128."""
    values, above = claimed(1024, ratio, 1)
    assert np.all(above >= reference.union_tail(1024, ratio, 1, values) * (1 - 1e-9))


@pytest.mark.parametrize(("queries", "ratio", "uses"), CASES)
def test_a_law_of_shifts_dominates_drifts_that_fail_one_by_one(queries, ratio, uses):
    """Monte Carlo of the joint event: each phase fails independently, as often as its lemma allows."""
    trials = 200_000
    shifts = reference.drawn_shifts(np.random.default_rng(0), queries, ratio, uses, trials)
    values, above = claimed(queries, ratio, uses)
    seen = np.array([np.mean(shifts > value) for value in values])
    error = 4 * np.sqrt(np.maximum(seen * (1 - seen), 1 / trials) / trials)
    assert np.all(seen - error <= above)
    # Without the union, every tail would be divided by the number of uses, where it is small: that is seen.
    few = (above < 0.2) & (seen > 1e-4)
    assert np.any(seen[few] - error[few] > above[few] / uses)
