"""Section H of docs/corrections.md, of heavy tails: the printed claim fails, ours holds."""

import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.geometry.norms import clip_bias
from dpsco_jax.problems import fixtures, losses
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import clipped_gd, phased_clipped_glm


def test_h1_the_dropped_mass_is_larger_than_printed():
    for order in (2.5, 4.0, 10.0):
        length = clip = moment = 3.0
        dropped = length * (length >= clip)
        assert dropped > 1.4 * clip_bias(moment, order, clip)
        assert dropped <= moment**order / clip ** (order - 1)
        # The bias of a vector of this length is none.
        assert max(length - clip, 0.0) <= clip_bias(moment, order, clip, sharp=True)


def test_h4_the_pull_s_term_is_in_the_mean_that_markov_multiplies():
    """A gap that is five times its mean in a fifth of all runs, and 0 else, is above the printed bound."""
    users, dim, radius = 1000, 4, 2.0
    noise, pull = 1e-12, 7 * radius**2 / users
    mean = noise + pull
    gaps = np.array([5 * mean, 0.0, 0.0, 0.0, 0.0])
    printed, mended = 5 * noise + pull, 5 * noise + 5 * pull
    assert (
        np.mean(gaps > printed) == 0.2
    )  # with the 1/5 of the clip, all that 3/5 allow, for a term alone
    assert np.mean(gaps > 4.9 * pull) == 0.2
    assert np.mean(gaps > mended) == 0.0
    problem = Problem(losses.absolute(1.0, domains.ball(2.0)), num_users=users, dim=dim)
    plan = clipped_gd.plan(
        problem,
        Budget(1.0, 1e-6),
        moments=Moments(4.0, 1e-3, 1e-3, 1e-3),
        regularization=1.0,
        radius=radius,
        num_steps=10**6,
        constants="paper",
        accountant="rdp",
    )
    assert plan.gap_bound >= 35 * radius**2 / users


def _glm(constants="paper", users=2**12):
    problem = Problem(losses.huber(1.0, domain=domains.ball(2.0)), num_users=users, dim=4)
    moments = Moments(4.0, 2.0, 1.0, 1.0)
    return phased_clipped_glm.plan(problem, Budget(1.0, 1e-6), moments=moments, constants=constants)


def test_h15_the_printed_noise_is_twice_what_is_needed():
    plan = _glm()
    # Of ρ-zCDP by the sensitivity 2ηC, which neighbours attain: tests/solvers/test_phased_clipped_glm.py.
    sensitivity = 2 * plan.step_sizes[0] * plan.clip_norms[0]
    rho = sensitivity**2 / (2 * plan.noise_stddevs[0] ** 2)
    printed = 2 * plan.step_sizes[0] * plan.clip_norms[0] * np.sqrt(2 / rho)
    assert printed / plan.noise_stddevs[0] == pytest.approx(2.0, rel=1e-6)
    assert sensitivity**2 / (2 * printed**2) == pytest.approx(rho / 4, rel=1e-6)
    # In other units of the loss the same points are visited: η has to be in proportion to 1/G.
    for unit in (1e-2, 1e2):
        problem = Problem(losses.huber(1e-4, domain=domains.ball(2.0)), num_users=2**12, dim=4)
        steps = [
            phased_clipped_glm.plan(
                problem,
                Budget(1e-2, 1e-6),
                moments=Moments(4.0, 2.0 * size),
                constants="paper",
            ).step_sizes[0]
            for size in (1.0, unit)
        ]
        assert steps[0] == pytest.approx(unit * steps[1], rel=1e-6)


def test_h16_the_first_phase_alone_loses_more_than_its_printed_share():
    plan = _glm()
    size, step = plan.phase_users[0], plan.step_sizes[0]
    eta, users, diameter = 16 * step, 2 * size, 4.0
    ours = diameter**2 / (2 * step * size)
    assert ours == pytest.approx(16 * diameter**2 / (eta * users))
    # A loss of slope g along one direction: the average of steps of length ηg/16 has come half as far.
    slope = diameter / (step * size) / 4
    travelled = step * slope * (size - 1) / 2
    lost = slope * (diameter - travelled)
    assert lost > 4 * diameter**2 / (eta * users)
    assert lost <= ours + step * slope**2 / 2


def test_h17_at_distance_zero_nothing_expands():
    with pytest.raises(ValueError, match="clip_norm"):
        fixtures.clip_noncontraction(0.0)
    apart, first, second = fixtures.clip_noncontraction(1e-9)
    np.testing.assert_allclose(first, second, atol=3e-9)
    assert np.linalg.norm(apart) == 1e-9
