"""Per-user clipped DP-SGD with heavy-ball momentum and linearly decaying steps: the tuned practice.

What it computes: the noisy mean of clipped user gradients of ``sgd`` drives v ← β·v + (1 - β)·gradient and
w ← Π(w - η_t·v), with η_t = η·(T - t)/(T + 1) or constant; the last point is returned.

Source: Polyak 1964 (heavy ball); Abadi et al. 2016 (DP-SGD); Zamani and Glineur 2023 (linearly decaying steps
are optimal for the last point), with the proof for stochastic gradients in docs/theory/linear_decay.md.

Formal guarantee: that of ``sgd``, with the same releases: (ε, δ)-DP for a user's whole data, at every point
of the run, under the relation asked for with ``sampling="poisson"``, under REPLACE_ONE else. Velocity and
steps are post-processing. Assumed: the key and the samples stay secret. Utility, for linear decay, β = 0, no
ridge, a convex loss, clip_norm ≥ its Lipschitz constant and gradients of second moment V, as in ``sgd``:
E F(last) - F* ≤ R·√(V/(T + 1)). Nothing is proven with momentum.

Cost: that of ``sgd``.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import momentum_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = momentum_sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20, batch_size=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: momentum_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math
from typing import Annotated

from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import BelowOne, Count, Positive, one_of
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.user_level import sgd

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    momentum: BelowOne = 0.9,
    step_decay: Annotated[str, one_of("linear", "none")] = "linear",
    batch_size: int | None = None,
    sampling: means.Sampling = "poisson",
    clip_norm: Positive | None = None,
    step_size: Positive | None = None,
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
    relation: NeighboringRelation | None = None,
) -> FirstOrder:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge, N, the number of parameters, and the distance
            R, which is needed for the step size only.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T ≥ 1.
        momentum: β in [0, 1).
        step_decay: ``"linear"`` or ``"none"``.
        batch_size: users per step, in [1, N]; to be left out for ``"full"`` only.
        sampling: ``"poisson"``, ``"fixed"`` (without replacement) or ``"full"``.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: η; R/√(T·V), with T + 1 in place of T under linear decay, if left out.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.
        relation: of neighbours, as in ``sgd.plan``.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    base = sgd.plan(
        problem,
        budget,
        num_steps=num_steps,
        batch_size=batch_size,
        sampling=sampling,
        clip_norm=clip_norm,
        step_size=step_size,
        accountant=accountant,
        chunk_size=chunk_size,
        relation=relation,
    )
    # R·√(V/T), proven of the points before sgd's steps, holds for the last one with T + 1 in place of T.
    steps = base.num_steps
    shrink = math.sqrt(steps / (steps + 1)) if step_decay == "linear" else 1.0
    last = base.excess_bound / _planning.after_steps(steps) * shrink
    length = base.method.step_size * (shrink if step_size is None else 1.0)
    return base.with_method(
        "user-level DP-SGD with momentum",
        methods.Momentum(length, momentum, step_decay),
        last if step_decay == "linear" and momentum == 0 else math.inf,
    )
