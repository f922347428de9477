"""Private SpiderBoost: a stationary point of a smooth loss, with a bound on the gradient at it.

What it computes: x_{t+1} = x_t - η·v_t, where v_t is a private estimate of ∇F(x_t): begun anew in every q-th
step from the gradients of all users, and kept up in between by the mean of their clipped differences
∇f_u(x_t) - ∇f_u(x_{t-1}), whose sensitivity, and so noise, is in proportion to the length of the step. One of
the points x_0, ..., x_{T-1} is reported, all equally likely, or the last, of which nothing is proven.

Source: thesis, Algorithm 17, for first-order stationary points (Fang et al. 2018; Wang et al. 2019). A period
that is fixed beforehand, and the analysis in expectation, are ours: docs/theory/nonconvex.md.

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under REPLACE_ONE, or
REPLACE_SPECIAL: ⌈T/q⌉ Gaussian releases of sensitivity 2G/n and T - ⌈T/q⌉ of 2M·‖x_t - x_{t-1}‖/n, every
user's part clipped. Nothing is assumed of the loss: if G or M is wrong, only accuracy suffers. Utility, for
losses that are G-Lipschitz and M-smooth on the whole space, F(x_0) - inf F ≤ B and
ηM + d·σ_2²·(q - 1)·η² ≤ 1, σ_2 the noise of a difference over its distance:

    E‖∇F(x)‖² ≤ 2B/(ηT) + d·σ_1²,

σ_1 the noise of a gradient (with a ridge λ, M + λ for the M of the steps). The plan takes the η, T, q and
split of the budget that make it least, and says beside it what noisy gradient descent proves at its own best.

Cost: 2·T·n user gradients; memory of one chunk of user gradients.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.nonconvex import spider
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = spider.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), initial_gap=1.0, most_steps=20)
    >>> run = jax.jit(lambda key: spider.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Positive, checked
from dpsco_jax._numerics import float32_above
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.nonconvex import _stationary, noisy_descent
from dpsco_jax.solvers.nonconvex._spider_mean import Spider, SpiderReleases
from dpsco_jax.solvers.nonconvex._stationary import Schedule

__all__ = ["plan", "schedule", "solve"]


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    initial_gap: Positive | None = None,
    most_steps: Count = 10_000,
    num_steps: Count | None = None,
    period: Count | None = None,
    gradient_clip: Positive | None = None,
    difference_clip: Positive | None = None,
    reported: _stationary.Reported = "random",
    chunk_size: Count = 64,
    accountant: _planning.Accountant = "pld",
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> FirstOrder:
    """Chooses steps, period and noise by the bound. All arguments are public.

    Args:
        problem: for n, d, and the Lipschitz and smoothness constants of the loss.
        budget: (ε, δ) of the run, δ > 0.
        initial_gap: B ≥ F(x_0) - inf F; the range of the loss, if it has one, if left out.
        most_steps: T is at most this; the bound often wants more steps than one cares to wait for.
        num_steps: T; the best that is at most ``most_steps`` if left out.
        period: q, at most T; the best if left out.
        gradient_clip: G; the objective's Lipschitz constant if left out.
        difference_clip: M; the objective's smoothness constant if left out.
        reported: ``"random"``, one of the points before a step, or the ``"last"`` point.
        chunk_size: users whose gradients are held at once.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        relation: of neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by nobody.

    Raises:
        ValueError: an argument is out of range, or the loss is not smooth and no ``difference_clip`` given.
    """
    users, dim = problem.num_users, problem.dim
    gap = _stationary.gap_of(problem, initial_gap)
    smoothness = _stationary.smoothness_of(problem, difference_clip, "difference_clip")
    lipschitz = problem.lipschitz if gradient_clip is None else gradient_clip
    joint = fixed_size(users, users, 1).noise_multiplier(budget.epsilon, budget.delta, accountant)
    per_norm = _stationary.per_norm(relation)
    # Steps are along the gradient of loss and ridge, differences are of the loss.
    curvature = smoothness + problem.objective.ridge
    first, other = (per_norm * bound / users for bound in (lipschitz, smoothness))
    most = most_steps if num_steps is None else num_steps
    found = schedule(gap, curvature, first, other, dim, joint**-2, most, num_steps, period)
    refreshes = -(-found.num_steps // found.period)
    releases = SpiderReleases(
        population_size=users,
        num_steps=found.num_steps,
        most_refreshes=refreshes,
        most_differences=found.num_steps - refreshes,
        batch_sizes=(users, users),
        refresh_multiplier=float32_above(found.gradient_share**-0.5),
        difference_multiplier=float32_above(found.difference_share**-0.5),
        delta=budget.delta,
        neighbours=relation,
    )
    mean = Spider(chunk_size, "periodic", releases, lipschitz, smoothness, float(found.period))
    proven = math.isinf(problem.diameter) and reported == "random"
    alone = noisy_descent.schedule(gap, curvature, first, dim, joint**-2, most)
    return FirstOrder(
        title="private SpiderBoost",
        dim=dim,
        mean=mean,
        method=_stationary.steps(found, reported),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
        details={
            "gradient_norm_bound": found.bound if proven else math.inf,
            "noisy_descent_proves": alone.bound if proven else math.inf,
        },
        premises=_stationary.PREMISES,
        promised_relation=_stationary.promised(relation),
    )


@checked
def schedule(
    initial_gap: Positive,
    smoothness: Positive,
    gradient_sensitivity: Positive,
    difference_sensitivity: Positive,
    dim: Count,
    squared_mu: Positive,
    most_steps: Count,
    num_steps: Count | None = None,
    period: Count | None = None,
) -> Schedule:
    """The numbers that make the bound least, by a search over T, q and η.

    Args:
        initial_gap: B.
        smoothness: M.
        gradient_sensitivity: of the mean of gradients.
        difference_sensitivity: of the mean of differences, over the distance of their points.
        dim: d.
        squared_mu: μ² of the whole run.
        most_steps: the largest T.
        num_steps: T; the best if ``None``.
        period: q, at most T; the best if ``None``.

    Raises:
        ValueError: an argument is out of its range.
    """
    longest = most_steps if num_steps is None else num_steps
    if period is not None:
        _checks.require_integer("period", period, 1, longest)
    steps = _stationary.grid(longest, 200) if num_steps is None else [longest]
    # u = ηM; the share of a difference is the least for which u + d·σ_2²(q - 1)η² ≤ 1.
    u = np.linspace(0.01, 0.99, 99)
    # Where the noise is too much for any step nothing is proven.
    evenly = squared_mu / 2 / longest
    best = Schedule(longest, period or longest, 1 / smoothness, evenly, evenly, math.inf)
    for number in steps:
        tried = _stationary.grid(number, 60) if period is None else [min(period, number)]
        periods = np.array(tried)[:, None]
        noise = dim * (difference_sensitivity / smoothness) ** 2 * (periods - 1)
        differences = np.maximum(noise * u**2 / (1 - u), _LEAST_SHARE * squared_mu / number)
        refreshes = -(-number // periods)
        gradients = (squared_mu - (number - refreshes) * differences) / refreshes
        good = gradients > 0
        variance = dim * gradient_sensitivity**2 / np.where(good, gradients, 1.0)
        squared = 2 * initial_gap * smoothness / (u * number) + variance
        row, column = np.unravel_index(np.argmin(np.where(good, squared, math.inf)), good.shape)
        shares = float(gradients[row, column]), float(differences[row, column])
        bound = math.sqrt(squared[row, column])
        length = float(u[column]) / smoothness
        if good[row, column] and bound < best.bound:
            best = Schedule(number, int(periods[row, 0]), length, *shares, bound)
    return best


# A period of one step releases no difference; its noise is finite all the same.
_LEAST_SHARE = 1e-6
