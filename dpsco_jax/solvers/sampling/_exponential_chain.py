"""The chain of the exponential mechanism: its numbers for a budget, what they prove, and its last point.

The proximal sampler by ``rejection_oracle`` for exp(-k·(F + (μ/2)‖x - c‖²)) on a box or ball with centre c,
where it starts. τ is proven for k, μ and a set that are off by no more than float32 rounds them.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry.domains import ball
from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.objective import Objective, OneHot
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import (
    _cells,
    _draw,
    _rows,
    alternating_sampler,
    rejection_oracle,
    restricted_gaussian,
)
from dpsco_jax.solvers.sampling import _rejection_certificate as rejection

TOLERANCE = 2.0**-20
_LINK_ULPS = 12.0  # of log(1 + e^m) - y·m and of a hinge, over the largest of what is added up
_SHARE = 0.8  # of δ: what a chain takes of it, so that its loss at δ is not far from ε
_LEAST_DELTA = 1e-12  # for which a chain has ever been planned
_MOST_EPSILON = 40.0  # beyond, τ would have to be below what float64 rounds in one step


class Chain(NamedTuple):
    """What a chain runs with, and what it was certified for."""

    step_size: float  # η
    num_terms: int  # A
    num_steps: int  # T
    num_trials: int  # N
    escape: float  # how likely points may be farther out than roundings are bounded for
    inverse_temperature: float  # k
    regularization: float  # μ
    radius: float  # of the set, a ball; half of the diagonal of a box
    center_norm: float  # how far its centre is from the origin


def sizes_of(
    k: float, mu: float, radius: float, norm: float, users: int, dim: int, slope: float, ball: bool
) -> rejection.Sizes:
    """What the certificate of a chain has to know; its numbers may be off by what float32 rounds them."""
    above, below = 1.0 + TOLERANCE, 1.0 - TOLERANCE
    # Labels of two classes are clipped: |loss at the centre| ≤ 1 + L·‖centre‖.
    farther = norm * above
    rounding = rejection.rounded_losses(
        k * above, dim, slope, farther, 1.0 + slope * farther, _LINK_ULPS
    )
    return rejection.Sizes(
        num_records=users,
        dim=dim,
        lipschitz=k * slope * above,
        convexity=k * mu * below**2,
        start_distance=radius * above,
        rounding=rounding,
        reach=radius * above,
        ball_radius=radius * below if ball else None,
    )


@functools.lru_cache(maxsize=64)
def variation_of(chain: Chain, users: int, dim: int, slope: float, ball: bool) -> float:
    """τ of the chain."""
    k, mu, radius, norm = chain[5:]
    sizes = sizes_of(k, mu, radius, norm, users, dim, slope, ball)
    found = rejection.certified(
        sizes,
        chain.step_size,
        chain.num_terms,
        chain.num_steps,
        chain.num_trials,
        escape=chain.escape,
    )
    return float(found.variation)


def planned(
    problem: Problem,
    budget: privacy.Budget,
    slope: float,
    lower: np.ndarray,
    upper: np.ndarray,
    is_ball: bool,
    regularization: float | None,
) -> Chain:
    """The chain for a budget; a refusal's ``needed`` has a δ that would do, if there is any."""
    proven_model(problem.objective)
    users, dim = problem.num_users, problem.dim
    items = problem.items_per_user
    _checks.require(items == 1, "problem.items_per_user", items, "1 for a chain")
    half, middle = 0.5 * (upper - lower), 0.5 * (upper + lower)
    radius = float(half[0] if is_ball else np.linalg.norm(half)) * (1.0 + 2.0**-40)
    norm = float(np.linalg.norm(middle)) * (1.0 + 2.0**-40)
    k = _cells.temperature(budget.epsilon, slope, radius * (1.0 + 1e-7), users)
    mu = 2.0 * dim / (k * radius**2) if regularization is None else regularization
    if budget.epsilon > _MOST_EPSILON:
        raise Infeasible(
            f"budget.epsilon must be at most {_MOST_EPSILON} for a chain, whose δ is e^ε times its distance "
            f"from its law, got {budget.epsilon}",
            {"epsilon": _MOST_EPSILON},
        )
    sizes = sizes_of(k, mu, radius, norm, users, dim, slope, is_ball)
    shrink = math.exp(-budget.epsilon) / (1.0 + math.exp(-budget.epsilon))

    def found(delta: float) -> rejection.Chain:
        if delta <= 0.0:
            raise Infeasible(
                "budget.delta must be positive for a chain, which is not exact; pure privacy is had on a "
                "grid for d <= 2, and for linear losses on a box, got 0.0",
                {"delta": delta},
            )
        return rejection.planned(_SHARE * delta * shrink, sizes)

    made = _draw.naming_delta(found, budget.delta, _LEAST_DELTA, False)
    return Chain(
        step_size=float(made.step_size),
        num_terms=made.num_terms,
        num_steps=int(made.num_steps),
        num_trials=int(made.num_trials),
        escape=float(made.escape),
        inverse_temperature=k,
        regularization=mu,
        radius=radius,
        center_norm=norm,
    )


def last_point(
    key: jax.Array,
    chain: Chain,
    objective: Objective,
    data: UserData,
    lower: jax.Array,
    upper: jax.Array,
    is_ball: bool,
    inverse_temperature: jax.Array,
    regularization: jax.Array,
    constant_time: bool,
) -> tuple[jax.Array, jax.Array]:
    """The end of a chain from the centre, and how many trials it made."""
    model = proven_model(objective)
    dense = not isinstance(data.items.features, OneHot)
    _checks.require(dense, "data.items.features", "one-hot", "dense rows for a chain")
    users, slots = jax.tree.leaves(data.items)[0].shape[:2]
    _checks.require(slots == 1, "data", f"{slots} item slots", "of one item a user for a chain")
    rows = _rows.prepare(model, data, lower.shape[0])

    def loss(point: jax.Array, row: Any) -> Any:
        features, label, weight = row
        return weight * model.link(jnp.dot(point, features), label)

    center, bend = 0.5 * (lower + upper), inverse_temperature * regularization
    if is_ball:
        domain = ball(0.5 * (upper - lower)[0], center)
        law = restricted_gaussian.convex_set(chain.step_size, bend, center, domain)
    else:
        law = restricted_gaussian.box(chain.step_size, bend, center, lower, upper)
    oracle = rejection_oracle.oracle(
        loss,
        (rows.features, rows.labels, rows.weights),
        law,
        num_records=users,
        scale=inverse_temperature,
        num_terms=chain.num_terms,
        constant_time=constant_time,
    )
    end = alternating_sampler.run(
        key,
        oracle,
        center,
        num_steps=chain.num_steps,
        num_trials=chain.num_trials,
        constant_time=constant_time,
    )
    return end.params, end.num_trials


def proven_model(objective: Objective) -> Any:
    """The linear model of a loss that a chain may run on."""
    proof = _rows.require_everywhere(objective)
    model = objective.vector_model
    bounded = model is not None and proof.label_range == TWO_CLASSES
    what = "logistic or hinge, whose labels are bounded, for a chain"
    _checks.require(bounded, "objective", objective.loss, what)
    return model
