"""Section X of docs/corrections.md, estimated exponentials: the printed claim fails, ours holds."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.problems import losses
from dpsco_jax.rates.norms import best_exponent
from dpsco_jax.solvers.sampling import _rejection_certificate as error
from dpsco_jax.solvers.sampling import rejection_oracle as series
from dpsco_jax.solvers.sampling._value_queries_plan import setting_of


def variation(c, tails):
    """Of what counts, for one linear loss, where a has the given Pr[a ≥ b]; by quadrature."""
    grid = np.linspace(-9, 9, 121) * math.sqrt(c)
    fine = np.linspace(-9, 9, 1001) * math.sqrt(c)
    mass = stats.norm.pdf(fine, 0, math.sqrt(c)) * (fine[1] - fine[0])
    jump = fine - grid[:, None]
    clipped, rho, power = 0.0, np.ones_like(jump), np.ones_like(jump)
    for more, fewer in zip(tails, [*tails[1:], 0.0], strict=True):
        power = power * jump
        rho = rho + power
        clipped = clipped + (more - fewer) * np.clip(rho, 0, 2) @ mass
    base = stats.norm.pdf(grid, 0, math.sqrt(c))
    found, ideal = base * clipped, base * np.exp(-grid)
    return 0.5 * np.abs(found / found.sum() - ideal / ideal.sum()).sum()


def test_one_over_b_is_not_the_law_of_therejection_oracle():
    each = np.arange(1, 41)
    printed, true = 1 / each, np.array([1 / math.factorial(b) for b in each])
    delta = 0.3
    # Given x and z the estimate averages to 1 - log(1 - Δ), not to e^Δ.
    assert abs(1 + np.sum(printed * delta**each) - (1 - math.log(1 - delta))) < 1e-12
    assert abs(1 + np.sum(true * delta**each) - math.exp(delta)) < 1e-12
    for c, known in ((0.01, 3.65e-4), (0.006, 1.6e-4)):
        wrong, right = variation(c, printed), variation(c, true)
        assert abs(wrong - known) < 0.1 * known
        assert wrong > 200 * right
        assert right < error.inner_variation(c, 16) < wrong
    with jax.enable_x64(True):
        draw = jax.jit(jax.vmap(lambda key: series.draw_length(key, 16)))
        found = np.asarray(draw(jax.random.split(jax.random.key(0), 100_000)))
    assert abs((found >= 3).mean() - 1 / 6) < 4 * math.sqrt(5 / 36 / 100_000)


def test_points_are_not_near_one_another_in_many_dimensions():
    """‖x - z‖ of two N(0, ηI) has the tail of √(2η)·χ_d, far above 2·exp(-t²/(8η)); differences do not."""
    eta, dim, lipschitz = 0.01, 100, 1.0
    t = 0.9 * math.sqrt(2 * eta * dim)
    true = stats.chi2.sf(t**2 / (2 * eta), dim)
    assert true > 0.8 > 1e-6 > 2 * math.exp(-(t**2) / (8 * eta))
    # The second form of it, with the modulus of (5.37), and any constant in place of 8.
    assert true > 2 * math.exp(-(t**2) / (96 * eta))
    # What the bound is for: a linear loss differs by N(0, 2ηG²), whatever the dimension.
    c = eta * lipschitz**2
    for level in (0.1, 0.3, 0.6):
        assert 2 * stats.norm.sf(level / math.sqrt(2 * c)) <= 2 * math.exp(-(level**2) / (4 * c))


def test_the_expected_estimate_is_at_least_one_and_the_printed_steps_do_not_give_two_thirds():
    scaled = 1 / 8  # ηG²
    printed = (1 - math.exp(-2)) * math.exp(-2 * math.sqrt(scaled))
    assert 0.42 < printed < 0.43 < 2 / 3
    # F = G·x under N(0, η): E e^{-F}·E e^F = e^{ηG²}; and Jensen for anything.
    assert math.exp(scaled) >= 1
    values = np.random.default_rng(0).normal(size=1000) ** 3
    assert np.exp(-values).mean() * np.exp(values).mean() >= 1


def test_the_printed_parts_of_the_error_do_not_add_up():
    for inner in (1e-2, 1e-6):
        rate = math.log(400 / inner)  # of 1/(64·G²·η), at the largest η
        total = inner / 16 + 17 * sum(math.exp(k - k**2 * rate) for k in range(1, 20))
        assert total > 1.5 * inner / 9
        # Ours is below at a step that is far larger than 1/(10⁴·log(1/δ)), and than these.
        c = error.largest_c(inner, 12)
        assert c > 1 / (64 * rate) > 0
        assert error.inner_variation(c, 12) <= inner
    # Splitting |ρ| at 2L, as printed, in place of 2^L leaves values between them uncounted.
    assert all(2**length > 2 * length for length in range(3, 20))


def test_other_norms_cost_less_than_is_printed():
    def factor(p, dim):
        """Of steps over those in ℓ2, for rows of norm 1 in the dual of ℓ_p."""
        setting = setting_of(losses.absolute(float(dim)), 100, 1, dim, p, 1.0)
        # Steps are as kG₂²/(σμ), and k/(σμ) is s²n²/G_Δ² for the G_Δ of the norm.
        return (setting.euclidean / setting.lipschitz) ** 2

    for p, dim in ((1.0, 7), (1.5, 7), (3.0, 50), (math.inf, 50)):
        assert factor(p, dim) == pytest.approx(1.0)
        assert dim ** abs(2 / p - 1) > 1.9  # as printed
    for p, dim in ((1.0, 50), (1.1, 50)):
        q = best_exponent(p, dim)
        assert factor(p, dim) == pytest.approx(dim ** (2 / q - 1))
        assert factor(p, dim) < 0.8 * dim ** (2 / p - 1)
