"""The tail of the coefficients, the rank that it asks for, and bounds against runs and loops by hand."""

import math

import numpy as np
import pytest

from dpsco_jax.rates import dimension_free

RUN = {"lipschitz": 1.3, "distance": 2.0, "stddev": 0.7, "num_steps": 40}


def _falling(dim, power):
    return np.append(np.arange(1.0, dim + 1) ** -power, 0.0)


def test_the_tail_is_the_sum_over_doubling_ranks():
    known = np.append(np.arange(12.0, 0.0, -1.0), 0.0)  # d = 12, G_j = 12 - j
    # k = 3: floor(log2(4)) + 1 = 3 terms, of G_3, G_6, G_12 = 0.
    assert dimension_free.tail(known, 3) == pytest.approx(math.sqrt(2 * 81 + 16 * 36))
    # k = 5: floor(log2(2.4)) + 1 = 2 terms, of G_5 and G_10; rounded up there would be a third.
    assert dimension_free.tail(known, 5) == pytest.approx(math.sqrt(2 * 49 + 16 * 4))
    assert dimension_free.tail(known, 12) == 0.0
    assert dimension_free.regularization(known, 5, 4.0) == pytest.approx(math.sqrt(162) / 4)


def test_ranks_follow_the_coefficients():
    flat = _falling(100, 0.0)
    assert dimension_free.optimal_rank(flat, 1000, 1.0, 1e-6) == 100
    for rank in (1, 4, 13, 60):
        short = np.where(np.arange(101) < rank, 1.0, 0.0)
        found = dimension_free.optimal_rank(short, 1000, 1.0, 1e-6)
        assert found <= rank or dimension_free.tail(short, found) == 0
        assert dimension_free.optimal_rank(short, 10**9, 1.0, 1e-6) <= 2 ** math.ceil(
            math.log2(rank)
        )
        assert dimension_free.regularization(short, rank, 1.0) == 0
    # Less noise can use more dimensions; the tail falls with the rank by at most what it costs.
    assert dimension_free.optimal_rank(_falling(4096, 1.0), 100, 1.0, 1e-6) < (
        dimension_free.optimal_rank(_falling(4096, 1.0), 10**5, 1.0, 1e-6)
    )
    assert dimension_free.ranks(12) == [1, 2, 4, 8, 12]
    assert dimension_free.ranks(8) == [1, 2, 4, 8]


def _by_hand(known, rank, lipschitz, distance, stddev, num_steps, eta, alpha):
    """The proof in plain loops, the shares of the pull by search."""
    dim, total = len(known) - 1, 0.0
    s = 1
    while alpha > 0 and 2 ** (s - 1) * rank < dim:
        slope, dims = known[2 ** (s - 1) * rank], min(2**s * rank, dim - rank)
        moved = dimension_free.squared_distance(
            slope, dims, lipschitz=lipschitz, stddev=stddev, step_size=eta, regularization=alpha
        )
        shares = np.geomspace(1e-9, 1.0, 20_001)
        total += np.min(slope**2 / (alpha * shares) + alpha * shares / 2 * moved)
        s += 1
    half = 1.0 if alpha > 0 else 0.5
    total += eta * (half * lipschitz**2 + rank * stddev**2 / 2) + alpha * distance**2 / 2
    return distance**2 / (2 * eta * num_steps) + (num_steps + 1) / num_steps * total


@pytest.mark.parametrize(("rank", "alpha"), [(1, 0.3), (3, 0.05), (16, 0.2), (20, 0.1), (20, 0.0)])
def test_the_bound_is_what_the_proof_adds_up(rank, alpha):
    known = _falling(20, 0.8)
    found = dimension_free.excess_bound(known, rank, step_size=0.4, regularization=alpha, **RUN)
    assert found == pytest.approx(_by_hand(known, rank, *RUN.values(), 0.4, alpha), rel=1e-5)
    printed = dimension_free.printed_excess_bound(
        known, rank, step_size=0.4, regularization=alpha, **RUN
    )
    noise = 3 * 0.4 * (1.3**2 + rank * 0.49)
    outside = 3 * dimension_free.tail(known, rank) ** 2 / alpha if rank < 20 else 0.0
    whole = 4 / (2 * 0.4 * 40) + 41 / 40 * (noise + alpha * 2 + outside)
    assert printed == pytest.approx(whole)
    assert found <= printed


