"""Section X of docs/corrections.md, Gibbs laws by samplers: the printed claim fails, ours holds."""

import math

import numpy as np

from dpsco_jax.privacy.variation import variation_delta
from dpsco_jax.solvers.sampling import log_sobolev


def test_a_law_within_delta_of_a_private_one_is_not_two_delta():
    epsilon, delta = 0.5, 0.01
    # (ε, δ)-DP and nothing less: randomized response that reveals everything with probability δ.
    up = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    p = np.array([delta, up, 1 - delta - up, 0.0])
    q = p[::-1]
    assert abs(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) - delta) < 1e-12
    # Laws within δ of them: more where the first is large, less where the second is.
    shift = np.array([0.0, delta, -delta, 0.0])
    lost = np.sum(np.maximum((p + shift) - math.exp(epsilon) * (q - shift), 0))
    assert lost > 1.8 * 2 * delta
    assert abs(lost - (2 + math.exp(epsilon)) * delta) < 1e-12
    # And of a pure law: not (ε, τ), but (ε, (1 + e^ε)·τ).
    pure = np.array([math.exp(epsilon), 1.0]) / (1 + math.exp(epsilon))
    moved = np.array([delta, -delta])
    lost = (pure + moved)[0] - math.exp(epsilon) * (pure[::-1] - moved)[0]
    assert abs(lost - (1 + math.exp(epsilon)) * delta) < 1e-12
    assert abs(variation_delta(0.0, delta, epsilon) - lost) < 1e-9


def test_steps_do_not_depend_on_the_unit_of_losses_or_points():
    def steps(slope, diameter, heat):
        """βGD = 1.5, d = 2, in any units."""
        beta = heat / (slope * diameter)
        convexity = 2 / diameter**2
        alpha = log_sobolev.bounded_perturbation(convexity, beta * slope * diameter)
        eta = 1 / (50 * (beta * slope) ** 2)
        return log_sobolev.log_sobolev_steps(1e-6, eta, alpha, diameter)

    printed, found = [], []
    for slope, diameter in ((1.0, 1.0), (8.0, 1.0), (1.0, 8.0)):
        found.append(steps(slope, diameter, 1.5))
        printed.append(found[0] / (slope * diameter))
    assert max(found) - min(found) <= 1
    assert printed[0] == found[0]
    assert printed[1] < found[1] / 7
    # What it does depend on.
    assert steps(1.0, 1.0, 3.0) > 10 * found[0]


def test_the_risk_of_the_gibbs_law_is_not_zero_where_the_printed_bound_is():
    """H = Gx on [0, D]: β·(E H - min H) = 1 - u/(e^u - 1), u = βGD."""
    grid = (np.arange(200_000) + 0.5) / 200_000
    for u in (1.001, 1.3, 1.7, 1.9):
        weights = np.exp(-u * grid)
        mean = u * np.sum(weights * grid) / np.sum(weights)
        assert abs(mean - (1 - u / math.expm1(u))) < 1e-6
        assert mean > math.log(u)
        assert mean < 1 + math.log(u)
    # Two dimensions, a function that is not convex: ours holds there too.
    x = np.stack(np.meshgrid(grid[::1000], grid[::1000]), axis=-1)
    rough = np.abs(np.sin(9 * x[..., 0])) / 9 + np.abs(x[..., 1] - 0.3)
    slope, diameter = math.sqrt(2), math.sqrt(2)
    for beta in (1.01, 5.0, 60.0):
        weights = np.exp(-beta * rough)
        excess = np.sum(weights * rough) / np.sum(weights) - rough.min()
        assert excess < (2 / beta) * (1 + math.log(beta * slope * diameter / 2))
