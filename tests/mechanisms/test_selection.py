"""Private selection: exact probabilities, guarantees computed from them, edge cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpsco_jax.mechanisms import selection

LAWS = {
    selection.exponential_mechanism: scipy.stats.gumbel_r,
    selection.permute_and_flip: scipy.stats.expon,
    selection.report_noisy_max: scipy.stats.laplace,
}
MECHANISMS = list(LAWS)


def probabilities(mechanism, scores, scale):
    """P(i wins) = E Π_{j≠i} cdf(s_i + noise - s_j), by the midpoint rule over quantiles of the noise."""
    law = LAWS[mechanism]
    noise = law.ppf((np.arange(10_000) + 0.5) / 10_000)
    scores = np.asarray(scores) / scale
    lead = scores[:, None] - np.asarray(scores)[None, :]
    wins = law.cdf(noise[:, None, None] + lead)
    return np.mean(np.prod(wins, axis=2, where=~np.eye(len(scores), dtype=bool)), axis=0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("monotone", [False, True])
def test_probabilities(mechanism, monotone):
    scores = jnp.array([0.0, 1.0, 2.5, 2.0])
    epsilon, sensitivity, trials = 1.5, 2.0, 40_000
    draw = jax.vmap(lambda k: mechanism(k, scores, epsilon, sensitivity, monotone))
    drawn = jax.jit(draw)(jax.random.split(jax.random.key(0), trials))
    scale = (1 if monotone else 2) * sensitivity / epsilon
    expected = probabilities(mechanism, scores, scale)
    np.testing.assert_allclose(expected.sum(), 1, atol=1e-3)
    observed = np.bincount(drawn, minlength=4)
    assert scipy.stats.chisquare(observed, expected / expected.sum() * trials).pvalue > 1e-3


def test_exponential_mechanism_is_the_softmax():
    scores = np.array([0.0, 1.0, 2.5, 2.0])
    np.testing.assert_allclose(
        probabilities(selection.exponential_mechanism, scores, 3.0),
        scipy.special.softmax(scores / 3.0),
        atol=1e-5,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("monotone", [False, True])
def test_guarantee_holds_for_the_worst_moves(mechanism, monotone, rng):
    """The exact probabilities obey ε for every corner of the set of neighbouring scores."""
    epsilon, sensitivity = 0.8, 1.0
    scale = (1 if monotone else 2) * sensitivity / epsilon
    worst = worst_range = 0.0
    for scores in rng.normal(0, 2, (2, 3)):
        before = probabilities(mechanism, scores, scale)
        for corner in np.ndindex(2, 2, 2):
            move = np.asarray(corner) if monotone else 2 * np.asarray(corner) - 1
            ratio = np.log(before / probabilities(mechanism, scores + move, scale))
            worst = max(worst, np.abs(ratio).max())
            worst_range = max(worst_range, np.ptp(ratio))
    assert worst <= epsilon + 2e-3
    if mechanism is selection.exponential_mechanism:
        assert 0.9 * epsilon < worst_range <= epsilon + 2e-3


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_candidates_that_are_not_finite_are_never_selected(mechanism):
    scores = jnp.array([jnp.nan, 0.0, -jnp.inf, jnp.inf, 0.0])
    drawn = jax.vmap(lambda k: mechanism(k, scores, 1.0, 1.0))(
        jax.random.split(jax.random.key(0), 200)
    )
    assert set(np.asarray(drawn).tolist()) == {1, 4}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_arguments(mechanism):
    key = jax.random.key(0)
    assert mechanism(jax.random.clone(key), np.array([5]), 1, 1).dtype == jnp.int32
    # Far apart in units of the noise, even as integers: the larger one.
    assert mechanism(jax.random.clone(key), np.array([0, 10**6]), 1.0, 1.0) == 1
    with pytest.raises(ValueError, match="candidates"):
        mechanism(key, jnp.zeros(0), 1.0, 1.0)
