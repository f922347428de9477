"""Certificate and losses of an inexact draw against a second account in many digits."""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy

REPLACE = NeighboringRelation.REPLACE_ONE
BUDGETS = list(itertools.product([0.1, 1.0, 3.0, 8.0], [1e-9, 1e-6, 1e-3]))
SHARES = [0.0, 1e-9, 1e-5, 1e-3, 0.05, 0.3]  # τ·(1 + e^ε) over δ


@functools.cache
def _bound(mu, tau, epsilon):
    """Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ) + (1 + e^ε)·τ."""
    with mpmath.workdps(40):
        mu, tau, epsilon = map(mpmath.mpf, (mu, tau, epsilon))
        ideal = mpmath.mpf(0)
        if mu:
            ideal = mpmath.ncdf(mu / 2 - epsilon / mu)
            ideal -= mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
        return ideal + tau * (1 + mpmath.exp(epsilon))


def _least_epsilon(mu, tau, delta):
    """By halving an interval before the lowest point of a scan; infinite if the scan finds none."""
    if _bound(mu, tau, 0.0) <= delta:
        return 0.0
    grid = np.linspace(0.0, mu * (0.5 * mu + 40.0), 400)
    values = [_bound(mu, tau, float(each)) for each in grid]
    fits = [i for i, value in enumerate(values) if value <= delta]
    if not fits:
        return math.inf
    low, high = float(grid[fits[0] - 1]), float(grid[fits[0]])
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _bound(mu, tau, middle) <= delta else (middle, high)
    return high


def _planned(epsilon, delta, share):
    """τ, and the largest μ with which a release meets the budget."""
    tau = share * delta / (1.0 + math.exp(epsilon))
    return privacy.gdp_within(epsilon, delta, tau), tau


def _spent(loss, delta):
    return float(privacy.epsilon(loss, delta))


@pytest.mark.parametrize(
    ("mu", "tau", "delta"),
    [
        (0.0, 1e-7, 1e-6), (0.0, 1e-6, 1e-6), (0.05, 0.0, 1e-6), (0.3, 1e-9, 1e-6), (0.3, 1e-7, 1e-5),
        (1.0, 1e-8, 1e-5), (1.0, 1e-4, 1e-5), (1.0, 0.0, 0.5), (4.0, 1e-12, 1e-6), (4.0, 3e-7, 1e-3),
    ],
)  # fmt: skip
def test_the_certificate_is_the_least_epsilon(mu, tau, delta):
    found = privacy.inexact_certificate(mu, tau, delta, REPLACE, ("one", "two"))
    least = _least_epsilon(mu, tau, delta)
    if math.isfinite(least):
        assert least * (1 - 1e-12) <= found.epsilon <= least * (1 + 1e-9)
    else:
        assert found.epsilon == math.inf
    assert found.delta == delta
    assert (found.relation, found.assumptions) == (REPLACE, ("one", "two"))
    assert "total variation" in found.accountant


def _of_whole(epsilon, failure):
    """Of randomized response that reveals all with a probability: every order by its sum."""
    likely = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))
    rare = 1 - likely
    return failure, [
        mpmath.log(likely**a * rare ** (1 - a) + rare**a * likely ** (1 - a)) / (a - 1)
        for a in map(mpmath.mpf, privacy.ORDERS)
    ]


def _enlarged(mu, tau, horizon, failure):
    """The theorem of docs/theory/variation.md; None where it says nothing."""
    beyond = min(
        mpmath.exp((a - 1) * (a * mpmath.mpf(mu) ** 2 / 2 - horizon)) / a * (1 - 1 / a) ** (a - 1)
        for a in map(mpmath.mpf, privacy.ORDERS)
    )
    room = failure - tau - beyond
    eta = 2 * tau * (1 + mpmath.exp(horizon)) / room
    if room <= 0 or eta >= 1:
        return None
    return failure, [
        a * mpmath.mpf(mu) ** 2 / 2
        + a / (a - 1) * (mpmath.log1p(eta) - mpmath.log1p(-failure))
        - mpmath.log1p(-eta)
        for a in map(mpmath.mpf, privacy.ORDERS)
    ]


def _epsilon_of(account, delta):
    """The conversion of Canonne, Kamath and Steinke, or the Bretagnolle-Huber bound; infinite for None."""
    if account is None:
        return math.inf
    failure, rdp = account
    rest = (delta - failure) / (1 - failure)
    if any(rest**2 > 1 - mpmath.exp(-each) for each in rdp):
        return 0.0
    orders = map(mpmath.mpf, privacy.ORDERS)
    found = (
        each + mpmath.log(1 - 1 / a) - (mpmath.log(rest) + mpmath.log(a)) / (a - 1)
        for each, a in zip(rdp, orders, strict=True)
    )
    return float(max(min(found), 0))


