"""Spider attacked from end to end: what a run tells of a user, by the likelihood ratio of all it releases.

Losses z·w²/2 of users z = 0 but one, whose z is 1 or -1: gradients and differences are as long as their
clips, so that the canary moves every release by all that is paid for (the start is so far out that noise
reaches no place where slopes are short). What is measured is the μ of two normal laws, by how often the ratio
is on either side; it is held against the ε of the certificate. A quarter of the noise has four times that.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from scipy.stats import norm

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import adaptive_spider, drift_spider, spider

pytestmark = pytest.mark.slow
BENT = Objective(
    lambda w, z: 0.5 * z * w[0] ** 2, 1.0, 1.0, domains.whole_space(), loss_strong_convexity=-1.0
)
START, DELTA, RUNS = jnp.asarray([20.0]), 1e-3, 200_000


def _claimed(plan):
    """The μ of the normal laws that are as far apart as the certificate says."""
    certificate = plan.certificate()

    def over(mu):
        e = certificate.epsilon
        far = norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu)
        return far - certificate.delta

    return scipy.optimize.brentq(over, 1e-3, 50.0)


def _released(solver, plan, users, canary, seen):
    """Of each step what was seen, ``[runs, steps]``, with the canary at -1 and at 1."""

    @jax.jit
    def runs(keys, z):
        data = UserData(jnp.zeros((users, 1)).at[canary, 0].set(z))
        one = lambda key: solver.solve(key, plan, BENT, data, START, trace=seen).unprivate["trace"]  # noqa: E731
        return jax.vmap(one)(keys)

    return [runs(jax.random.split(jax.random.key(s), RUNS), jnp.float32(2 * s - 1)) for s in (0, 1)]


def _measured(below, above):
    return norm.ppf(np.mean(above > 0)) - norm.ppf(np.mean(below > 0))


@pytest.mark.parametrize("less", [1.0, 4.0], ids=["all of the noise", "a quarter"])
@pytest.mark.parametrize("solver", [spider, drift_spider], ids=["periodic", "drift"])
def test_everybody_takes_part(solver, less):
    """Three steps: of a period of two, or of no drift at all, where every step begins anew."""
    problem, budget = Problem(BENT, num_users=2, dim=1, items_per_user=1), Budget(1.0, DELTA)
    settings = {"initial_gap": 1.0, "num_steps": 3}
    if solver is spider:
        plan = spider.plan(problem, budget, period=2, **settings)
    else:
        plan = drift_spider.plan(problem, budget, drift=1e-6, **settings).replace(every=1e-30)
    of = plan.mean.releases
    run = plan.replace(
        refresh_multiplier=of.refresh_multiplier / less,
        difference_multiplier=of.difference_multiplier / less,
    )

    def seen(params, state, estimate):
        found = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, transforms.SpiderState))
        (found,) = (node for node in found if isinstance(node, transforms.SpiderState))
        return params[0], found.estimate[0], found.last.fresh

    ratios, kinds = [], set()
    for points, estimates, fresh in _released(solver, run, 2, 0, seen):
        points, estimates = np.asarray(points, float), np.asarray(estimates, float)
        fresh = np.asarray(fresh)
        kinds.add(tuple(fresh[0].tolist()))
        before = np.concatenate([np.full((RUNS, 1), 20.0), points[:, :-1]], axis=1)
        step = np.diff(before, axis=1, prepend=0.0)
        moved = np.diff(estimates, axis=1, prepend=0.0)
        # In units of how far the canary moves the mean: of a gradient, or of a difference. A step that is
        # rounded to nothing tells nothing.
        unit = (
            np.where(fresh, plan.mean.gradient_clip, np.abs(step) * plan.mean.difference_clip) / 2
        )
        value = np.where(fresh, estimates, moved) / np.where(unit > 0, unit, np.inf)
        weight = np.where(fresh, of.refresh_multiplier, of.difference_multiplier) ** -2.0
        # Differences are those of z·w: along the step, whose side is public.
        side = np.where(fresh, 1.0, np.sign(step))
        ratios.append(np.sum(weight * value * side, axis=1))
    assert kinds == {(True, False, True) if solver is spider else (True, True, True)}
    measured, claimed = _measured(*ratios), _claimed(plan)
    if less == 1:
        assert 0.9 * claimed < measured < 1.02 * claimed
    else:
        assert measured > 2 * claimed


@pytest.mark.parametrize("less", [1.0, 4.0], ids=["all of the noise", "a quarter"])
@pytest.mark.parametrize("correlation", ["buffers", "tree"])
def test_one_pass_with_a_stream_that_ends(correlation, less):
    """Streams of two steps, of three users and of one; the canary is in the first step of the second."""
    problem = Problem(BENT, num_users=8, dim=1, items_per_user=1)
    plan = adaptive_spider.plan(
        problem, Budget(1.0, DELTA), initial_gap=1.0, num_steps=4, accountant="pld"
    )
    releases = dataclasses.replace(
        plan.mean.releases, correlation=correlation, longest=2, first_batch=3
    )
    share = 0.02
    mean = dataclasses.replace(
        plan.mean, releases=releases, share_norm=share, accuracy=1e9, drift=1e9
    )
    plan = dataclasses.replace(plan, mean=mean)
    plan = dataclasses.replace(plan, method=dataclasses.replace(plan.method, step_size=1e-5))
    run = plan.replace(noise_multiplier=plan.noise_multiplier / less)

    def seen(params, state, estimate):
        found = transforms.adaptive_state(state)
        return found.estimate[0], found.last.fresh, found.last.size

    sides = []
    for estimates, fresh, size in _released(adaptive_spider, run, 8, 4, seen):
        np.testing.assert_array_equal(size, np.broadcast_to([3, 1, 3, 1], size.shape))
        assert np.all(np.asarray(fresh) == [True, False, True, False])
        moved = np.diff(np.asarray(estimates, float), axis=1, prepend=0.0)
        moved[:, 2] = estimates[:, 2]
        sides.append(moved / share)
    covariance = np.cov(np.concatenate([side - side.mean(axis=0) for side in sides]).T)
    ratio = np.linalg.solve(covariance, np.array([0.0, 0.0, 1.0, 0.0]))
    measured, claimed = _measured(*(side @ ratio for side in sides)), _claimed(plan)
    if less == 1:
        assert 0.9 * claimed < measured < 1.02 * claimed
    else:
        assert measured > 2 * claimed
