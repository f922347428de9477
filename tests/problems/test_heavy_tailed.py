"""Laws with heavy tails: closed forms against quadrature, draws against both, and where minimizers are."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from dpsco_jax.problems import heavy_tailed
from dpsco_jax.problems.users import mean_loss

CASES = [
    heavy_tailed.Tail(family, index, dim)
    for family in heavy_tailed.FAMILIES
    for index, dim in ((2.5, 1), (4.0, 5), (8.0, 20))
]


def raw_survival(tail):
    """P(length > t) before E‖z‖² is brought to 1, and E length², both from SciPy."""
    if tail.family == "pareto":
        return lambda t: stats.pareto.sf(t, tail.index), stats.pareto(tail.index).moment(2)
    law = stats.f(tail.dim, tail.index)
    return lambda t: law.sf(t * t / tail.dim), tail.dim * law.mean()


@pytest.mark.parametrize("tail", CASES, ids=str)
def test_moments_in_closed_form_are_integrals_of_the_tail(tail):
    survival, second = raw_survival(tail)

    def of_log(log, order):  # E t^k = ∫ k·t^(k-1)·P(length > t) dt
        return order * math.exp(order * log) * survival(math.exp(log))

    for order in (0.5, 1.0, 2.0, 0.7 * tail.index):
        pieces = (integrate.quad(of_log, a, a + 4, (order,))[0] for a in range(-40, 80, 4))
        wanted = sum(pieces) / second ** (order / 2)
        assert tail.norm_moment(order) == pytest.approx(wanted, rel=1e-7)
        assert tail.expectation(lambda t, k=order: t**k) == pytest.approx(wanted, rel=1e-7)
    assert tail.norm_moment(tail.index) == math.inf


def test_slopes_of_means_have_the_closed_form_of_pareto():
    tail, radius = heavy_tailed.Tail("pareto", 4.0, 3), 2.0
    made = heavy_tailed.means(tail, radius)
    least = 1 / math.sqrt(2)  # the shortest length: E‖z‖² = least²·ν/(ν - 2)
    for order in (1.0, 2.0, 2.5, 3.7):
        # E (R + least·ξ)^k = least^k·ν/(ν - k)·2F1(-k, ν - k; ν - k + 1; -R/least)
        power = special.hyp2f1(-order, 4 - order, 5 - order, -radius / least)
        power *= 4 / (4 - order) * least**order
        assert made.slope_moment(order) ** order == pytest.approx(power, rel=1e-9)


def test_slopes_of_means_are_binomial_sums():
    tail, radius = heavy_tailed.Tail("student", 8.0, 5), 1.5
    made = heavy_tailed.means(tail, radius)
    for order in (2, 3, 6):
        terms = [
            math.comb(order, j) * radius ** (order - j) * (tail.norm_moment(j) if j else 1.0)
            for j in range(order + 1)
        ]
        assert made.slope_moment(order) ** order == pytest.approx(sum(terms), rel=1e-9)
    moments = made.moments(3.0)
    assert moments.highest >= made.slope_moment(3.0) >= moments.highest - 1e-3


def test_slopes_of_linear_models_are_those_of_one_sided_labels():
    tail = heavy_tailed.Tail("pareto", 4.0)
    made = heavy_tailed.linear_model(tail, 3, radius=2.0, truth_norm=1.0, noise=0.5)
    draws = stats.pareto.rvs(4.0, size=10**6, random_state=0) / math.sqrt(2)
    slopes = 3.0 + 0.5 * np.abs(draws - 4 / 3 / math.sqrt(2))
    assert made.slope_moment(1.0) == pytest.approx(slopes.mean(), rel=1e-3)
    assert made.slope_moment(2.0) == pytest.approx(math.sqrt((slopes**2).mean()), rel=1e-3)


@pytest.mark.parametrize("family", heavy_tailed.FAMILIES)
def test_draws_have_the_law(family):
    tail = heavy_tailed.Tail(family, 4.0, 3)
    drawn = np.asarray(tail.draw(jax.random.key(0), 40_000), float)
    lengths = np.linalg.norm(drawn, axis=1)
    survival, second = raw_survival(tail)
    found = stats.kstest(lengths * math.sqrt(second), lambda t: 1 - survival(t))
    assert found.pvalue > 1e-3
    error = 4 * drawn.std(axis=0) / math.sqrt(len(drawn))
    assert np.all(np.abs(drawn.mean(axis=0) - tail.mean) < error)


@pytest.mark.parametrize("family", heavy_tailed.FAMILIES)
def test_minimizers_and_excess_are_those_of_many_draws(family):
    populations = [
        heavy_tailed.means(heavy_tailed.Tail(family, 8.0, 3), 2.0),
        heavy_tailed.linear_model(heavy_tailed.Tail(family, 8.0), 3, 2.0),
    ]
    for made in populations:
        data = made.draw(jax.random.key(1), 40_000)
        value = jax.jit(mean_loss(made.objective))
        away = jnp.asarray(made.minimizer + np.array([0.3, -0.2, 0.1]))
        gained = float(value(away, data) - value(jnp.asarray(made.minimizer), data))
        assert gained == pytest.approx(float(made.excess(away)), abs=0.02)
        assert float(made.excess(made.minimizer)) == 0.0
        slope = jax.grad(value)(jnp.asarray(made.minimizer, jnp.float32), data)
        np.testing.assert_allclose(slope, 0.0, atol=0.03)


def test_orders_without_a_moment_are_refused():
    made = heavy_tailed.means(heavy_tailed.Tail("student", 2.5, 3), 2.0)
    for order in (2.5, 1.5, math.inf):
        with pytest.raises(ValueError, match="order must be"):
            made.moments(order)
    with pytest.raises(ValueError, match="radius must be at least that of the mean"):
        heavy_tailed.means(heavy_tailed.Tail("pareto", 4.0, 3), 0.5)
