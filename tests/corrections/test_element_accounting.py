"""Corrections of the accounting of the element-level paper: the printed claims fail, ours hold."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import stats

from dpsco_jax import privacy
from dpsco_jax.privacy import certificate
from dpsco_jax.privacy.curves.composition import heterogeneous_composition

REPLACE = NeighboringRelation.REPLACE_ONE


def test_n2_composition_keeps_every_delta():
    delta, slack = 1e-3, 1e-9
    # Publishes everything with probability δ: nothing below δ is true.
    printed = slack + delta / (1 + math.exp(0.0))
    epsilon, found = heterogeneous_composition([0.0], [delta], slack)
    assert printed < delta <= found
    assert epsilon == 0.0
    total, failure = heterogeneous_composition([0.1] * 100, [0.0] * 100, 1e-6)
    assert total == pytest.approx(5.756106, abs=1e-6)
    assert 1e-6 <= failure <= 1e-6 * (1 + 1e-9)


def test_n3_sampling_users_does_not_amplify_their_elements():
    q, sigma, delta, elements = 0.1, 1.0, 1e-5, 20
    # One user of 20 aligned elements, one of them turned round; the test is a half line.
    z = np.linspace(-10.0, 40.0, 50001)
    up, down = (
        (1 - q) * stats.norm.sf(z / sigma) + q * stats.norm.sf((z - place) / sigma)
        for place in (elements, elements - 2)
    )
    claim = certificate(privacy.Poisson(q).gaussian_event(sigma / 2), delta, REPLACE).epsilon
    assert claim == pytest.approx(1.79, abs=0.01)
    assert np.max(up - math.exp(claim) * down) > 1000 * delta
    truth = 8.8768
    assert np.max(up - math.exp(truth - 1e-3) * down) > delta
    ours = certificate(privacy.PoissonUsers(q, elements).gaussian_event(sigma / 2), delta, REPLACE)
    assert truth <= ours.epsilon <= truth + 0.001


def test_n4_the_bound_of_added_records_is_half_of_the_truth():
    q, sigma, order = 0.01, 4.0, 8.0
    printed = q**2 * order / ((1 - q) * sigma**2)
    rdp = privacy.poisson_replaced_gaussian(sigma / 2, q).rdp
    found = np.interp(order, privacy.ORDERS, rdp)
    assert printed == pytest.approx(5.05e-5, rel=1e-3)
    assert 1.9 * printed < found == pytest.approx(1.0000e-4, rel=1e-2)
