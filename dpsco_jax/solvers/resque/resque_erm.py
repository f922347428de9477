"""Private empirical risk minimization over a small ball, by reweighted localized SGD.

What it computes: a point near the minimizer of f_ρ(x) + (λ/2)·‖x - x_0‖² over ‖x - x_0‖ ≤ r, where x_0 is the
start and f_ρ the mean loss of the users smoothed by N(0, ρ²I). All gradients are queried around the start in
one parallel round and reweighted along the run. It is the subsolver of ``ball_accelerated_erm``; by itself it
is for problems whose solution is known to be near: the smoothing bias is not small against L·r.

Source: thesis, Algorithm 8 (λ = 0) and 9, ``method="localized"``, and 10, ``method="strongly_convex"``, Lemma
2.4.6 and Corollaries 2.4.11 and 2.4.14, with the corrections Y1, Y2 and Z1 of docs/corrections.md: T is a
power of two, every phase starts inside of the ball, and the result is projected onto it.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, by the coupling argument of
``privacy.resque``: two runs on neighbouring data, with the same shifts, drift apart slowly. It needs losses
that are convex and L-Lipschitz on the whole space; other losses are refused. Excess of the smoothed,
regularized risk, in expectation, proved for ``constants="paper"``:

    localized:        16·(L + λr')·r'·(√d/(βT) + 1/√T),   r' = min(2r, L/λ), or r where λ = 0
    strongly convex:  8192·(L²/λ)·(d/(βT)² + 1/T)

and 1/10 to 1/1000 of it is observed. Risk and smoothed risk differ by at most ρL·√(2/π).

Cost: at most T user gradients, T steps; memory of the features of T users. Planning takes seconds.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import resque_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=1, dim=3)
    >>> plan = resque_erm.plan(made.problem(distance=5.0), Budget(4.0, 1e-5), ball_radius=0.1, num_queries=8)
    >>> run = jax.jit(lambda key: resque_erm.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 4.0
    ((3,), 0, True)
"""

import dataclasses

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Constants, Nonnegative, Positive
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls
from dpsco_jax.solvers.resque._one_ball import Method, Plan, Ratio, Sampling, draft, solve

__all__ = ["Plan", "plan", "solve"]


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    ball_radius: Positive,
    radius_ratio: Ratio = 12.0,
    regularization: Nonnegative = 0.0,
    method: Method | None = None,
    num_queries: int | None = None,
    sampling: Sampling | None = None,
    constants: Constants = "tight",
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, a linear model with a loss that is convex and Lipschitz on the whole
            space, n ≥ 2 users, and the number of parameters.
        budget: (ε, δ) of the run, δ > 0.
        ball_radius: r > 0, around the start.
        radius_ratio: ρ/r ≥ 2.001. Less of it means less smoothing, and more noise.
        regularization: λ ≥ 0, of the term (λ/2)·‖x - x_0‖².
        method: ``"strongly_convex"`` needs λ > 0 and is chosen then, else ``"localized"``.
        num_queries: T, rounded down to a power of two; a fifth of the users if left out (1/20 with
            replacement).
        sampling: ``"without_replacement"``: different users in a call; ``"with_replacement"``: as in the
            thesis. By default what ``constants`` says.
        constants: ``"tight"``: without replacement, steps as observed to be best. ``"paper"``: with
            replacement, steps as in the theorems.

    Raises:
        ValueError: an argument is out of range, or the loss is one for which privacy has no proof here.
    """
    made = draft(
        problem,
        budget,
        ball_radius=ball_radius,
        radius_ratio=radius_ratio,
        regularization=regularization,
        method=method,
        num_queries=num_queries,
        sampling=sampling,
        constants=constants,
    )
    made = accounting.calibrated(made)
    if made.constant == _calls.PROVED_CONSTANT and problem.objective.ridge == 0:
        made = dataclasses.replace(made, excess_bound=_excess(made))
    return made


def _excess(plan: Plan) -> float:
    """The bounds of the file's docstring, and the trivial one."""
    lipschitz, radius, t = plan.lipschitz, plan.ball_radius, plan.num_queries
    convexity, noise = plan.regularization, plan.dim**0.5 / (plan.beta * plan.num_queries)
    trivial = 2 * lipschitz * radius + convexity * radius**2 / 2
    if plan.method == "strongly_convex":
        return min(trivial, 8192 * lipschitz**2 / convexity * (noise**2 + 1 / t))
    reach = min(2 * radius, lipschitz / convexity) if convexity > 0 else radius
    return min(trivial, 16 * (lipschitz + convexity * reach) * reach * (noise + t**-0.5))
