"""Slips that would make the accountant of private ReSQue prove too much: each is caught by an exact law.

For each slip there is an instance whose divergence is computed by quadrature. The accountant's bound is above
it, that of the accountant (or algorithm) with the slip is below.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from dpsco_jax.privacy import ORDERS, resque
from dpsco_jax.privacy.resque import ResqueCall, _profile, call_loss, calls_loss
from dpsco_jax.privacy.resque._amplification import subsampled_rdp
from dpsco_jax.privacy.resque._drift import drift_factor, shift_law
from tests.support import resque as reference

FAILURE = 1e-9
AT_TWO = int(np.argmin(np.abs(ORDERS - 2.0)))
AT_FIVE = int(np.argmin(np.abs(ORDERS - 5.0)))
# Of its three records the first alone is used before a point that is averaged, one of two.
ONE_STEP = ResqueCall(4, 1.0, 32.0, 3)


def bound(call):
    return call_loss(call, FAILURE).rdp[AT_TWO]


def exact(call, *, shift=1.0, order=2.0):
    """Of a call with four queries: the first record, if it differs, moves half of a step, ``shift``-fold."""
    beta, rate = shift * call.beta, 1 / call.population
    laws = reference.phase(beta, rate, [0.5], 1 / call.radius_ratio, -1.0)
    return reference.rdp(*laws, order)


def law_bound(shifts, weights, rate, at=AT_TWO):
    law = _profile.sampled_shift(np.asarray(shifts), np.asarray(weights), rate, 1e-12)
    return _profile.rdp(law)[at]


def noise_divided_by_four():
    call = ONE_STEP
    return bound(call), exact(call, shift=4.0), exact(call)


def noise_not_tied_to_the_step():
    # The second phase's noise in the first: σ = L η_2 / β where η_1 = 4 η_2; 2 of 3 records, in 2 steps.
    call = ONE_STEP
    laws = [reference.phase(times * call.beta, 2 / 3, [0.0, 0.5], 1 / 32.0) for times in (4.0, 1.0)]
    return bound(call), reference.rdp(*laws[0], 2.0), reference.rdp(*laws[1], 2.0)


def drift_dropped():
    # Iterates at distance r from the center, ρ = 2 r: the weight varies. Seen at order 5.
    call = ResqueCall(4, 0.6, 2.0, 3)
    # Shares of the three positions, one half and twice zero, rounded up to 1/128 as in the accountant.
    mutated = law_bound(2 * call.beta * np.array([1 / 128, 0.5]), [2 / 3, 1 / 3], 1.0, AT_FIVE)
    truth = exact(call, order=ORDERS[AT_FIVE])
    return mutated, truth, call_loss(call, FAILURE).rdp[AT_FIVE]


def searches_not_composed():
    # Three calls in a search for each call that is counted.
    return bound(ONE_STEP), 4 * exact(ONE_STEP), calls_loss([(ONE_STEP, 4)], FAILURE).rdp[AT_TWO]


def first_levels_with_the_last_beta():
    levels = [dataclasses.replace(ONE_STEP, beta=2 ** (i / 2) * 0.4) for i in (3, 2, 1)]
    mutated = 3 * bound(dataclasses.replace(ONE_STEP, beta=0.4))
    total = calls_loss([(level, 1) for level in levels], FAILURE).rdp[AT_TWO]
    return mutated, sum(exact(level) for level in levels), total


def multiplicity_ignored():
    # Of two users, seven independent draws, four of them in the first phase.
    call = ResqueCall(8, 0.2, 32.0, 2, replacement=True)
    shares = np.array([0.75, 0.5, 0.25, 0.0])
    used = (np.arange(16)[:, None] >> np.arange(4)) & 1
    law = np.full(16, 1 / 16), call.beta * used @ shares
    truth = reference.rdp(law, (law[0], -law[1]), 2.0)
    values, weights = shift_law(8, 32.0, 1, FAILURE)
    mutated = law_bound(2 * call.beta * values, weights / weights.sum(), 1 - 0.5**7)
    return mutated, truth, bound(call)


@pytest.mark.parametrize(
    "slip",
    [
        noise_divided_by_four,
        noise_not_tied_to_the_step,
        drift_dropped,
        searches_not_composed,
        first_levels_with_the_last_beta,
        multiplicity_ignored,
    ],
)
def test_a_slip_is_caught(slip):
    claimed, truth, right = slip()
    if slip in (noise_divided_by_four, noise_not_tied_to_the_step):
        # The algorithm is wrong: the claim is what holds without the slip.
        assert right < claimed < truth
    else:
        assert claimed < truth < right


def test_phases_that_start_outside_of_the_ball_drift_more_than_accounted():
    # Noise of the first phase, L η_1 / β in 20 dimensions, in units of r; later phases start there.
    queries, ratio, beta, dim, failure = 64, 12.0, 0.05, 20, 1e-6
    noise = 2 / (4 * math.sqrt(queries)) / beta * math.sqrt(dim)
    assert noise > 5
    largest = drift_factor(queries, ratio, failure)

    def chance(radius):  # of a weight above F, exactly
        return stats.norm.sf(ratio / radius * math.log(largest) + 0.5 * radius / ratio)

    assert chance(1.0) < failure < 1e-4 * chance(noise)


def test_the_good_event_is_that_of_three_pairs():
    # With the ternary moments; profiles ask for two pairs at a time, one after the other.
    call = ResqueCall(64, 0.1, 8.0, 1000)
    uses = 63 / 1000
    in_phase = FAILURE / (3 * uses)
    for divided, holds in ((in_phase, True), (3 * in_phase, False)):
        cost = resque.conditional_cost(call, divided)
        expected = subsampled_rdp(cost, uses, np.ones(1))[AT_TWO]
        found = call_loss(call, FAILURE, "triple").rdp[AT_TWO]
        assert (abs(found / expected - 1) < 1e-6) == holds
