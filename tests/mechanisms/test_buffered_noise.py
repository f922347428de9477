"""Noise of a few buffers: the factorization, what a user can do to it, how little of it sums keep."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms import buffered_noise
from dpsco_jax.mechanisms.correlated_noise import banded_square_root

make = buffered_noise.buffered


def matrices(made):
    """D as its buffers make it, from unit noise, and C, its inverse, dense in float64."""
    steps = made.num_steps
    taken_back, buffers = np.eye(steps), np.zeros((len(made.decays), steps))
    for t in range(steps):
        taken_back[t] -= made.taken_back @ buffers
        buffers = np.array(made.decays)[:, None] * buffers + np.eye(steps)[t]
    return taken_back, np.linalg.inv(taken_back)


@pytest.mark.parametrize(("steps", "buffers"), [(1, 4), (2, 1), (9, 1), (100, 2), (700, 3)])
def test_it_factorizes_the_identity(steps, buffers):
    made = make(steps, 1, buffers=buffers)
    taken_back, stretched = matrices(made)
    column = made.response()
    closed = scipy.linalg.toeplitz(column, np.zeros(steps))
    np.testing.assert_allclose(closed @ taken_back, np.eye(steps), atol=1e-10)
    assert made.stretch() == pytest.approx(np.linalg.norm(stretched, axis=0).max(), rel=1e-10)
    assert made.stretch() >= np.linalg.norm(stretched, axis=0).max() * (1 - 1e-15)
    assert np.all(column >= 0)
    assert np.all(np.diff(column) <= 0)
    sums = np.linalg.norm(np.tril(np.ones((steps, steps))) @ taken_back, axis=1)
    np.testing.assert_allclose(made.prefix_stddev(), made.stretch() * sums, rtol=1e-10)


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize(("times", "apart"), [(1, 7), (2, 3), (3, 2), (7, 1), (5, 2)])
def test_no_participation_stretches_more(buffers, times, apart):
    """All patterns of participation, with the contributions that hurt most and with random ones."""
    weights, decays = make(100, 1, buffers=buffers)[:2]
    made = buffered_noise.BufferedCorrelation(weights, decays, 7, times, apart)
    stretched = matrices(made)[1]
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
    assert made.stretch() == pytest.approx(worst, rel=1e-9)


def rms(made):
    return math.sqrt(np.mean(made.prefix_stddev() ** 2))


def test_less_noise_than_of_a_square_root():
    """Root mean squares of the noise of all sums; of T = 1024 the least that three buffers have is 3.0587."""
    for steps in (2, 4, 8, 16, 64, 256, 1024):
        whole = banded_square_root(steps, 1, bands=steps)
        assert rms(make(steps, 1)) < 0.99 * rms(whole), steps
    assert rms(make(600, 1)) < 1.005 * rms(banded_square_root(600, 1, bands=600))
    assert rms(make(1024, 1)) == pytest.approx(3.0587, rel=1e-3)
    assert rms(make(1024, 1, buffers=2)) == pytest.approx(3.0840, rel=1e-3)
    assert len(make(1024, 1).decays) == 3
    by_buffers = [rms(make(2**20, 1, buffers=b)) for b in (1, 2, 3, 4, 5)]
    assert np.all(np.diff(by_buffers) < 0)
    assert by_buffers[-1] < 1.01 * by_buffers[-2]


def test_what_is_minimized_is_the_mean_square():
    """The closed form, of a length that is summed up directly too; 3 buffers do not do better nearby."""
    found = buffered_noise.optimize.minimize(
        buffered_noise._spread, np.array([0.7, 2.0, 5.0, -1.5, -1.8, -2.6]), (512,)
    ).x
    for numbers in (found, found + 0.1, np.array([0.7, 5.0, -1.5, -2.6])):
        root, rates, basis = buffered_noise._inverse(numbers)
        weights = (basis.T @ root) ** 2
        steps = np.arange(511)
        column = np.append(1.0, (-np.expm1(-np.split(numbers, 2)[0])) ** steps[:, None] @ root**2)
        sums = np.cumsum(np.append(1.0, -(rates ** steps[:, None]) @ weights))
        direct = np.sum(column**2) * np.mean(np.cumsum(sums**2))
        assert buffered_noise._spread(numbers, 512) == pytest.approx(
            0.5 * math.log(direct), abs=1e-9
        )
    assert rms(make(512, 1)) == pytest.approx(
        math.exp(buffered_noise._spread(found, 512)), rel=2e-3
    )


@functools.partial(jax.jit, static_argnames=("made", "dim", "steps", "begin_at"))
def stream(made, dim, steps, begin_at=(), seed=0):
    """The noise of each step, ``[steps, dim]``, in units of the sensitivity, and what all of it costs."""
    aggregate = transforms.clipped_sum(0.5)
    chain = transforms.privatize(aggregate, jax.random.key(seed), 2.0, noise_correlation=made)
    begins = jnp.isin(jnp.arange(steps), jnp.array(begin_at, int))

    def step(state, new):
        out, state = chain.update(jnp.zeros((1, dim)), state, new_stream=new)
        return state, out / aggregate.sensitivity

    state, noise = jax.lax.scan(step, chain.init(jnp.zeros(dim)), begins)
    return noise, privacy.privacy_spent(state).rdp


def test_covariances_of_sixteen_steps():
    made, dim = make(16, 1), 50_000
    weights, decays = make(64, 1)[:2]
    for one in (made, made._replace(taken_back=weights, decays=decays)):
        noise, rdp = stream(one, dim, 16)
        expected = (2.0 * one.stretch()) ** 2 * matrices(one)[0] @ matrices(one)[0].T
        spread = np.diag(expected)
        errors = np.sqrt((np.outer(spread, spread) + expected**2) / dim)  # of products of Gaussians
        covariance = np.float64(noise) @ np.float64(noise).T / dim
        assert np.abs((covariance - expected) / errors).max() < 4
        np.testing.assert_allclose(rdp, privacy.ORDERS / (2 * 2.0**2), rtol=1e-5)
        # A user of one step is as far as is charged.
        distances = np.sqrt(np.diag(np.linalg.inv(expected)))
        assert distances.max() == pytest.approx(1 / 2.0, rel=1e-9)


@pytest.mark.parametrize("disjoint", [False, True])
def test_streams_that_end_early_or_are_full(disjoint):
    """Streams of steps 0 and 1, of 2 to 5, which is all four, and of 6 and 7: each as if it was the first."""
    made, dim = make(4, 1, disjoint=disjoint), 40_000
    noise, rdp = stream(made, dim, 8, (2,))
    paid = 1 if disjoint else 3
    np.testing.assert_allclose(rdp, paid * privacy.ORDERS / (2 * 2.0**2), rtol=1e-5)
    expected = np.zeros((8, 8))
    taken_back = matrices(made)[0]
    for first, last in ((0, 2), (2, 6), (6, 8)):
        expected[first:last, first:last] = taken_back[: last - first, : last - first]
    expected = (2.0 * made.stretch()) ** 2 * expected @ expected.T
    spread = np.diag(expected)
    errors = np.sqrt((np.outer(spread, spread) + expected**2) / dim)
    covariance = np.float64(noise) @ np.float64(noise).T / dim
    assert np.abs((covariance - expected) / errors).max() < 4


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"taken_back": (-0.1,)}, "taken_back"),
        ({"taken_back": (0.1,)}, "taken_back must be a tuple of numbers of float32"),
        ({"taken_back": (0.5, 0.25)}, "decays must be as many"),
        ({"taken_back": (1.5,)}, "taken_back must be such that"),
        (
            {"taken_back": (0.75,)},
            "taken_back must be such that",
        ),  # 0.75 + 0.5: a column that grows
        ({"taken_back": (1.25,), "decays": (-0.5,)}, "decays"),
        ({"taken_back": [0.5]}, "taken_back"),
        ({"decays": 0.5}, "decays"),
        ({"decays": (math.nan,)}, "decays"),
        ({"decays": ("1",)}, "decays"),
        ({"decays": (1.5,)}, "taken_back must be such that"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 8.0}, "num_steps"),
        ({"max_participations": 0}, "max_participations"),
        ({"max_participations": 9}, "max_participations"),
        ({"min_separation": 0}, "min_separation"),
        ({"min_separation": None}, "min_separation"),
        ({"disjoint": 1}, "disjoint"),
    ],
)
def test_a_correlation_without_a_proof_is_refused(changed, named):
    good = buffered_noise.BufferedCorrelation((0.5,), (0.5,), 8, 2, 1)
    assert good.stretch() == pytest.approx(np.linalg.norm(matrices(good)[1][:, :2].sum(axis=1)))
    bad = good._replace(**changed)
    uses = [
        bad.stretch,
        bad.prefix_stddev,
        lambda: transforms.privatize(
            transforms.clipped_sum(1.0), jax.random.key(0), 1.0, noise_correlation=bad
        ),
        lambda: bad.add_noise(jax.random.key(0), jnp.zeros(2), good.init(jnp.zeros(2)), 1, 1),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=named):
            use()


def test_refuses():
    for arguments, named in [
        ((0, 1), "num_steps"),
        ((2**30 + 1, 1), "num_steps"),
        ((4, 5), "max_participations"),
        ((4, 2), "min_separation"),
        ((4, 2, 5), "min_separation"),
        ((4, 1, 1, 0), "buffers"),
        ((4, 1, 1, 17), "buffers"),
    ]:
        with pytest.raises(ValueError, match=named):
            make(*arguments)
