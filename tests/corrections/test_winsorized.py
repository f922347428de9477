"""Section W of docs/corrections.md: the printed claim fails, ours holds. Reference values are exact."""

import math

import numpy as np
import pytest
import scipy.stats

from dpsco_jax import Problem
from dpsco_jax.geometry import domains, rotations
from dpsco_jax.mechanisms import private_selection
from dpsco_jax.mechanisms.winsorized import private_range
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.problems import concentration, losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.user_level import finite_class, phased_erm
from tests.support.planned import planned


def test_w1_the_window_misses_values():
    values = np.repeat(np.float32([-0.001, 1.998]), [510, 490])
    assert np.ptp(values) < 2  # in a window of half-width τ = 1
    centers, probability = private_range.law(values, 0.5, 1.0, 50.0, 2.0)
    likely = np.argmax(probability)
    assert centers[likely] == -1.0
    np.testing.assert_allclose(probability[likely], 0.9933, atol=5e-5)
    printed = np.clip(values, -3.0, 1.0)
    assert np.mean(printed != values) == 0.49
    np.testing.assert_allclose(np.mean(printed) - np.mean(values), -0.489, atol=1e-3)
    half = private_range.half_width(1.0, 2.0)
    assert half == 3.0
    for width in (2.0, None):
        centers, probability = private_range.law(values, 0.5, 1.0, 50.0, width)
        half = private_range.half_width(1.0, width or private_range.default_bin_width(1.0))
        missed = np.any(np.abs(values[:, None] - centers) > half, axis=0)
        assert probability[missed].sum() < 1e-12


def test_w2_the_constant_of_the_rotation():
    n, d, alpha = 1000, 256, 0.01
    printed = 10 * math.sqrt(math.log(n * d / alpha) / d)
    ours = rotations.largest_coordinate(1.0, n, d, alpha)
    assert printed > 1.0  # more than the norm itself
    assert 6.5 < printed / ours < 7.1


def test_w3_advanced_composition_has_an_end():
    d, delta, epsilon = 64, 1e-3, 200.0
    each = epsilon / math.sqrt(8 * d * math.log(1 / delta))
    # Privacy loss of randomized response d times: (heads - tails)·ε₁; δ(ε) = E (1 - e^(ε - loss))₊.
    heads = np.arange(d + 1)
    loss = (2 * heads - d) * each
    law = scipy.stats.binom.pmf(heads, d, 1 / (1 + math.exp(-each)))
    true_delta = np.sum(law * -np.expm1(np.minimum(epsilon - loss, 0)))
    assert true_delta > 0.3
    with pytest.raises(ValueError, match="epsilon"):
        calibrate_winsorized(10**6, d, 1, epsilon, delta, radius=0.1, bound=1.0, constants="paper")


def test_w4_the_radius_of_bounded_items():
    users, items, failure = 1000, 200, 0.01

    def violated(radius):
        """P(some user mean of signs is beyond the radius), exactly."""
        tail = 2 * scipy.stats.binom.sf(math.floor(items * (1 + radius) / 2), items, 0.5)
        return -math.expm1(users * math.log1p(-tail))

    assert violated(math.sqrt(math.log(2 * users / failure) / (2 * items))) > 0.99
    assert violated(concentration.user_mean_radius(1.0, items, users, failure)) < failure


def test_w5_the_radius_of_gaussian_vectors():
    users, failure = 1000, 0.01

    def violated(radius):
        return -math.expm1(users * math.log1p(-2 * scipy.stats.norm.sf(radius)))

    np.testing.assert_allclose(violated(math.sqrt(math.log(2 * users / failure))), 0.38, atol=0.01)
    ours = concentration.user_mean_radius_subgaussian(1.0, 1, 1, users, failure)
    assert violated(ours) < failure


def test_w6_the_radius_of_losses():
    candidates, users, items, failure = 20, 1000, 200, 0.05

    def violated(radius):
        tail = 2 * scipy.stats.binom.sf(math.floor(items * (0.5 + radius)), items, 0.5)
        return -math.expm1(candidates * users * math.log1p(-tail))

    level = math.log(2 * candidates * users / failure)
    assert violated(0.5 * math.sqrt(level / items)) > 0.9
    assert violated(concentration.loss_radius(1.0, candidates, items, users, failure)) < failure


def test_w7_the_last_blocks_are_empty():
    users, items, dim, epsilon, stddev = 10**4, 100, 10, 1.0, 0.1 / math.sqrt(10)
    phases = math.ceil(math.log2(users * math.sqrt(items) * epsilon / (stddev * dim)))
    assert (phases, round(users / 2**phases, 2)) == (19, 0.02)
    unit = losses.squared_distance(point_bound=0.5, radius=0.5)
    problem = Problem(unit, num_users=users, items_per_user=items, dim=dim, distance=1.0)
    blocks = phased_erm._printed(problem, 500, stddev, epsilon, "equal")
    assert len(blocks) == math.ceil(phases / 2)
    assert min(block.num_users for block in blocks) >= math.sqrt(dim) / epsilon
    assert sum(block.num_users for block in blocks) == users


def test_w8_the_best_candidate_is_drawn():
    def missed(gamma, candidates):
        others = 1 - 1 / candidates
        return gamma * others / (1 - (1 - gamma) * others)

    np.testing.assert_allclose(missed(0.1, 10), 0.474, atol=5e-4)
    assert missed(0.01 / 10, 10) < 0.01
    # What the theorem's proof needs of the loss: three times that of a candidate.
    assert private_selection.geometric_selection_loss(0.2).rdp[-1] == pytest.approx(0.6, rel=1e-2)
    objective = Objective(lambda w, z: w, 1.0, None, domains.whole_space())
    plan = planned(finite_class.plan,
        objective, num_users=1000, items_per_user=10**5, dim=1, num_candidates=10, epsilon=1.0,
        loss_range=(0.0, 1.0), failure=0.05,
    )  # fmt: skip
    np.testing.assert_allclose(plan.stopping_probability, 0.05 / 50)
    printed = 8 * plan.radius / 1000
    np.testing.assert_allclose(plan.noise_scale / printed, 27 / 8)
    assert plan.winsorized


def test_w10_composition_once():
    d, queries, epsilon, delta, bins, failure = 16, 20, 1.0, 1e-6, 1000, 0.01
    each = epsilon / (2 * math.sqrt(2 * queries * math.log(2 / delta)))
    nested = each / math.sqrt(8 * d * math.log(2 * queries / delta)) / 2
    printed = 4 / nested * math.log(bins * d * queries / failure)
    assert 2.5e5 < printed < 8e5
    needed = calibrate_winsorized(
        8000, d, queries, epsilon, delta, radius=0.01, bound=1.0, form="winsorized"
    )
    assert needed.failure_probability() < 0.03
    with pytest.raises(ValueError, match="at least") as caught:
        calibrate_winsorized(
            100, d, queries, epsilon, delta, radius=0.01, bound=1.0, form="winsorized"
        )
    assert int(str(caught.value).split()[5]) < printed / 50
