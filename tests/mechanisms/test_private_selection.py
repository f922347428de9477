"""Geometric private selection: its law by quadrature, its guarantee exactly, edge cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax import privacy
from dpsco_jax.mechanisms import additive, private_selection

SCALE, GAMMA = 0.7, 0.05
MEANS = np.array([0.0, 0.5, 1.0, 2.0])


def result_density(means, values, gamma, scale=SCALE):
    """[candidates, values]: p_j(v)/K · γ/(γ + (1 - γ)F(v))²."""
    law = scipy.stats.laplace(loc=np.asarray(means)[:, None], scale=scale)
    below = np.mean(law.cdf(values), axis=0)
    return law.pdf(values) / len(means) * gamma / (gamma + (1 - gamma) * below) ** 2


def run(means, gamma, trials, seed=0):
    means = jnp.asarray(np.float32(means))

    def candidate(key, index):
        return additive.laplace(key, means[index], SCALE)

    select = jax.vmap(
        lambda k: private_selection.geometric_selection(k, candidate, len(means), gamma)
    )
    return jax.jit(select)(jax.random.split(jax.random.key(seed), trials))


def test_law():
    """The probabilities 0.5172, 0.2805, 0.1524, 0.0499, and the law of the value too."""
    values = np.linspace(-25, 15, 40_001)
    density = result_density(MEANS, values, GAMMA)
    expected = np.trapezoid(density, values, axis=1)
    np.testing.assert_allclose(expected, [0.5172, 0.2805, 0.1524, 0.0499], atol=1e-4)
    trials = 30_000
    found = run(MEANS, GAMMA, trials)
    observed = np.bincount(found.choice, minlength=4)
    assert scipy.stats.chisquare(observed, expected / expected.sum() * trials).pvalue > 1e-3
    cumulative = np.cumsum(density.sum(0)) * (values[1] - values[0])
    law = lambda v: np.interp(v, values, cumulative)  # noqa: E731
    assert scipy.stats.kstest(np.asarray(found.value), law).pvalue > 1e-3


def test_the_number_of_draws_is_geometric():
    draws = np.asarray(run([0.0], 0.2, 30_000, seed=1).draws)
    assert draws.min() == 1
    observed = np.bincount(np.minimum(draws, 20), minlength=21)[1:]
    expected = scipy.stats.geom.pmf(np.arange(1, 21), 0.2)
    expected[-1] = scipy.stats.geom.sf(19, 0.2)
    assert scipy.stats.chisquare(observed, expected * len(draws)).pvalue > 1e-3


def test_guarantee_is_exact(rng):
    """Means that move by at most scale·ε₁, in any direction: the density moves by e^(3ε₁) at most."""
    epsilon, values = 0.3, np.linspace(-6, 8, 2001)
    worst = 0.0
    corners = [np.array(c) * 2 - 1 for c in np.ndindex(2, 2, 2, 2)]
    for gamma in (0.9, 0.05, 1e-4):
        for move in corners + list(rng.uniform(-1, 1, (10, 4))):
            before = result_density(MEANS, values, gamma)
            after = result_density(MEANS + SCALE * epsilon * move, values, gamma)
            worst = max(worst, np.abs(np.log(before / after)).max())
    assert 2.7 * epsilon < worst <= 3 * epsilon * (1 + 1e-9)
    loss = private_selection.geometric_selection_loss(epsilon)
    np.testing.assert_array_equal(loss.rdp, privacy.pure_dp(3 * epsilon).rdp)


def joint_density(means, values, draws, gamma):
    """[candidates, values]: of candidate and value together with N = ``draws``."""
    law = scipy.stats.laplace(loc=np.asarray(means)[:, None], scale=SCALE)
    above = np.mean(law.sf(values), axis=0)
    stops = scipy.stats.geom.pmf(draws, gamma)
    return law.pdf(values) / len(means) * stops * draws * above ** (draws - 1)


def test_the_number_of_draws_is_not_covered():
    """With N shown, N draws cost Nε₁: the joint law, exactly. Without it three of them are paid for."""
    epsilon, gamma, values = 0.3, 0.1, np.linspace(-6, 8, 1401)
    other = MEANS + SCALE * epsilon
    for draws in (1, 2, 4, 7, 20):
        joint = [joint_density(m, values, draws, gamma) for m in (MEANS, other)]
        shown = np.abs(np.log(joint[0] / joint[1])).max()
        assert shown == pytest.approx(draws * epsilon, rel=1e-6)
    together = [
        sum(joint_density(m, values, n, gamma) for n in range(1, 600)) for m in (MEANS, other)
    ]
    np.testing.assert_allclose(together[0], result_density(MEANS, values, gamma), rtol=1e-9)
    assert np.abs(np.log(together[0] / together[1])).max() <= 3 * epsilon

    # Seven draws or more and none of them below 1: it tells more than a certificate of 3ε₁ allows.
    count = np.arange(7, 2000)
    event = [
        np.sum(
            scipy.stats.geom.pmf(count, gamma)
            * np.mean(scipy.stats.laplace(m, SCALE).sf(1.0)) ** count
        )
        for m in (MEANS, other)
    ]
    assert event[1] / event[0] > 1.3 * np.exp(3 * epsilon)


def test_the_joint_law_of_draws_and_value_is_that_of_the_run():
    """What the account above speaks of is what runs: values at a given number of draws."""
    found = run(MEANS, 0.2, 30_000, seed=3)
    for draws in (1, 4):
        values = np.asarray(found.value)[np.asarray(found.draws) == draws]
        grid = np.linspace(-25, 25, 20_001)
        density = joint_density(MEANS, grid, draws, 0.2).sum(0)
        cumulative = np.cumsum(density) / density.sum()
        law = lambda v, x=grid, c=cumulative: np.interp(v, x, c)  # noqa: E731
        assert scipy.stats.kstest(values, law).pvalue > 1e-3


@pytest.mark.parametrize(
    ("gamma", "missed"), [(0.1, 0.474), pytest.param(0.002, 0.018, marks=pytest.mark.slow)]
)
def test_probability_that_the_best_is_never_drawn(gamma, missed):
    """γ(1-1/K)/(1-(1-γ)(1-1/K)): nearly a half for the γ = 1/K, 0.018 for γ = 0.02/K."""
    means = np.concatenate([[-1000.0], np.zeros(9)])
    found = np.mean(run(means, gamma, 1000, seed=2).choice != 0)
    assert abs(found - missed) < 4 * np.sqrt(missed / 1000)


def test_a_candidate_that_is_no_number_is_not_selected():
    found = run([np.nan, 0.0], 0.01, 200)
    assert np.mean(found.choice == 1) > 0.95
    # Nothing but NaN was drawn where it is.
    assert np.all(np.isinf(found.value[found.choice == 0]))


def test_one_draw_and_traced_numbers():
    assert np.all(run(MEANS, 1.0, 50).draws == 1)
    means = jnp.asarray(np.float32(MEANS))

    @jax.jit
    def select(gamma):
        candidate = lambda k, i: additive.laplace(k, means[i], SCALE)  # noqa: E731
        return private_selection.geometric_selection(jax.random.key(0), candidate, 4, gamma)

    assert select(1.0).draws == 1
    assert select(1e-3).draws > 1


def test_a_probability_of_stopping_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="stopping_probability"):
        private_selection.geometric_selection(jax.random.key(0), lambda k, i: i, 2, 1e-9)
