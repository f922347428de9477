"""O2NC in many passes: points where the empirical risk of rough losses is stationary in Goldstein's sense.

What it computes: moves of bounded length by online learning (``transforms.o2nc``) against a private estimate
of the gradient of F_α, the empirical risk averaged over balls of radius α. All users take part in all steps.
Every Σ steps the estimate is begun anew from values (zeroth order) or gradients (first order) at shifted
points, and kept up in between by the mean of coupled differences over the distance of the points, with noise
of its own times that distance. The average of a block of M points, which is drawn beforehand, is reported.

Source: thesis, Algorithm 25 and Theorem 8.4.1; for gradients as in section 8.9; with corrections C8-2, C8-3,
C8-6 and C8-8 in docs/corrections/nonconvex.md.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, or REPLACE_SPECIAL, at every point of
the run: ⌈T/Σ⌉ Gaussian releases of sensitivity 2C_1/n, and the others of 2c_2·‖z_t - z_{t-1}‖/n with noise in
the same proportion. Every user's part is clipped, so nothing is assumed of the loss or of m. Utility, for
losses that are L-Lipschitz on the whole space and F(start) - inf F ≤ initial_gap, F the empirical risk: with
D = α/M and the point x that is reported

    E dist(0, ∂_{2α} F(x)) ≤ gap/(D·T) + 2(L + G_0)/√M + 2·G_0 = ``goldstein_bound``

(``_goldstein_bounds``: G_0 counts directions, noise and clips), printed even where it is more than L. The
risk of the population is ``nonconvex.goldstein.generalization_bound`` away.

Cost: 4m values, or 2m + 1 gradients, of every user in every step; memory of one chunk of estimates.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.nonconvex import o2nc_multi_pass
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, objective, start = made.problem(), made.objective, jax.numpy.zeros(3)
    >>> settings = {"initial_gap": 1.0, "smoothing_radius": 0.1, "draws": 4, "most_steps": 10}
    >>> plan = o2nc_multi_pass.plan(problem, Budget(1.0, 1e-5), **settings)
    >>> run = jax.jit(lambda key: o2nc_multi_pass.solve(key, plan, objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math

from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Positive
from dpsco_jax._numerics import float32_above
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.nonconvex import _goldstein_bounds, _stationary
from dpsco_jax.solvers.nonconvex._smoothed_means import EveryStep
from dpsco_jax.solvers.nonconvex._spider_mean import SpiderReleases

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    initial_gap: Positive,
    smoothing_radius: Positive,
    order: _goldstein_bounds.Order = "zeroth",
    draws: Count = 64,
    most_steps: Count = 2000,
    num_steps: Count | None = None,
    period: Count | None = None,
    chunk_size: Count = 64,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> FirstOrder:
    """Chooses steps, period, blocks and noise by the bound. All arguments are public.

    Args:
        problem: for n, d and the Lipschitz constant; its domain is the whole space, and
            nothing is proven with a ridge.
        budget: (ε, δ) of the run, δ > 0.
        initial_gap: F(start) - inf F, at most, such as the range of the loss.
        smoothing_radius: α; the point is stationary within 2α.
        order: ``"zeroth"``, from values, or ``"first"``, from gradients.
        draws: m, directions of an estimate from values, or pairs of points of a difference of gradients.
        most_steps: T is at most this; the bound often wants more steps than one cares to wait for.
        num_steps: T; the best that is at most ``most_steps`` if left out.
        period: Σ, at most T; the best if left out.
        chunk_size: users whose estimates are held at once.
        relation: of neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by nobody.

    Raises:
        ValueError: an argument is out of range.
    """
    setting = _goldstein_bounds.setting_of(
        problem, initial_gap, smoothing_radius, order, draws, sampled=False
    )
    users = problem.num_users
    joint = fixed_size(users, users, 1).noise_multiplier(budget.epsilon, budget.delta, "pld")
    steps = _goldstein_bounds.in_ratio(1, most_steps, 60) if num_steps is None else [num_steps]
    if period is not None:
        _checks.require_integer("period", period, 1, max(steps))
    per_share = joint * _stationary.per_norm(relation)
    found = _goldstein_bounds.full_batches(setting, users, per_share, steps, period)
    gradient, difference = _goldstein_bounds.clips(setting, found.room)
    begun = -(-found.num_steps // found.period)
    kept = found.num_steps - begun
    # Where nothing is kept up its noise is finite all the same.
    share = min(max(found.share, 1e-6), 1 - 1e-6) if kept else 1 - 1e-6
    releases = SpiderReleases(
        population_size=users,
        num_steps=found.num_steps,
        most_refreshes=begun,
        most_differences=kept,
        batch_sizes=(users, users),
        refresh_multiplier=float32_above(joint * math.sqrt(begun / share)),
        difference_multiplier=float32_above(joint * math.sqrt(max(kept, 1) / (1 - share))),
        delta=budget.delta,
        neighbours=relation,
    )
    mean = EveryStep(
        chunk_size,
        "periodic",
        releases,
        gradient,
        difference,
        float(found.period),
        smoothing_radius=smoothing_radius,
        order=order,
        draws=draws,
    )
    return _goldstein_bounds.plan_of("O2NC in many passes", problem, budget, mean, found)
