"""Item-level DP-SGD whose guarantee is carried over to users: the baseline that ignores who owns an item.

What it computes: in each step the gradients of all items, or of a few items drawn with replacement, are
clipped one by one, summed, divided by a public number and covered with Gaussian noise; the parameters move
against the result, are projected onto the domain and averaged.

Source: the "trivial" algorithm of T section 10.1 (footnote 2), U section 1 and L section 1: item-level
privacy at (ε/m, δ₀) and group privacy of the m items of a user. Averaging and step size as in ``sgd``.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. A user has
at most m items, the public number of item slots; replacing a user replaces what is in those m slots.
- All items in every step: the sum moves by at most 2mC. A Gaussian for that sensitivity is accounted
  exactly; group privacy of Gaussians loses nothing.
- B draws from the N·m slots: a user's slots are drawn k ~ Bin(B, 1/N) times, which moves the sum by at
  most 2kC. This is sampling of users with replacement (docs/theory/subsampling.md, section 5).
That is ``constants="tight"``. ``"paper"`` takes the noise from the black box: an (ε₀, δ₀) guarantee for
one item is (m·ε₀, δ₀·(e^(mε₀) - 1)/(e^ε₀ - 1)) for m. Its certificate and ledger are still computed as
above, so they show how much the black box gives away. Assumed: the key and the draws stay secret.
Utility, for a convex loss, no ridge, clip_norm ≥ its Lipschitz constant and m items for every user:
E F(average) - F* ≤ (1 + 1/(2T))·R·√(V/T), V = clip_norm² + dim·σ². Users with fewer items weigh less.

Cost: T·N·m item gradients, or T·B; memory of one chunk, and for linear models of a second copy of the data,
prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import item_group_privacy
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = item_group_privacy.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: item_group_privacy.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Positive
from dpsco_jax.privacy.releases import GaussianReleases, with_replacement
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _averaged_steps, _plan_base, _planning, means, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["item_budget", "plan", "solve"]


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    batch_size: int | None = None,
    clip_norm: Positive | None = None,
    step_size: Positive | None = None,
    constants: Constants = "tight",
    chunk_size: Count = 64,
) -> FirstOrder:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge of the objective, N ≥ 2, the number of
            parameters, m, which must be the number of item slots of a user, and R, the distance from the
            start to a minimizer, which is needed for the step size only.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T ≥ 1.
        batch_size: items drawn in a step, in [1, N]; all N·m slots if left out.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        constants: ``"tight"`` or ``"paper"``, see the file's docstring.
        chunk_size: items whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    num_users, items_per_user = problem.num_users, problem.items_per_user
    drawn = batch_size is not None
    batch = num_users if batch_size is None else batch_size
    batch = _checks.require_integer("batch_size", batch, 1, num_users)
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)
    if constants == "tight":
        population, asked = num_users, (budget.epsilon, budget.delta)
    else:
        population = num_users * items_per_user
        asked = item_budget(budget.epsilon, budget.delta, items_per_user)
    if drawn:
        multiplier = with_replacement(population, batch, num_steps).noise_multiplier(*asked, "rdp")
    else:
        steps = _planning.fixed_size(population, population, num_steps)
        multiplier = steps.noise_multiplier(*asked, "pld")
        if constants == "paper":  # from the sensitivity to an item to that to a user
            multiplier = _planning.float32_above(multiplier / items_per_user)
    sampling = "replacement" if drawn else "fixed"
    sizes = (num_users, batch, num_steps, sampling)
    releases = GaussianReleases(*sizes, multiplier, budget.delta)
    mean = means.ClippedItems(chunk_size, items_per_user, releases, clip_norm)
    step_size, excess_bound = _averaged_steps.step_and_bound(
        problem,
        num_steps=num_steps,
        batch_size=batch,
        rate=None,
        clip_norm=clip_norm,
        noise_stddev=mean.noise_stddev(problem.dim),
        step_size=step_size,
        averaging="uniform",
    )
    group = "all items change at once" if constants == "tight" else "black box"
    return FirstOrder(
        title="item-level DP-SGD, for users",
        dim=problem.dim,
        mean=mean,
        method=methods.ProjectedSgd(step_size),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=excess_bound,
        remarks=Remarks([("from items to users", group)]),
        premises=Remarks(
            [
                f"losses are convex and {clip_norm:.4g}-Lipschitz",
                f"every user has {items_per_user} items",
            ]
        ),
        promised_relation=_planning.REPLACE_ONE,
    )


def item_budget(epsilon: float, delta: float, items_per_user: int) -> tuple[float, float]:
    """(ε₀, δ₀) for one item that group privacy makes (ε, δ) for all m items of a user.

    An (ε₀, δ₀) guarantee for one item is (m·ε₀, δ₀·(e^(mε₀) - 1)/(e^ε₀ - 1)) for m of them.

    Args:
        epsilon: for a user, positive.
        delta: for a user.
        items_per_user: m ≥ 1.

    Raises:
        ValueError: an argument is out of range.
    """
    _checks.require_positive("epsilon", epsilon)
    _checks.require_inside("delta", delta)
    items_per_user = _checks.require_count("items_per_user", items_per_user)
    each = epsilon / items_per_user
    return each, delta * math.expm1(each) / math.expm1(epsilon) if items_per_user > 1 else delta
