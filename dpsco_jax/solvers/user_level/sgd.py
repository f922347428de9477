"""Per-user clipped DP-SGD, also known as DP-FedSGD: the baseline of everything else.

What it computes: in each step a random set of users takes part; their gradients (a user's loss is the mean
over the user's items) are clipped, summed, divided by a public number and covered with Gaussian noise; the
parameters move against the result, are projected onto the domain and averaged.

Source: Abadi et al. 2016 (DP-SGD); McMahan et al. 2018 (per-user clipping, DP-FedSGD); Bassily, Smith and
Thakurta 2014 (excess risk). The step size is that of projected subgradient descent, R/√(T·V).

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under REPLACE_ONE with
``"fixed"`` or ``"full"``, and with ``sampling="poisson"`` (of the places for users; one without items is
nobody) under the relation asked for, ADD_OR_REMOVE_ONE by default. The noise covers 2·``clip_norm`` under
REPLACE_ONE and ``clip_norm`` else. Nothing is assumed of the loss: gradients are clipped. The
regularizer's gradient is exact and added outside. Assumed: the key and the samples stay secret.
Utility, for uniform averaging, no ridge, a convex loss and clip_norm ≥ its Lipschitz constant:
E F(average) - F* ≤ (1 + 1/(2T))·R·√(V/T), V = clip_norm²·(1 + v) + dim·σ²/batch_size², where v = (1 -
rate)/batch_size under Poisson sampling, for the number of users who take part is random and the divisor is
not, and 0 else. The average is of the points after the steps: docs/theory/average.md.

Cost: num_steps·batch_size user gradients; memory of one chunk of user gradients; a linear model's data are
held in a second copy, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20, batch_size=20)
    >>> run = jax.jit(lambda key: sgd.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Count, Positive
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _averaged_steps, _plan_base, _planning, means, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    batch_size: int | None = None,
    sampling: means.Sampling = "poisson",
    clip_norm: Positive | None = None,
    step_size: Positive | None = None,
    averaging: methods.Averaging = "uniform",
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
        batch_size: users per step, in [1, N]; to be left out for ``"full"`` only.
        sampling: ``"poisson"``, ``"fixed"`` (without replacement) or ``"full"``.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        averaging: ``"uniform"``, ``"polynomial"`` or ``"last"``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.
        relation: ADD_OR_REMOVE_ONE (if left out), REPLACE_ONE or REPLACE_SPECIAL under Poisson sampling;
            REPLACE_ONE, left out or not, else.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    mean = means.clipped(
        problem,
        budget,
        num_steps=num_steps,
        batch_size=batch_size,
        sampling=sampling,
        clip_norm=clip_norm,
        accountant=accountant,
        chunk_size=chunk_size,
        relation=relation,
    )
    step_size, excess_bound = _averaged_steps.step_and_bound(
        problem,
        num_steps=mean.releases.num_steps,
        batch_size=mean.releases.batch_size,
        rate=mean.releases.batch_size / problem.num_users if sampling == "poisson" else None,
        clip_norm=mean.clip_norm,
        noise_stddev=mean.noise_stddev(problem.dim),
        step_size=step_size,
        averaging=averaging,
    )
    return FirstOrder(
        title="user-level DP-SGD",
        dim=problem.dim,
        mean=mean,
        method=methods.ProjectedSgd(step_size, averaging),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=excess_bound,
    )
