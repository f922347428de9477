"""Noise correlated over steps: the factorization, what a user can do to it, what sums keep of it."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

from dpsco_jax import _compensated, privacy, transforms
from dpsco_jax.mechanisms import correlated_noise

make = correlated_noise.banded_square_root


def matrices(correlation):
    """D, which takes noise back, and C, its inverse, as dense matrices."""
    steps = correlation.num_steps
    column = np.zeros(steps)
    column[: len(correlation.taken_back)] = correlation.taken_back
    taken_back = scipy.linalg.toeplitz(column, np.zeros(steps))
    return taken_back, np.linalg.inv(taken_back)


@pytest.mark.parametrize(("steps", "bands"), [(1, 3), (9, 1), (9, 4), (9, 9)])
def test_it_factorizes_prefix_sums(steps, bands):
    """B·C = A for the sums A, with B = A·D; and B = C, the square root of A, where nothing is cut."""
    correlation = make(steps, 1, bands=bands)
    taken_back, stretched = matrices(correlation)
    sums = np.tril(np.ones((steps, steps)))
    np.testing.assert_allclose(sums @ taken_back @ stretched, sums, atol=1e-12)
    response = correlated_noise._inverse(correlation.taken_back, steps)
    np.testing.assert_allclose(response, stretched[:, 0], rtol=1e-12)
    assert np.all(response >= 0)
    assert np.all(np.diff(response) <= 0)
    if bands == steps:
        np.testing.assert_allclose(stretched @ stretched, sums, atol=1e-12)


def test_closed_forms():
    steps = 40
    root = [math.comb(2 * j, j) / 4.0**j for j in range(steps)]
    stretch = math.sqrt(sum(c * c for c in root))
    whole = make(steps, 1, bands=steps)
    assert whole.stretch() == pytest.approx(stretch, rel=1e-10)
    expected = stretch * np.sqrt(np.cumsum(np.square(root)))
    np.testing.assert_allclose(whole.prefix_stddev(), expected, rtol=1e-10)
    # Independent noise, and what is gained on the last of 40 sums: a factor of 2.8.
    np.testing.assert_allclose(make(steps, 1, bands=1).prefix_stddev(), np.sqrt(np.arange(1, 41)))
    assert make(steps, 1).prefix_stddev()[-1] < math.sqrt(steps) / 2.8


@pytest.mark.parametrize("bands", [1, 2, 4, 7])
@pytest.mark.parametrize(("times", "apart"), [(1, 7), (2, 3), (3, 2), (7, 1), (5, 2)])
def test_no_participation_stretches_more(bands, times, apart):
    """All patterns of participation, with the contributions that hurt most and with random ones."""
    correlation = make(7, times, apart, bands)
    stretched = matrices(correlation)[1]
    rng = np.random.default_rng(0)
    worst = 0.0
    for count in range(1, times + 1):
        for steps in itertools.combinations(range(7), count):
            if np.all(np.diff(steps) >= apart):
                columns = stretched[:, steps]
                worst = max(worst, np.linalg.norm(columns.sum(axis=1)))
                moves = rng.normal(size=(20, count, 3))
                moves /= np.linalg.norm(moves, axis=2, keepdims=True)
                assert np.all(np.linalg.norm(columns @ moves, axis=(1, 2)) <= worst + 1e-9)
    assert correlation.stretch() == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("taken_back", [(1.0, -1.0), (1.0, -0.3, -0.2), (1.0, 0.0, -0.5), (1,)])
def test_coefficients_of_ones_own_are_stretched_as_their_matrix_says(taken_back):
    for times, apart in [(1, 7), (2, 3), (7, 1)]:
        correlation = correlated_noise.NoiseCorrelation(taken_back, 7, times, apart)
        stretched = matrices(correlation)[1]
        worst = max(
            np.linalg.norm(stretched[:, steps].sum(axis=1))
            for count in range(1, times + 1)
            for steps in itertools.combinations(range(7), count)
            if np.all(np.diff(steps) >= apart)
        )
        if np.all(np.diff(stretched[:, 0]) <= 0):
            assert correlation.stretch() == pytest.approx(worst, rel=1e-9)
        else:
            with pytest.raises(ValueError, match="taken_back must be such that"):
                correlation.stretch()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        # Moves of alternating signs are stretched to 14.28, where the sum of the columns has length 2.
        ({"taken_back": (1.0, 1.0)}, "taken_back must be a tuple of 1 and"),
        ({"taken_back": (1.0, -0.5, 1e-9)}, "taken_back"),
        ({"taken_back": (1.0, -1.5)}, "taken_back must be such that"),
        ({"taken_back": (1.0, -0.5, -0.8)}, "taken_back must be such that"),
        ({"taken_back": (2.0, -0.5)}, "taken_back"),
        ({"taken_back": (-1.0,)}, "taken_back"),
        ({"taken_back": (1.0, math.nan)}, "taken_back"),
        ({"taken_back": (1.0, -math.inf)}, "taken_back"),
        ({"taken_back": ()}, "taken_back"),
        ({"taken_back": 1.0}, "taken_back"),
        ({"taken_back": ("1",)}, "taken_back"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 8.0}, "num_steps"),
        ({"max_participations": 0}, "max_participations"),
        ({"max_participations": 9}, "max_participations"),
        ({"min_separation": 0}, "min_separation"),
        ({"min_separation": -1}, "min_separation"),
        ({"min_separation": None}, "min_separation"),
    ],
)
def test_a_correlation_without_a_proof_is_refused(changed, named):
    bad = make(8, 2, 1)._replace(**changed)
    uses = [
        bad.stretch,
        bad.prefix_stddev,
        lambda: transforms.privatize(
            transforms.clipped_sum(1.0), jax.random.key(0), 1.0, noise_correlation=bad
        ),
        lambda: bad.add_noise(
            jax.random.key(0), jnp.zeros(2), make(8, 2, 1).init(jnp.zeros(2)), 1, 1
        ),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=named):
            use()


@functools.partial(jax.jit, static_argnames=("correlation", "dim", "steps"))
def noise_of_a_stream(correlation, dim, steps, noise_multiplier=2.0):
    """The noise of each step, ``[steps, dim]``, in units of the sensitivity of a step."""
    aggregate = transforms.clipped_mean(1.5, 4.0)
    chain = transforms.privatize(
        aggregate, jax.random.key(0), noise_multiplier, noise_correlation=correlation
    )
    state = chain.init(jnp.zeros(dim))

    def step(state, _):
        out, state = chain.update(jnp.zeros((3, dim)), state)
        return state, out / aggregate.sensitivity

    state, noise = jax.lax.scan(step, state, None, length=steps)
    return noise, privacy.privacy_spent(state).rdp


def test_the_released_stream_is_as_private_as_is_charged():
    """The distance that the worst user makes, in the covariance of the noise as it comes out: 1/σ."""
    correlation, dim = make(6, 2, 3, bands=3), 30_000
    noise, rdp = noise_of_a_stream(correlation, dim, 6)
    np.testing.assert_allclose(rdp, privacy.ORDERS / (2 * 2.0**2), rtol=1e-5)
    covariance = np.float64(noise) @ np.float64(noise).T / dim
    user = np.array([1.0, 0, 0, 1, 0, 0])
    distance = math.sqrt(user @ np.linalg.solve(covariance, user))
    assert distance == pytest.approx(1 / 2.0, rel=0.02)
    sums = np.std(np.cumsum(noise, axis=0), axis=1)
    np.testing.assert_allclose(sums, 2.0 * correlation.prefix_stddev(), rtol=0.02)


def test_a_new_stream_is_independent_and_charged_anew():
    correlation, dim = make(3, 1, bands=3), 30_000
    noise, rdp = noise_of_a_stream(correlation, dim, 4)
    np.testing.assert_allclose(rdp, 2 * privacy.ORDERS / (2 * 2.0**2), rtol=1e-5)
    correlations = np.corrcoef(noise)
    assert abs(correlations[0, 3]) + abs(correlations[1, 3]) + abs(correlations[2, 3]) < 0.05
    assert correlations[0, 1] < -0.3
    assert np.std(noise[3]) == pytest.approx(2.0 * correlation.stretch(), rel=0.02)


def test_the_multiplier_of_a_stream_is_that_of_its_beginning():
    def scheduled(noise_multiplier):
        return transforms.privatize(
            transforms.clipped_sum(0.5),
            jax.random.key(0),
            noise_multiplier,
            noise_correlation=make(2, 1, bands=1),
        )

    chain = optax.inject_hyperparams(scheduled)(lambda count: 1.0 + count)
    params, spreads = jnp.zeros(20_000), []
    state, step = chain.init(params), jax.jit(chain.update)
    for _ in range(4):
        out, state = step(jnp.zeros((2, 20_000)), state)
        spreads.append(np.std(out))
    np.testing.assert_allclose(spreads, [1, 1, 3, 3], rtol=0.03)
    rdp = privacy.privacy_spent(state).rdp
    np.testing.assert_allclose(rdp, privacy.ORDERS * (1 / 2 + 1 / (2 * 9)), rtol=1e-5)


@pytest.mark.parametrize("wrong_at", [None, 0, 1, 2])
@pytest.mark.parametrize("wrong", ["bound", "checksum", "sensitivity"])
def test_a_later_step_that_is_not_valid_costs_infinity(wrong, wrong_at):
    """What is paid at the first step of a stream is the loss of the steps that keep to it."""

    @jax.jit
    def spent(steps):
        def make(bound):
            return transforms.privatize(
                transforms.summed_contributions(bound, 5),
                jax.random.key(0),
                2.0,
                noise_correlation=make_one,
            )

        state = make(1.0).init(jnp.zeros(2))
        for step in steps:
            chain = make(step["sensitivity"])
            given = {"clipped_to": step["bound"], "checksum": step["checksum"]}
            state = chain.update(total, state, **given)[1]
        return privacy.privacy_spent(state).rdp

    make_one, total = make(10, 10, 1), jnp.array([0.3, 0.4])
    good = {"bound": 1.0, "sensitivity": 1.0, "checksum": _compensated.checksum(total)}
    bad = {"bound": 2.0, "sensitivity": 0.0, "checksum": good["checksum"] + 1}
    steps = [dict(good) for _ in range(3)]
    if wrong_at is None:
        np.testing.assert_allclose(spent(steps), privacy.ORDERS / (2 * 2.0**2), rtol=1e-5)
    else:
        steps[wrong_at][wrong] = bad[wrong]
        assert np.all(np.isinf(spent(steps)))


def test_a_later_step_has_the_noise_of_the_first_whatever_the_schedule_says():
    @jax.jit
    def spent(first, second):
        state, update = (), None
        for multiplier in (first, second):
            chain = transforms.privatize(
                transforms.clipped_sum(1.0),
                jax.random.key(0),
                multiplier,
                noise_correlation=make(4, 1),
            )
            state = state or chain.init(jnp.zeros(2))
            update, state = chain.update(jnp.zeros((2, 2)), state)
        return update, privacy.privacy_spent(state).rdp

    noise, rdp = spent(2.0, 0.0)
    np.testing.assert_array_equal(noise, spent(2.0, 2.0)[0])
    np.testing.assert_allclose(rdp, privacy.ORDERS / (2 * 2.0**2), rtol=1e-5)
    assert np.all(np.isinf(spent(0.0, 2.0)[1]))


def test_refuses():
    key, aggregate = jax.random.key(0), transforms.clipped_sum(1.0)
    for arguments, named in [
        ((0, 1), "num_steps"),
        ((4, 5), "max_participations"),
        ((4, 2), "min_separation"),
        ((4, 2, 5), "min_separation"),
        ((4, 1, 1, 0), "bands"),
    ]:
        with pytest.raises(ValueError, match=named):
            make(*arguments)
    with pytest.raises(ValueError, match="sampling"):
        transforms.privatize(
            aggregate,
            key,
            1.0,
            privacy.WithoutReplacement(10, 2),
            noise_correlation=make(4, 1),
        )
    # A statistic in units that change from step to step would take back the wrong noise.
    centred = transforms.privatize(
        transforms.centred_clip(1.0, 3), key, 1.0, noise_correlation=make(4, 1)
    )
    with pytest.raises(ValueError, match="statistic"):
        centred.update(jnp.zeros((3, 2)), centred.init(jnp.zeros(2)))
