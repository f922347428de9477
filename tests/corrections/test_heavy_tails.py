"""Section H of docs/corrections.md, of heavy tails: the printed claim fails, ours holds."""

import numpy as np

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.geometry.norms import clip_bias
from dpsco_jax.problems import losses
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import clipped_gd


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
