"""Rates under heavy tails: exponents, the two bounds, and what is printed in their place."""

import math

import numpy as np
import pytest

from dpsco_jax.rates import heavy_tailed
from dpsco_jax.rates.heavy_tailed import Moments

SIZES = {"num_users": 2**12, "dim": 16, "rho": 0.25}


def test_moments_fill_in_what_is_left_out_and_may_be_of_every_order():
    assert Moments(2.5, 3.0) == Moments(2.5, 3.0, 3.0, 3.0)
    assert Moments(2.5, 3.0, 2.0) == Moments(2.5, 3.0, 2.0, 2.0)
    assert Moments(math.inf, 3.0).power == 1.0
    for bad, name in (
        ((2.5, 1.0, 2.0), "second"),
        ((2.5, 3.0, 1.0, 2.0), "first"),
        ((1.9, 1.0), "order"),
        ((math.nan, 1.0), "order"),
    ):
        with pytest.raises(ValueError, match=name):
            Moments(*bad)


@pytest.mark.parametrize("order", [2.0, 2.5, 4.0, math.inf])
def test_the_private_term_grows_with_the_power_of_the_order(order):
    """G_2 is as good as 0, so that of the two terms only one is left."""
    moments = Moments(order, 1.0, 1e-9)
    power = 1 - 1 / order

    def optimal(**changes):
        return heavy_tailed.optimal(moments, 1.0, **(SIZES | changes))

    base = optimal()
    np.testing.assert_allclose(base / optimal(num_users=2**13), 2**power, rtol=1e-6)
    np.testing.assert_allclose(base / optimal(rho=1.0), 2**power, rtol=1e-6)
    np.testing.assert_allclose(optimal(dim=64) / base, 2**power, rtol=1e-6)
    rare = [
        heavy_tailed.high_probability(moments, 1.0, **SIZES, failure=math.exp(-x)) for x in (2, 4)
    ]
    np.testing.assert_allclose(rare[1] / rare[0], 2**power, rtol=1e-6)
    np.testing.assert_allclose(
        heavy_tailed.optimal(Moments(order, 1e-9), 1.0, **SIZES | {"rho": 1e30}), 1e-9 / 64
    )


def test_bounded_slopes_are_the_limit_of_high_orders():
    """At ρ = ε²/log(1/δ) the optimal order of k = ∞ is (12.1)."""
    epsilon, delta = 0.5, 1e-6
    found = heavy_tailed.lipschitz(3.0, 2.0, num_users=1000, dim=7, epsilon=epsilon, delta=delta)
    rho = epsilon**2 / math.log(1 / delta)
    wanted = heavy_tailed.optimal(Moments(math.inf, 3.0), 2.0, num_users=1000, dim=7, rho=rho)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    smooth = heavy_tailed.smooth(
        Moments(math.inf, 3.0), 2.0, num_users=1000, dim=7, epsilon=epsilon, delta=delta
    )
    log = math.log(1000 / delta)
    np.testing.assert_allclose(
        smooth, 6 / math.sqrt(1000) + 6 * math.sqrt(7 * log**3) / (1000 * epsilon), rtol=1e-12
    )


def test_the_bound_of_localization_holds_where_the_printed_one_is_violated():
    """F(x) = G·x on [0, D] from x_0 = D, every phase exact: phase i moves by G/λ_i = 16D/32^i."""
    slope, far = 3.0, 2.0
    strength = slope / (16 * far)
    for phases in (1, 3, 10):
        point = far
        for i in range(1, phases + 1):
            point = max(0.0, point - slope / (strength * 32.0**i))
        gap = slope * point
        numbers = {"strength": strength, "num_phases": phases}
        bound = heavy_tailed.localization_bound(slope, 0.0, far, **numbers)
        printed = heavy_tailed.localization_bound(slope, 0.0, far, **numbers, printed=True)
        assert gap > 15 * printed
        assert gap <= bound
        np.testing.assert_allclose(bound, slope * far)


