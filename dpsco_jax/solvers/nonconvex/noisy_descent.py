"""Noisy gradient descent on a smooth loss that need not be convex: the baseline of all that finds its equals.

What it computes: x_{t+1} = x_t - η·(the mean of the users' clipped gradients, noised). One of the points
x_0, ..., x_{T-1} is reported, all equally likely, or the last, of which nothing is proven.

Source: the method of Wang, Chen and Xu 2019 for stationary points; thesis, Table 6.1 (its "SOTA"). The bound
and the best T and η are in docs/theory/nonconvex.md.

Formal guarantee: that of ``user_level.sgd`` with ``sampling="full"``: (ε, δ)-DP for a user's whole data under
REPLACE_ONE, at every point of the run; the noise covers 2·``clip_norm``, and nothing is assumed of the loss.
Utility, for losses that are G-Lipschitz and M-smooth on the whole space, F(x_0) - inf F ≤ B (with a ridge λ,
M + λ for M), u = ηM ≤ 1 and noise σ on a coordinate of the mean:

    E‖∇F(x)‖² ≤ (2BM/(uT) + u·d·σ²)/(2 - u).

Cost: T·n user gradients; memory of one chunk of user gradients.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.nonconvex import noisy_descent
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> plan = noisy_descent.plan(problem, budget, initial_gap=1.0, most_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: noisy_descent.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math

import numpy as np

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Count, Positive, checked
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.nonconvex import _stationary
from dpsco_jax.solvers.nonconvex._stationary import Schedule
from dpsco_jax.solvers.user_level import sgd

__all__ = ["plan", "schedule", "solve"]


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    initial_gap: Positive | None = None,
    most_steps: Count = 10_000,
    clip_norm: Positive | None = None,
    smoothness: Positive | None = None,
    reported: _stationary.Reported = "random",
    chunk_size: Count = 64,
    accountant: _planning.Accountant = "pld",
) -> FirstOrder:
    """Chooses the number and length of steps by the bound. All arguments are public.

    Args:
        problem: for n, d, and the Lipschitz and smoothness constants of the loss.
        budget: (ε, δ) of the run, δ > 0.
        initial_gap: B ≥ F(x_0) - inf F; the range of the loss, if it has one, if left out.
        most_steps: T is at most this.
        clip_norm: G; the objective's Lipschitz constant if left out.
        smoothness: M; the objective's smoothness constant if left out.
        reported: ``"random"``, one of the points before a step, or the ``"last"`` point.
        chunk_size: users whose gradients are held at once.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.

    Raises:
        ValueError: an argument is out of range, or left out although the loss does not know it.
    """
    users, gap = problem.num_users, _stationary.gap_of(problem, initial_gap)
    curvature = (
        _stationary.smoothness_of(problem, smoothness, "smoothness") + problem.objective.ridge
    )
    clip = problem.lipschitz if clip_norm is None else clip_norm
    joint = fixed_size(users, users, 1).noise_multiplier(budget.epsilon, budget.delta, accountant)
    sensitivity = 2 * clip / users
    found = schedule(gap, curvature, sensitivity, problem.dim, joint**-2, most_steps)
    base = sgd.plan(
        problem,
        budget,
        num_steps=found.num_steps,
        sampling="full",
        clip_norm=clip,
        step_size=found.step_size,
        averaging="last",
        accountant=accountant,
        chunk_size=chunk_size,
    )
    proven = math.isinf(problem.diameter) and reported == "random"
    return dataclasses.replace(
        base.with_method("noisy gradient descent", _stationary.steps(found, reported)),
        details={"gradient_norm_bound": found.bound if proven else math.inf},
        premises=_stationary.PREMISES,
    )


@checked
def schedule(
    initial_gap: Positive,
    smoothness: Positive,
    sensitivity: Positive,
    dim: Count,
    squared_mu: Positive,
    most_steps: Count,
) -> Schedule:
    """The best number and length of steps.

    Args:
        initial_gap: B.
        smoothness: M.
        sensitivity: of the mean of gradients.
        dim: d.
        squared_mu: μ² of the whole run.
        most_steps: the largest T.
    """
    u, steps = np.linspace(0.01, 1.0, 100), np.array(_stationary.grid(most_steps, 1000))[:, None]
    variance = dim * sensitivity**2 * steps / squared_mu
    squared = (2 * initial_gap * smoothness / (u * steps) + u * variance) / (2 - u)
    row, column = np.unravel_index(np.argmin(squared), squared.shape)
    number, length = int(steps[row, 0]), float(u[column]) / smoothness
    return Schedule(number, 1, length, squared_mu / number, 0.0, math.sqrt(squared[row, column]))