def test_nothing_is_claimed_of_long_steps_or_without_a_pull():
    known = _falling(20, 0.8)
    for bound in (dimension_free.excess_bound, dimension_free.printed_excess_bound):
        few = bound(known, 4, step_size=[0.5, 0.51], regularization=1.0, **RUN)
        assert few[0] < np.inf
        assert few[1] == np.inf
        assert bound(known, 4, step_size=0.1, regularization=0.0, **RUN) == np.inf
        assert bound(known, 20, step_size=0.1, regularization=0.0, **RUN) < np.inf


def _descent(rng, eta, alpha, steps, runs=500, dim=48, stddev=0.5):
    """Runs on linear losses, ±0.9 in the first coordinate and a slope in all others: they drift away."""
    signs = rng.choice([-1.0, 1.0], (steps, runs))
    slope = np.full(dim, 0.1 / math.sqrt(dim))
    slope[:2] = 0.0, 0.3
    point, where = np.zeros((runs, dim)), []
    for sign in signs:
        gradient = slope + sign[:, None] * np.eye(dim)[0] * 0.9
        noise = stddev * rng.standard_normal((runs, dim))
        point = point - eta * (gradient + noise + alpha * point)
        where.append(point)
    return np.asarray(where), slope


@pytest.mark.parametrize(("eta", "alpha"), [(0.5, 1.0), (0.05, 0.4)])
def test_points_stay_as_near_as_the_lemma_says(eta, alpha):
    where, slope = _descent(np.random.default_rng(0), eta, alpha, 60)
    for kept in (slice(0, 1), slice(1, 2), slice(2, 48), slice(0, 48)):
        square = np.sum(where[..., kept] ** 2, axis=-1)
        mean, error = square.mean(axis=1), square.std(axis=1) / math.sqrt(square.shape[1])
        bound = dimension_free.squared_distance(
            np.linalg.norm(slope[kept]),
            kept.stop - kept.start,
            lipschitz=1.0,
            stddev=0.5,
            step_size=eta,
            regularization=alpha,
        )
        assert np.all(mean <= bound + 3 * error)
        # Linear losses come to a quarter as η·α → 0, less where the sampled gradients lie in other
        # dimensions.
        assert mean[-1] > bound / 10


def test_runs_keep_the_bound():
    """The distance ‖A^{1/2}(x - x*)‖ shows all the noise: it has gradients of all directions."""
    rng = np.random.default_rng(1)
    dim, runs, steps, eta, alpha, nu = 200, 60, 80, 0.12, 0.05, 0.6
    half = np.arange(1.0, dim + 1) ** -1.0
    target = np.zeros(dim)
    target[0] = 1.0
    point, total = np.zeros((runs, dim)), np.zeros((runs, dim))
    for _ in range(steps):
        move = half * (point - target)
        gradient = half * move / np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-12)
        point = point - eta * (gradient + nu * rng.standard_normal((runs, dim)) + alpha * point)
        total += point / steps
    gap = np.linalg.norm(half * (total - target), axis=1).mean()
    known = np.append(half, 0.0)
    given = {"lipschitz": 1.0, "distance": 1.0, "stddev": nu, "num_steps": steps}
    bounds = [
        dimension_free.excess_bound(known, k, step_size=eta, regularization=alpha, **given)
        for k in dimension_free.ranks(dim)
    ]
    assert min(bounds) / 20 < gap <= min(bounds)
    # In all dimensions alike, as without a look at the coefficients, the bound is several times larger.
    assert min(bounds) < bounds[-1] / 2


def test_exponents_are_those_of_decay_and_refused_at_one_half():
    assert dimension_free.risk_exponent(1.0) == pytest.approx(2 / 3)
    # Measured: min over k of √k·r + A_k for r = 1e-2 and 1e-4.
    known = _falling(2**17, 1.0)
    found = []
    for users in (300, 30_000):
        rank = dimension_free.optimal_rank(known, users, 1.0, 1e-6)
        noise = math.sqrt(rank * math.log(1e6)) / users
        found.append(noise + dimension_free.tail(known, rank))
    slope = math.log(found[0] / found[1]) / math.log(100)
    assert slope == pytest.approx(2 / 3, abs=0.03)
    with pytest.raises(ValueError, match="decay must be"):
        dimension_free.risk_exponent(0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        [1.0, 0.5],
        [1.0, 1.1, 0.0],
        [1.0, -0.1, -0.2],
        [0.0, 0.0],
        [0.0],
        [1.0, np.nan, 0.0],
        [[1.0, 0.0]],
        "nonsense",
    ],
)
def test_coefficients_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="coefficients must be"):
        dimension_free.tail(wrong, 1)
    with pytest.raises(ValueError, match="rank must be"):
        dimension_free.tail([1.0, 0.5, 0.0], 3)