def test_the_bound_of_localization_adds_up_its_phases():
    """With errors of the largest length that is allowed, phase by phase."""
    first, error, far, strength, phases = 2.0, 0.3, 5.0, 0.1, 6
    lambdas = [strength * 32.0**i for i in range(phases + 1)]
    errors = [far] + [error * 4.0**i / lambdas[i] for i in range(1, phases + 1)]
    added = sum(lambdas[i] / 2 * errors[i - 1] ** 2 for i in range(1, phases + 1))
    exact = first * errors[-1] + added
    bound = heavy_tailed.localization_bound(first, error, far, strength=strength, num_phases=phases)
    assert exact <= bound <= 1.01 * exact + 16 * error**2 / strength * 2.0 ** (1 - phases)


def test_the_bound_of_glms_adds_up_its_phases():
    """What each phase starts with, what its steps and its clip lose, and the last noise."""
    moments, far, eta, clip = Moments(3.0, 2.0, 1.5, 1.0), 4.0, 0.01, 7.0
    n, dim, rho = SIZES["num_users"], SIZES["dim"], SIZES["rho"]
    phases = int(math.log2(n))
    total, start = 0.0, far**2
    for i in range(1, phases + 1):
        step, norm, users = eta / 16**i, 2**i * clip, n / 2**i
        bias = moments.highest**3 * far / (2 * norm**2)
        total += start / (2 * step * users) + step * moments.second**2 / 2 + bias
        start = dim * (step * norm) ** 2 * 2 / rho
    total += moments.first * math.sqrt(start)
    numbers = {"step_size": eta, "clip_norm": clip}
    bound = heavy_tailed.glm_bound(moments, far, **SIZES, **numbers)
    slack = moments.highest**3 * far / clip**2
    assert total <= bound <= total + slack * 1.001 + 32 * dim * eta * clip**2 / (rho * n) / n * 2


def test_the_printed_bound_of_glms_is_not_what_its_proof_adds_up_to():
    """At the printed step and clip, of bounded slopes, in few dimensions: 16/√8 = 5.66 > 4."""
    moments, far = Moments(32.0, 1.0), 1.0
    n, dim, rho, k = 2**20, 1, 100.0, 32.0
    noisy = (n**2 * rho / (32 * dim)) ** ((k - 1) / (2 * k)) * 2 ** ((k + 1) / (2 * k)) / n
    eta = min(math.sqrt(8 / n) * far, noisy)
    clip = (far * rho * n / (32 * eta * dim)) ** (1 / (k + 1))
    numbers = {"num_users": n, "dim": dim, "rho": rho, "step_size": eta, "clip_norm": clip}
    bound = heavy_tailed.glm_bound(moments, far, **numbers)
    printed = heavy_tailed.glm_bound(moments, far, **numbers, printed=True)
    assert bound > 1.2 * printed


@pytest.mark.parametrize("order", [2.0, 2.5, 4.0, math.inf])
def test_strongly_convex_losses_have_the_square_of_the_rate_over_the_convexity(order):
    """The fixed point of E = r·√(2E/μ) has the terms of r²; exponents 1 in n, and 2 - 2/k in n and in ρ."""
    power = 1 - 1 / order
    sizes = SIZES | {"failure": math.exp(-2)}
    noise, still = Moments(order, 1.0, 1e-9), Moments(order, 1e-9)

    def at(moments, **changes):
        return heavy_tailed.strongly_convex(moments, 0.5, **(sizes | changes))

    np.testing.assert_allclose(at(noise) / at(noise, num_users=2**13), 4**power, rtol=1e-6)
    np.testing.assert_allclose(at(noise) / at(noise, rho=1.0), 4**power, rtol=1e-6)
    still_there = {"rho": 1e30}
    np.testing.assert_allclose(at(still, **still_there), 1e-18 * 2 / (0.5 * 2**12), rtol=1e-6)
    for moments, extra in ((noise, {}), (still, still_there)):
        root = heavy_tailed.high_probability(moments, 1.0, **sizes | extra)
        np.testing.assert_allclose(at(moments, **extra), root**2 / 0.5, rtol=1e-6)
    printed = heavy_tailed.strongly_convex(noise, 0.5, **sizes, printed=True)
    np.testing.assert_allclose(printed / at(noise), 2**power, rtol=1e-6)
