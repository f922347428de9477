"""O2NC in one pass: points where the population's risk of rough losses is stationary in Goldstein's sense.

What it computes: moves of bounded length by online learning (``transforms.o2nc``) against a private estimate
of the gradient of F_α, the risk averaged over balls of radius α. Every Σ steps it is begun anew from the next
B_1 users, by values (zeroth order) or gradients (first order) at shifted points, and kept up in between by
coupled differences of the next B_2 users; the noise of the steps of a period is correlated, so that their sum
has little of it. The average of a block of M points, which is drawn beforehand, is reported.

Source: thesis, Algorithms 24 and 26, Theorems 8.3.1 and 8.9.4 (T, Remark 8.3.2), with corrections C8-1 to
C8-6 and C8-8 in docs/corrections/nonconvex.md: no step without noise, fresh noise in every period, clips in
place of an event that m has to make likely, coupled differences, a rate with √d in its first term.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, or REPLACE_SPECIAL, at every point of
the run. A user takes part in one step, by position, with a share of norm at most c after the clip; a period
is one Gaussian release of sensitivity 2c, and periods are of disjoint users. Nothing is assumed of the loss:
if L is wrong, or m too small, only accuracy suffers. Utility, for users' losses that are L-Lipschitz on the
whole space, i.i.d. users and F(start) - inf F ≤ initial_gap: with D = α/M and the point x that is reported

    E dist(0, ∂_{2α} F(x)) ≤ gap/(D·T) + 2(L + G_0)/√M + 2·G_0 = ``goldstein_bound``

(``_goldstein_bounds``: G_0 counts samples, directions, noise and clips). It is printed even where it is more
than L, which every point has: in ten dimensions it takes 10⁵ to 10⁶ users.

Cost: one pass; 4m values, or 2m + 1 gradients, of each user; memory of one chunk of estimates, and of
32 vectors of noise.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.nonconvex import o2nc_single_pass
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, objective, start = made.problem(), made.objective, jax.numpy.zeros(3)
    >>> settings = {"initial_gap": 1.0, "smoothing_radius": 0.1, "draws": 4}
    >>> plan = o2nc_single_pass.plan(problem, Budget(1.0, 1e-5), **settings)
    >>> run = jax.jit(lambda key: o2nc_single_pass.solve(key, plan, objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import functools

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Constants, Count, Positive
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.nonconvex import _goldstein_bounds, _stationary
from dpsco_jax.solvers.nonconvex._smoothed_means import OnePass, StreamReleases
from dpsco_jax.solvers.nonconvex._stream_mean import correlation_of

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    initial_gap: Positive,
    smoothing_radius: Positive,
    order: _goldstein_bounds.Order = "zeroth",
    draws: Count = 64,
    period: Count | None = None,
    constants: Constants = "tight",
    chunk_size: Count = 64,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> FirstOrder:
    """Chooses batches, period, blocks and noise by the bound. All arguments are public.

    Args:
        problem: for n, d and the Lipschitz constant; its domain is the whole space, and
            nothing is proven with a ridge.
        budget: (ε, δ) of the run, δ > 0.
        initial_gap: F(start) - inf F, at most, such as the range of the loss.
        smoothing_radius: α; the point is stationary within 2α.
        order: ``"zeroth"``, from values, or ``"first"``, from gradients.
        draws: m, directions of an estimate from values, or pairs of points of a difference of gradients.
        period: Σ, at most n; the best if left out.
        constants: ``"tight"``, or ``"paper"`` for noise of a tree in place of that of buffers.
        chunk_size: users whose estimates are held at once.
        relation: of neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by nobody.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: there are fewer users than a period has steps.
    """
    setting = _goldstein_bounds.setting_of(
        problem, initial_gap, smoothing_radius, order, draws, sampled=True
    )
    users = problem.num_users
    one = fixed_size(users, users, 1)
    multiplier = one.noise_multiplier(budget.epsilon, budget.delta, "pld")
    kind = "tree" if constants == "paper" else "buffers"

    @functools.cache
    def mean_squares(steps: int) -> float:
        return float(np.mean(correlation_of(kind, steps).prefix_stddev() ** 2))

    per_share = multiplier * _stationary.per_norm(relation)
    found = _goldstein_bounds.one_pass(setting, users, per_share, mean_squares, period)
    move = smoothing_radius / found.block_length
    gradient, difference = _goldstein_bounds.clips(setting, found.room, 2 * move)
    share = gradient / found.batches[0]
    if found.period > 1:
        share = max(share, difference / found.batches[1])
    releases = StreamReleases(
        population_size=users,
        num_steps=found.num_steps,
        period=found.period,
        batch_sizes=found.batches,
        correlation=kind,
        noise_multiplier=multiplier,
        delta=budget.delta,
        neighbours=relation,
    )
    mean = OnePass(chunk_size, order, draws, releases, share, smoothing_radius)
    return _goldstein_bounds.plan_of("O2NC in a single pass", problem, budget, mean, found)
