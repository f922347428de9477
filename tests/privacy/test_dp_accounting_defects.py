"""What ``dp_accounting`` 0.6 gets wrong, and that we do not depend on it.

Each test passes as long as the defect is there. One that fails says that it was mended upstream: the
conversion or the refusal that it names can then be reconsidered.
"""

import math

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpsco_jax.privacy import ORDERS, certificate, poisson_subsampled_gaussian
from dpsco_jax.privacy.dp_accounting import events

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def epsilon_by(accountant, event, delta=1e-6, count=1):
    return accountant.compose(event, count).get_epsilon(delta)


def test_its_accountants_read_a_gaussian_differently_under_replace_one():
    # RDP takes the multiplier as σ over the sensitivity under the relation, PLD as σ over half of it.
    # Hence second_opinion asks the PLD accountant under ADD_OR_REMOVE_ONE.
    event = GaussianDpEvent(1.0)
    by_rdp = epsilon_by(RdpAccountant(neighboring_relation=REPLACE), event)
    by_pld = epsilon_by(PLDAccountant(neighboring_relation=REPLACE), event)
    assert by_rdp == pytest.approx(5.2, abs=0.05)
    assert by_pld == pytest.approx(11.0, abs=0.05)
    assert by_pld == pytest.approx(
        epsilon_by(PLDAccountant(neighboring_relation=ADD), GaussianDpEvent(0.5)), rel=1e-3
    )
    assert certificate(event, 1e-6, REPLACE).epsilon == pytest.approx(
        epsilon_by(PLDAccountant(neighboring_relation=ADD), event), rel=1e-4
    )


def test_its_pld_of_randomized_response_loses_the_repetition_count():
    # Eight times in one event costs as little as once. Hence compositions() refuses the event.
    event = RandomizedResponseDpEvent(0.5, 3)
    once = epsilon_by(PLDAccountant(REPLACE), event)
    repeated = epsilon_by(PLDAccountant(REPLACE), SelfComposedDpEvent(event, 8))
    one_by_one = epsilon_by(PLDAccountant(REPLACE), ComposedDpEvent([event] * 8))
    assert repeated == pytest.approx(once, rel=1e-6)
    assert one_by_one > 7 * once
    with pytest.raises(ValueError, match="RandomizedResponse"):
        certificate(event, 1e-6, REPLACE)


def test_its_rdp_of_a_sampled_composition_loses_the_repetition_count_of_an_integer_multiplier():
    # The integer 2 is not a float, and is returned as the multiplier of all sixteen Gaussians together.
    # Hence every constructor here makes floats, and compositions() combines Gaussians itself.
    def cost(noise_multiplier):
        inner = SelfComposedDpEvent(GaussianDpEvent(noise_multiplier), 16)
        return epsilon_by(RdpAccountant(), PoissonSampledDpEvent(0.1, inner))

    once = epsilon_by(RdpAccountant(), PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)))
    assert cost(2) == pytest.approx(once, rel=1e-12)
    assert cost(2.0) > 10 * once
    ours = [
        certificate(
            PoissonSampledDpEvent(0.1, SelfComposedDpEvent(GaussianDpEvent(sigma), 16)), 1e-6, ADD
        ).epsilon
        for sigma in (2, 2.0)
    ]
    assert (
        ours[0]
        == ours[1]
        > 10 * certificate(events.poisson_subsampled_gaussian(2, 0.1), 1e-6, ADD).epsilon
    )


@pytest.mark.parametrize(
    ("q", "noise_multiplier", "order"),
    [(0.03, 0.5, 1.1), (0.1, 1.0, 1.5), (0.3, 3.0, 1.5), (0.5, 3.3, 1.9)],
)
def test_its_series_at_fractional_orders_gives_up(q, noise_multiplier, order):
    # Below order 2 it reports an infinite divergence, which is sound but loses the order.
    # Hence our curves are quadratures.
    accountant = RdpAccountant([order, 2.0])
    accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(noise_multiplier)))
    assert np.isinf(accountant.rdp[0])
    assert math.isfinite(accountant.rdp[1])
    curve = poisson_subsampled_gaussian(noise_multiplier, q)
    ours = np.interp(order, ORDERS, curve.rdp)
    assert 0 < ours < accountant.rdp[1]


def test_its_series_at_fractional_orders_drops_the_signs():
    # The binomial coefficients of a fractional order alternate in sign from some term on; it adds their
    # absolute values. The divergence is overstated: at order 1.9 it is above that at order 2.
    accountant = RdpAccountant([1.9, 2.0])
    accountant.compose(PoissonSampledDpEvent(0.3, GaussianDpEvent(10.0)))
    assert accountant.rdp[0] > 3 * accountant.rdp[1]
    ours = poisson_subsampled_gaussian(10.0, 0.3).rdp
    assert np.all(np.diff(ours) >= 0)
