"""Section R of docs/corrections.md: the printed claim fails, ours holds."""

import numpy as np
import pytest

from dpsco_jax.rates import stability
from dpsco_jax.rates.user_level import METHODS, Setting

ACCELERATED = next(method for method in METHODS if method.name == "accelerated_phased_erm")


def counted(s):
    """m·Σ T·K for one phase of Algorithm 33, from its own T, K and λ; smoothed if there is no β."""
    n, m, d, e = s.num_users, s.items_per_user, s.dim, s.epsilon
    curvature = e * n * np.sqrt(m) if s.smoothness is None else s.smoothness
    regularization = 1 / np.sqrt(n * m) + np.sqrt(d) / (e * n * np.sqrt(m))
    steps = 1 + np.sqrt(curvature / regularization)
    return m * steps * np.maximum(n / steps, 1 / e + n * e / np.sqrt(steps))


SIZES = np.meshgrid([10.0, 1e3, 1e6], [1.0, 1e4, 1e12], [1.0, 1e4], [0.1, 1.0, 8.0], indexing="ij")


def test_r1_the_last_terms_are_a_minimum_and_the_exponent_is_one_half():
    for beta in (1e-2, 1.0, 1e6):
        setting = Setting(*SIZES, smoothness=beta)
        ratio = ACCELERATED.gradients(setting) / counted(setting)
        assert ratio.min() > 0.2
        assert ratio.max() < 8.0
    # Users few, items many, d large: the printed sum is larger than what is needed without limit.
    setting = Setting(10.0, 1e12, 1e12, smoothness=1.0)
    printed = 10**0.25 * 1e15 + 10**0.5 * 1e15 / 1e3
    assert printed > 50 * counted(setting)
    # And the table's β^(1/4) is too small without limit.
    setting = Setting(10.0, 1e12, 10.0, smoothness=1e12)
    printed = 1e3 * (10 * 1e12) ** 1.125 + 1e3 * 10**0.25 * 1e15
    assert printed < 1e-1 * counted(setting)


def test_r2_smoothing_costs_another_term_and_another_power_of_epsilon():
    setting = Setting(*SIZES)
    ratio = ACCELERATED.gradients(setting) / counted(setting)
    assert ratio.min() > 0.2  # enough everywhere; fewer are needed where d is large

    def printed(n, m, e):
        return m * n * (1 + n**0.375 * m**0.25 * e**0.25)

    many_items = Setting(10.0, 1e12, 1.0)
    assert printed(10.0, 1e12, 1.0) < 0.01 * counted(many_items)
    large_epsilon = Setting(1e6, 10.0, 1.0, epsilon=10.0)
    assert printed(1e6, 10.0, 10.0) < 0.2 * counted(large_epsilon)
    # λ = 1/√(mn) alone leaves the privacy error d/(ε²n^1.5·√m), more than √d/(εn√m) unless d ≤ ε²n.
    n, m, d, e = 1e4, 100.0, 1e6, 1.0
    variance = d / (m * n**2 * e**2)  # of the noise of all steps, over their number
    assert variance * np.sqrt(n * m) == pytest.approx(d / (e**2 * n**1.5 * m**0.5))
    assert variance * np.sqrt(n * m) > 5 * np.sqrt(d) / (e * n * np.sqrt(m))


def test_r3_replacing_an_item_moves_the_mean_gradient_by_twice_the_bound():
    lipschitz, step, steps, items = 1.0, 0.1, 36, 3
    # Linear losses: all items at 0 but one, at ±1.
    ends = [-step * steps * sign * lipschitz / items for sign in (1.0, -1.0)]
    moved = abs(ends[0] - ends[1])
    assert moved > lipschitz * step * (np.sqrt(steps) + steps / items)
    for smooth in (True, False):
        ours = stability.iterate_stability(lipschitz, step, steps, items, smooth)
        assert moved <= ours * (1 + 1e-12)
