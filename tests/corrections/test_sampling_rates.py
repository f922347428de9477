"""Rates, norms and lower bounds of sampling (docs/corrections.md): the printed claim fails, ours holds."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.geometry import lp
from dpsco_jax.problems import value_instances
from dpsco_jax.rates import norms, sampling, sampling_tables, value_queries
from tests.support.gaussians import gaussian_delta


def true_gdp(k, mu, n, lipschitz):
    """Of losses ±G<u, x> with a quadratic r: Gaussian laws, apart by 2G/(nμ), of variance 1/(kμ)."""
    return 2 * lipschitz / (n * mu) * math.sqrt(k * mu)


def test_differences_of_losses_have_twice_the_lipschitz_constant():
    """Theorem 4.4.2 as printed, with G for G_Δ, at ε = 1, δ = 1e-6."""
    n, d, g, theta, log = 500, 10, 3.0, 0.5, math.log(1 / 2e-6)
    k = math.sqrt(d) * n / (g * math.sqrt(2 * theta * log))
    mu = g * math.sqrt(2 * d * log) / (math.sqrt(theta) * n)
    spent = true_gdp(k, mu, n, g)
    assert spent == pytest.approx(0.390, abs=1e-3)
    assert gaussian_delta(1.0, spent) == pytest.approx(1.05e-3, rel=0.01)
    # Ours says what it is, and plans for it.
    assert sampling.gdp_of_draw(k, mu, n, 2 * g) == pytest.approx(spent, rel=1e-14)
    draw = sampling.erm(0.2367, n, d, 2 * g, theta)
    assert true_gdp(draw.inverse_temperature, draw.regularization, n, g) == pytest.approx(0.2367)
    assert gaussian_delta(1.0, 0.2367) <= 1.002e-6


def test_the_population_parameters_of_proposition_5_5_6_lack_a_factor_two():
    n, d, g, log = 100, 10**4, 1.0, math.log(1 / 2e-6)
    k = 50.0
    mu = g**2 * k * max(log / n**2, 1 / (n * d))
    printed = g * math.sqrt(k) / (n * math.sqrt(mu))
    assert gaussian_delta(1.0, printed) == pytest.approx(1.6e-5, rel=0.03)
    assert gaussian_delta(1.0, true_gdp(k, mu, n, g)) == pytest.approx(1.2e-2, rel=0.03)
    # Ours: μ = G_Δ²k·max(1/(s²n²), 1/(2nd)).
    draw = sampling.thrifty_sco(0.2367, n, d, g, 2 * g, 0.5)
    slope = 4 * draw.inverse_temperature * max(1 / (0.2367 * n) ** 2, 1 / (2 * n * d))
    assert draw.regularization == pytest.approx(slope)
    assert true_gdp(*draw[:2], n, g) <= 0.2367 * (1 + 1e-12)


def test_generalization_has_the_square_of_the_lipschitz_constant():
    """Linear losses s·x, s = ±G: E(F_P - F_D) = Var(s)/(nμ) = G²/(nμ), where Theorem 3.6.8 prints G/(nμ)."""
    g, n, mu = 10.0, 4, 0.5
    means = np.array([2 * j - n for j in range(n + 1)]) * g / n
    weights = stats.binom.pmf(np.arange(n + 1), n, 0.5)
    gap = weights @ (-means * (-means / mu))  # E x = -mean/μ, F_P = 0, F_D = mean·x
    assert gap == pytest.approx(g**2 / (n * mu))
    assert gap > g / (n * mu)
    draw = sampling.strongly_convex(1.0, n, 1, 2 * g, mu, lipschitz=g)
    assert draw.generalization_risk == pytest.approx(2 * gap)


def test_a_regularizer_away_from_its_domain_ranges_further():
    """½‖x‖² on the ball of radius 1 around 5e₁: the range is 10, not D²/2 = 2; centred it is ½."""
    center = 5.0 * np.eye(3)[0]
    ends = np.stack([center + np.eye(3)[0], center - np.eye(3)[0]])
    values = 0.5 * np.sum(ends**2, axis=1)
    assert values.max() - values.min() == pytest.approx(10.0)
    r = lp.Regularizer(2.0, 3)
    assert r.range(1.0) == 0.5
    with jax.enable_x64(True):
        assert max(float(r.value(end, center)) for end in ends) == pytest.approx(0.5)


def test_the_last_step_of_theorem_3_7_1_loses_a_root_of_two():
    # Where 4k = d the proof gives GD/(16√2); print claims GD/16.
    k, d = 100, 400
    proved = value_queries.minimax_lower_bound(k, d, direction="signs")
    assert proved == pytest.approx(1 / (16 * math.sqrt(2)))
    assert proved < 1 / 16 * min(1, math.sqrt(d / (4 * k)))
    # Claim 3.7.2 is of points of the ball; outside of it the risk falls below the least.
    v = np.ones(4)
    assert v @ (-10 * v) - v @ (-v / 2) < 0


def test_the_exponent_at_one_is_none_in_few_dimensions():
    """q = 1 + 1/log d of Corollary 4.4.11: above 2 for d = 2, where ‖x‖_q² is not strongly convex."""
    q = 1 + 1 / math.log(2)
    assert q > 2.44
    step = 1e-3
    bregman = math.e**2 / (2 * (q - 1)) * ((1 + step**q) ** (2 / q) - 1)  # from e₁ to e₁ + t·e₂
    assert bregman < 0.5 * step**2
    r = lp.Regularizer(1.0, 2)
    assert r.exponent == 2.0
    with jax.enable_x64(True):
        start, end = np.array([1.0, 0.0]), np.array([1.0, step])
        ours = float(r.value(end) - r.value(start) - r.gradient(start) @ (end - start))
    assert ours >= 0.5 * step**2
    assert norms.regularizer_range(1.0, 1) == 0.5


def test_matrices_at_one_have_a_finite_bound():
    """Corollary 4.4.13, item 2, divides by √(p - 1) at p = 1."""
    found = sampling_tables.general_norm_rate(1.0, 1000, 30, 0.2, 1e-6, columns=10)
    assert found == pytest.approx(
        6 * math.sqrt(math.log(10)) * math.sqrt(300 * math.log(1e6)) / (1000 * 0.2)
    )


def test_a_split_delta_stays_split():
    """Corollary 4.4.10 runs at δ/2, and its own k and μ promise log(1/δ); it prints log(1/(2δ))."""
    n, d, p, epsilon, delta = 1000, 20, 1.5, 0.2, 1e-6
    s = epsilon / math.sqrt(2 * math.log(1 / (2 * (delta / 2))))
    own = sampling.erm(s, n, d, 1.0, 1 / (2 * (p - 1))).risk
    printed = 2 * math.sqrt(d * math.log(1 / (2 * delta)) / (p - 1)) / (n * epsilon)
    assert own > printed
    ours = sampling_tables.general_norm_rate(p, n, d, epsilon, delta)
    assert own == pytest.approx(ours)


def test_another_norm_has_another_lipschitz_constant():
    """Theorem 5.5.8 puts p' = 1 + 1/log d for p = 1 and keeps G; <s, x> with s = G·1 is e times steeper."""
    d = 1000
    other = 1 + 1 / math.log(d)
    slope = np.linalg.norm(np.ones(d), norms.dual_exponent(other))
    assert slope == pytest.approx(norms.norm_ratio(1.0, other, d))
    assert slope > 2.3