def _second_account(mu, tau, epsilon, delta):
    """ε at δ of both losses, and both; what the library has is one of them."""
    with mpmath.workdps(40):
        fine = [1 + k / 64 for k in range(65)]
        coarse = [2 ** (k / 8) for k in range(-48, 129)]
        tried = [epsilon * stretch for stretch in sorted(fine + coarse)]
        fits = (each for each in tried if _bound(mu, tau, each) <= 0.8 * delta * (1 - 1e-13))
        first = next(fits, None)
        whole = None if first is None else _of_whole(first, 0.8 * delta)
        enlarged = _enlarged(mu, tau, 2 * epsilon, 0.5 * delta) if tau else (0.0, _ideal(mu))
        return (_epsilon_of(whole, delta), whole), (_epsilon_of(enlarged, delta), enlarged)


def _ideal(mu):
    return [a * mpmath.mpf(mu) ** 2 / 2 for a in map(mpmath.mpf, privacy.ORDERS)]


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_loss_is_the_one_that_composes_or_the_whole(epsilon, delta):
    for share in (*SHARES, 0.7):
        mu, tau = _planned(epsilon, delta, share)
        (whole_epsilon, whole), (enlarged_epsilon, enlarged) = _second_account(
            mu, tau, epsilon, delta
        )
        loss = privacy.inexact_loss(mu, tau, epsilon, delta)
        taken = enlarged if enlarged_epsilon <= 1.24 * whole_epsilon else whole
        if taken is None:
            assert np.all(np.isinf(loss.rdp)), share
            continue
        assert float(loss.delta) == pytest.approx(float(taken[0]), rel=1e-12), share
        rdp = np.array(list(map(float, taken[1])))
        np.testing.assert_allclose(loss.rdp, rdp, rtol=1e-5)
        assert np.all(loss.rdp >= rdp * (1 - 1e-12))


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_a_loss_costs_little_more_than_the_certificate(epsilon, delta):
    for share in SHARES:
        mu, tau = _planned(epsilon, delta, share)
        certified = privacy.inexact_certificate(mu, tau, delta, REPLACE).epsilon
        assert certified == pytest.approx(epsilon, rel=1e-9)
        spent = _spent(privacy.inexact_loss(mu, tau, epsilon, delta), delta)
        assert certified <= spent <= 1.3 * certified, share


def test_any_numbers_cost_at_least_the_certificate():
    """Also where the release was not planned for the hint."""
    for mu, tau, epsilon, delta in itertools.product(
        [0.0, 0.01, 0.2, 1.0, 5.0], [0.0, 1e-12, 1e-7, 1e-4, 0.5], [0.3, 2.0], [1e-6, 1e-2]
    ):
        certified = privacy.inexact_certificate(mu, tau, delta, REPLACE).epsilon
        assert _spent(privacy.inexact_loss(mu, tau, epsilon, delta), delta) >= certified


def test_a_small_distance_composes():
    """Sixteen draws of ε = 1: √16 and not 16 of it, if τ is far below δ/e^(2ε)."""
    delta = 1e-6
    for share, least, most in ((1e-9, 4.4, 4.6), (0.1, 16.1, 16.3)):
        mu, tau = _planned(1.0, delta, share)
        loss = privacy.scale(privacy.inexact_loss(mu, tau, 1.0, delta), 16)
        assert least < _spent(loss, 16 * delta) < most


def test_a_large_distance_leaves_only_the_certificate():
    for (epsilon, delta), share in [((8.0, 1e-6), 0.5), *((each, 0.8) for each in BUDGETS)]:
        mu, tau = _planned(epsilon, delta, share)
        assert _spent(privacy.inexact_loss(mu, tau, epsilon, delta), delta) == math.inf
        assert privacy.inexact_certificate(mu, tau, delta, REPLACE).epsilon < 1.001 * epsilon


def test_no_size_or_no_distance():
    nothing = privacy.inexact_loss(0.0, 0.0, 1.0, 1e-6)
    assert np.all(nothing.rdp == 0)
    assert nothing.delta == 0
    ideal = privacy.inexact_loss(0.2, 0.0, 1.0, 1e-6)
    np.testing.assert_array_equal(ideal.rdp, privacy.gdp(0.2).rdp)
    assert ideal.delta == 0
    # Within τ of one law of both neighbours: (0, 2τ), and the whole says ε = 1.
    assert _spent(privacy.inexact_loss(0.0, 1e-7, 1.0, 1e-6), 1e-6) < 1.05


def test_batches_are_made_of_their_members():
    mu, tau = np.array([[0.1], [0.2], [0.4]]), np.array([0.0, 1e-12, 1e-7, 1e-6])
    loss = privacy.inexact_loss(mu, tau, 1.0, 1e-5)
    assert loss.delta.shape == (3, 4)
    for i, j in itertools.product(range(3), range(4)):
        one = privacy.inexact_loss(mu[i, 0], tau[j], 1.0, 1e-5)
        np.testing.assert_array_equal(loss.rdp[i, j], one.rdp)
        assert loss.delta[i, j] == one.delta
