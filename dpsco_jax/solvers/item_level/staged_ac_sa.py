"""Private AC-SA in stages for convex losses: restarts that need no strong convexity to be known.

What it computes: K stages of accelerated stochastic approximation on noisy means of clipped user gradients,
each twice as long as the one before and started from its aggregate. Near a minimizer most losses curve more
than is known; a restart forgets the momentum of the way there.

Source: own; AC-SA is thesis, Lemma 1.4.5. It is for smooth losses: ``private_ac_sa`` smooths others.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. Nothing is
assumed of the losses: gradients are clipped to G. Assumed: the key and the batches stay secret. Utility, for
convex L-smooth G-Lipschitz losses, V = G²/B (0 if B = N) + dim·σ²/B² and stages of T_k steps:

    E F(w) - F* ≤ 2Γ_K·R_K²/(T_K(T_K + 1)) + V(2T_K + 1)/(6Γ_K),   R_{k+1}² = R_k² + V·c_k/(12Γ_k²)

with c_k = T_k(T_k + 1)(2T_k + 1) and Γ_k = max(2L, √(V·c_k/12)/R_k), or L if V = 0. Proof: AC-SA's potential
t(t + 1)/2·(F(aggregate) - F*) + Γ‖x_t - w*‖² grows by V·t²/(2Γ) at most in expectation, so no iterate, and no
mean of them as the aggregate is, has a larger expected squared distance to w* than R_{k+1}², which is at most
2R_k². The domain's diameter bounds it as well, and 2·(gap)/μ where the objective is μ-strongly convex.

Cost: T·B user gradients; memory of one chunk of them; a linear model's data are held in a
second copy, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import staged_ac_sa
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = staged_ac_sa.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=8, num_stages=2)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: staged_ac_sa.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math
from typing import Annotated

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Positive, integer
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.transforms import balanced_smoothness

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: int,
    num_stages: Annotated[int, integer(1, 30)] = 3,
    batch_size: int | None = None,
    clip_norm: Positive | None = None,
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> FirstOrder:
    """Checks all arguments, sets the stages and calibrates the noise. All of them are public.

    Args:
        problem: for a smooth loss with its constants, domain and ridge, N, the number of parameters and R.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T, of all stages together, at least 2^K - 1.
        num_stages: K.
        batch_size: B, users per step, in [1, N]; everybody if left out.
        clip_norm: G; the objective's Lipschitz constant if left out. With a smaller one nothing is proven.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, the loss is not smooth, or R is not finite.
    """
    objective, users = problem.objective, problem.num_users
    smooth = objective.smoothness is not None
    _checks.require(smooth, "problem.objective.smoothness", None, "given: the loss must be smooth")
    num_steps = _checks.require_integer("num_steps", num_steps, 2**num_stages - 1)
    mean = means.clipped(
        problem,
        budget,
        num_steps=num_steps,
        batch_size=users if batch_size is None else batch_size,
        sampling="fixed",
        clip_norm=clip_norm,
        accountant=accountant,
        chunk_size=chunk_size,
    )
    batch, clip = mean.releases.batch_size, mean.clip_norm
    sampling_error = clip**2 / batch if batch < users else 0.0
    lengths = [num_steps * 2**k // (2**num_stages - 1) for k in range(num_stages)]
    lengths[-1] += num_steps - sum(lengths)
    variance = sampling_error + problem.dim * mean.noise_stddev(problem.dim) ** 2
    smoothness, bound = _stages(problem, variance, lengths)
    return FirstOrder(
        title="private AC-SA in stages",
        dim=problem.dim,
        mean=mean,
        method=methods.StagedAcSa(np.array(smoothness), tuple(lengths)),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=bound if clip >= problem.lipschitz else math.inf,
        promised_relation=_planning.REPLACE_ONE,
    )


def _stages(problem: Problem, variance: float, lengths: list[int]) -> tuple[list[float], float]:
    """Γ_k of all stages, and what the last one proves."""
    objective = problem.objective
    curvature = float(objective.smoothness or 0.0) + objective.ridge
    convexity = objective.strong_convexity
    distance, bound, parameters = problem.require_distance(), math.inf, []
    for steps in lengths:
        gamma = float(np.asarray(balanced_smoothness(curvature, variance, steps, distance)))
        gamma = gamma if variance > 0 else curvature
        cube = steps * (steps + 1) * (2 * steps + 1)
        bound = 2 * gamma * distance**2 / (steps * (steps + 1))
        bound += variance * (2 * steps + 1) / (6 * gamma)
        distance = math.sqrt(distance**2 + variance * cube / (12 * gamma**2))
        nearer = math.sqrt(2 * bound / convexity) if convexity > 0 else math.inf
        distance = min(distance, nearer, problem.diameter)
        parameters.append(gamma)
    return parameters, bound