def test_signs_are_no_lower_bound_near_one():
    """Proposition 5.7.4 claims Ω(GD/log d·√(d/(k·log d))) at p = 1, from signs, "by norm conversions".

    All values at e₁ tell v₁ but for probability Φ(-√d/2), and a vertex of the ball with one right sign is a
    minimizer. For ±e_j the bound holds, without the 1/log d.
    """
    d, k = 100, 1000
    law = value_queries.hard_scales(k, d, p=1.0)
    wrong = stats.norm.cdf(-law.mean * math.sqrt(k) / law.stddev)
    assert wrong == pytest.approx(stats.norm.cdf(-math.sqrt(d) / 2))
    risk = law.mean * wrong  # D = 1: of 2R·κ where the sign is wrong, 0 where it is right
    claimed = sampling_tables.minimax_rate(k, d, p=1.0)
    assert risk < 1e-5 * claimed
    assert law.risk == 0.0
    # Nor does another exponent of the scales help: κ is at most G.
    assert 1.0 * wrong < 1e-5
    ours = value_queries.minimax_lower_bound(k, d, p=1.0)
    assert ours > 0.1 * claimed
    grown = [
        value_queries.minimax_lower_bound(100 * dim, dim, p=1.0)
        / sampling_tables.minimax_rate(100 * dim, dim, p=1.0)
        for dim in (10**2, 10**4, 10**8)
    ]
    assert grown[0] < grown[1] < grown[2]
    # Lemma 5.7.2 counts the signs that are those of v, none at 0, and claims d/4: a zero must count as well.
    assert np.sum(np.sign(np.zeros(d)) == 1.0) < d / 4 <= np.sum(np.zeros(d) >= 0)
    # At p = 1 the instances have an axis for direction.
    hard = value_instances.hard_linear_instance(jax.random.key(0), 5, d, k, p=1.0)
    assert np.abs(hard.direction).sum() == 1.0


def test_the_largest_of_few_normal_numbers():
    """(5.32) rests on E max u² ≤ 2·log d, which is 0 at d = 1; with its σ the law leaves its class."""
    for k in (1, 100):
        sigma = 1.0 / math.sqrt(1 / k + 4 * math.log(1))
        kappa = sigma / (2 * math.sqrt(k))
        assert kappa**2 + sigma**2 > 1.2
        law = value_queries.hard_scales(k, 1)
        assert law.mean**2 + law.stddev**2 == pytest.approx(1.0)
    assert 1 + 2 / math.pi > 2 * math.log(2)  # E max(u₁², u₂²)
