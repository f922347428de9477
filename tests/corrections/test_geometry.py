"""Section G of docs/corrections.md, of noisy SGD around its start: the printed claim fails, ours holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems import restricted_lipschitz
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates import dimension_free
from dpsco_jax.solvers.item_level import regularized_sgd
from experiments.studies import mahalanobis
from experiments.studies.geometric_median import GeometricMedian


def test_g1_one_constant_does_not_fit_all():
    def printed(users, steps, epsilon, delta):
        return 3.0 * math.sqrt(steps * math.log(1 / delta)) / (epsilon * users)

    # Where T is n² the constant 3 is enough, and where T is n²/100 it is not. Our multiplier is over 2G.
    long, short = (1000, 10**6, 1.0, 1e-6), (10_000, 10**6, 2.0, 1e-6)
    at = [
        fixed_size(n, 1, t).certificate(printed(n, t, e, d) / 2, d).epsilon
        for n, t, e, d in (long, short)
    ]
    assert at[0] <= 1.0
    assert at[1] > 4.0
    # Over G in place of 2G the same noise would look smaller than it is.
    twice = fixed_size(1000, 1, 10**6).certificate(printed(*long), 1e-6).epsilon
    assert twice < 0.6 * at[0]


def test_g2_a_broken_promise_moves_a_step_by_no_more_than_is_paid_for():
    lies = Objective(lambda w, z: jnp.vdot(z, w), 1.0, None, domains.whole_space())
    problem = Problem(lies, num_users=4, dim=2, distance=1.0)
    plan = regularized_sgd.plan(
        problem, Budget(1.0, 1e-3), num_steps=1, step_size=0.5, regularization=0.1
    )
    ends = []
    for sign in (1.0, -1.0):
        data = UserData(jnp.zeros((4, 1, 2)).at[0, 0, 0].set(50.0 * sign))
        ends.append(regularized_sgd.solve(jax.random.key(0), plan, lies, data, jnp.zeros(2)).params)
    moved = float(jnp.linalg.norm(ends[0] - ends[1])) / 0.5
    paid = float(plan.mean.noise_stddev(2)) / plan.noise_multiplier
    assert moved == pytest.approx(2.0 / 4, rel=0.01)  # the room for rounding
    assert moved <= paid * (1 + 1e-5)
    assert 40 * paid < 100.0 / 4  # as printed


def test_g3_the_printed_companion_costs_far_more_than_it_says():
    study = GeometricMedian()
    longest = [
        mahalanobis.half_matrix(convention, "const", 20, study.scale).max()
        for convention in mahalanobis.CONVENTIONS
    ]
    assert longest == [1.0, 1.0, 20.0]
    assert study.true_epsilon(longest[0], 10) <= study.epsilon
    assert study.true_epsilon(longest[2], 10) > 50
    # The gradient that is this long: of a point far away in the last coordinate.
    half = mahalanobis.half_matrix(mahalanobis.PRINTED, "const", 20, 1.0)
    x = jnp.zeros(20).at[-1].set(7.0)
    found = mahalanobis.gradient_sum(x, jnp.asarray(half), jnp.zeros((1, 1)))
    assert float(jnp.linalg.norm(found)) == pytest.approx(20.0)


def test_g4_text_and_companion_are_two_spectra():
    text, companion = (
        mahalanobis.half_matrix(convention, "linear", 100, 1.0)
        for convention in (mahalanobis.TEXT, mahalanobis.CORRECTED)
    )
    np.testing.assert_allclose(text**2, 1 / np.arange(1.0, 101))
    np.testing.assert_allclose(companion, 1 / np.arange(1.0, 101))
    assert text[-1] == pytest.approx(0.1)
    assert companion[-1] == pytest.approx(0.01)


def test_g5_the_bound_grows_with_the_dimension_up_to_one_half():
    def growth(convention, spectrum):
        tails = []
        for dim in (2**8, 2**16):
            half = mahalanobis.half_matrix(convention, spectrum, dim, 1.0)
            tails.append(
                dimension_free.tail(restricted_lipschitz.coefficients_from_matrix(half), 4)
            )
        return tails[1] / tails[0]

    assert growth(mahalanobis.TEXT, "sqrt") > 8
    assert growth(mahalanobis.TEXT, "linear") > 2
    # Inside the theorem.
    assert growth(mahalanobis.CORRECTED, "linear") < 1.15


def test_g6_the_sum_ends_within_the_dimensions():
    for dim in range(1, 40):
        for rank in range(1, dim + 1):
            down, up = (int(f(math.log2(dim / rank))) + 1 for f in (math.floor, math.ceil))
            assert 2 ** (down - 1) * rank <= dim < 2**down * rank
            assert up == down or 2 ** (up - 1) * rank > dim
    # Gradients of five dimensions: nothing is outside of them. G_1, as printed for s = 1, is not 0.
    known = np.where(np.arange(41) < 5, 1.0, 0.0)
    assert dimension_free.tail(known, 5) == 0
    assert known[2**1 - 1] == 1.0


@pytest.mark.parametrize("decay", [0.6, 1.0, 2.0])
def test_g7_the_rank_is_good_for_smaller_n(decay):
    for delta in (0.4, 1e-6):
        root = math.sqrt(math.log(1 / delta))
        for users in (math.ceil(root), math.ceil(2 * root), 10_000):
            noise = root / users
            rank = math.ceil(noise ** (-2 / (1 + 2 * decay)))
            rate = noise ** dimension_free.risk_exponent(decay)
            assert noise * math.sqrt(rank) + rank**-decay <= (1 + math.sqrt(2)) * rate * (1 + 1e-12)
    # The first of these n is not above log(1/δ)/ε.
    assert math.ceil(math.sqrt(math.log(1e6))) < math.log(1e6)


def test_g9_a_step_off_a_kink_needs_the_factor():
    eta, lipschitz, distance = 0.3, 2.0, 1e-9
    start = distance
    after = start - eta * lipschitz * np.sign(start)
    gap = lipschitz * abs(after)
    bound = dimension_free.excess_bound(
        [lipschitz, 0.0],
        1,
        lipschitz=lipschitz,
        distance=distance,
        stddev=0.0,
        num_steps=1,
        step_size=eta,
        regularization=0.0,
    )
    assert gap == pytest.approx(eta * lipschitz**2)
    assert gap <= bound * (1 + 1e-6)
    assert gap > 1.9 * eta * lipschitz**2 / 2  # the sum without it


def test_g10_subspaces_as_printed_leave_a_gradient_in_the_last():
    first = np.array([[1.0, 1.0, 0.0]]).T / math.sqrt(2)
    second = np.eye(3)[:, [0, 2]]
    gradient = np.eye(3)[0]
    assert np.linalg.norm(gradient - second @ second.T @ gradient) == 0  # G_2 = 0

    def outside(basis):
        return np.linalg.norm(gradient - basis @ (basis.T @ gradient))

    # As printed: within range(P_2), what is orthogonal to range(P_1).
    null = np.linalg.svd(first.T @ second)[2][1:].T
    printed = np.concatenate([first, second @ null], axis=1)
    assert outside(printed) == pytest.approx(1 / math.sqrt(2))
    # The complement in the sum of both.
    rest = second - first @ first.T @ second
    left, values, _ = np.linalg.svd(rest)
    assert outside(np.concatenate([first, left[:, :2][:, values > 1e-12]], axis=1)) < 1e-12
