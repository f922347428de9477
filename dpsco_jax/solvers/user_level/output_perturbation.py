"""Output perturbation: gradient descent on a strongly convex objective, Gaussian noise on its last point.

What it computes: K steps of projected gradient descent on F + (u/2)·‖w - start‖², F the mean user loss plus
ridge, over all users; then Gaussian noise on the last point, and a projection onto the domain.

Source: Chaudhuri, Monteleoni and Sarwate 2011 (output perturbation); Wu et al. 2017 and Zhang et al. 2017
(noise for the stability of the program instead of the exact minimizer). Baseline of U section 1, T section
10.1 and L section 1: privacy for one item, carried over to users by group privacy (``constants="paper"``).

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. Let the loss of every user be convex,
L-Lipschitz and H-smooth, λ and H' the strong convexity and smoothness of the regularized objective. A step
of length η = 1/H' is a contraction by c = 1 - ηλ, projections expand nothing, and replacing a user moves the
mean gradient by at most 2L/N, so on two neighbours a_(t+1) ≤ c·a_t + 2ηL/N, and after K steps

    ‖w_K - w'_K‖ ≤ 2L/(λN)·(1 - c^K).

The minimizers themselves may be 2L/(λN) apart: nothing has to be added for stopping early, and the data
decide nothing on the way. Here L is 2^-10 larger than the objective's, so that the oracle's clip never
acts (it only drops users with NaN). For rounding, 2·(2^-20·L/λ + 2^-22·D·H'/λ) is added, D how far iterates
can be from the start, itself near the origin: an allowance for float32 sums in blocks, not a proof. What
the proof needs of the loss has to hold by construction: linear models, whose features are bounded by
projection (the link is checked on a grid), and smooth losses of ``problems.losses``; others are refused.
Utility, R ≥ ‖start - minimizer‖, σ the noise, S = σ·√dim, τ = c^K·R the distance from the minimizer:
- whole space: E F - F* ≤ uR²/2 + uRτ + (H + ridge)·(S + τ)²/2;
- other domains: E F - F* ≤ uR²/2 + (L + ridge·(R + S + τ))·(S + τ), with a ridge from the origin.

Cost: K·N user gradients, K of the order of H'/λ; memory of one chunk of user gradients.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers.convex import loop
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.user_level.item_group_privacy import item_budget

_REPLACE = NeighboringRelation.REPLACE_ONE
_CLIP_ROOM = 1.0 + 2.0**-10
_GRADIENT_ROUNDING = 2.0**-20  # of L: a mean over users, summed in blocks
_STEP_ROUNDING = 2.0**-22  # of the distance from the start
_SOLVED_TO = 0.01  # optimization error as a share of the noise


@_planning.pytree
@dataclasses.dataclass(frozen=True)
class Plan:
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        items_per_user: m, item slots of a user.
        dim: number of parameters.
        num_steps: K.
        constants: ``"tight"`` or ``"paper"``: where the noise comes from.
        chunk_size: users whose gradients are held at once.
        noise_multiplier: σ over ``sensitivity``.
        sensitivity: bound on how far one replaced user moves the last point.
        clip_norm: L, a little above the objective's Lipschitz constant.
        step_size: η.
        regularization: u.
        epsilon: the budget.
        delta: likewise.
        optimization_error: τ, bound on the distance of the last point from the regularized minimizer.
        excess_bound: proven bound on the expected excess risk.
    """

    num_users: int
    items_per_user: int
    dim: int
    num_steps: int
    constants: str
    chunk_size: int
    noise_multiplier: Any
    sensitivity: Any
    clip_norm: Any
    step_size: Any
    regularization: Any
    epsilon: Any
    delta: Any
    optimization_error: Any
    excess_bound: Any

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.num_steps * self.num_users

    @property
    def noise_stddev(self) -> float:
        """σ of the noise on each parameter."""
        return float(self.noise_multiplier) * float(self.sensitivity)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the guarantee assumes: the loss is what it says it is."""
        return (
            f"losses are convex, {float(self.clip_norm):.4g}-Lipschitz and smooth by construction",
            "float32 sums over users are exact to 2^-20",
        )

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run, by the closed form of the Gaussian."""
        event = privacy.events.gaussian(float(self.noise_multiplier))
        return privacy.certificate(event, float(self.delta), _REPLACE, self.assumes)

    def __str__(self) -> str:
        rows: list[tuple[str, Any]] = [
            ("users, items of each", f"{self.num_users}, {self.items_per_user}"),
            ("parameters", self.dim),
            ("gradient steps", self.num_steps),
            ("step size", self.step_size),
            ("regularization", self.regularization),
            ("sensitivity", self.sensitivity),
            ("noise on a parameter", self.noise_stddev),
            ("from items to users", "direct" if self.constants == "tight" else "black box"),
            ("optimization error", self.optimization_error),
            ("excess risk bound", self.excess_bound),
            ("user gradients", self.user_gradients),
            ("budget", f"({float(self.epsilon):g}, {float(self.delta):g})"),
            ("certificate", ",".join(str(self.certificate()).split("\n"))),
        ]
        return _planning.table("output perturbation", rows)


def plan(
    objective: Objective,
    *,
    num_users: int,
    dim: int,
    epsilon: float,
    delta: float,
    items_per_user: int = 1,
    initial_distance: float | None = None,
    regularization: float | None = None,
    constants: str = "tight",
    chunk_size: int = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        objective: a smooth linear model, or a smooth loss of ``problems.losses``.
        num_users: N ≥ 2.
        dim: number of parameters.
        epsilon: budget, in (0, inf).
        delta: budget, in (0, 1).
        items_per_user: m; without effect for ``"tight"``.
        initial_distance: R, bound on the distance from the start to a minimizer; the diameter of the
            domain if left out.
        regularization: u ≥ 0; the one with the smallest ``excess_bound`` if left out.
        constants: ``"tight"``: the noise for a user, at once. ``"paper"``: the noise that makes one item
            (ε/m, δ₀)-private, and group privacy (``item_group_privacy.item_budget``).
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, the loss is not of these kinds, or nothing is strongly
            convex (``regularization=0`` without ridge).
    """
    _checks.require_instance("objective", objective, Objective)
    num_users = _checks.require_integer("num_users", num_users, 2)
    items_per_user = _checks.require_integer("items_per_user", items_per_user, 1)
    dim = _checks.require_integer("dim", dim, 1)
    chunk_size = _checks.require_integer("chunk_size", chunk_size, 1)
    epsilon = _checks.require_real("epsilon", epsilon, 0)
    delta = _checks.require_real("delta", delta, 0, 1)
    _checks.require_choice("constants", constants, ("tight", "paper"))
    _require_known_loss(objective)
    diameter = float(np.asarray(objective.domain.diameter))
    distance = _checks.require_real(
        "initial_distance", diameter if initial_distance is None else initial_distance, 0
    )

    tight = constants == "tight"
    budget = (epsilon, delta) if tight else item_budget(epsilon, delta, items_per_user)
    multiplier = _planning.fixed_size(num_users, num_users, 1).noise_multiplier(*budget, "pld")
    if not tight:
        multiplier = _planning.float32_above(multiplier / items_per_user)

    def under(added: float) -> Plan:
        clip = float(objective.lipschitz) * _CLIP_ROOM
        assert objective.smoothness is not None
        own = objective.smoothness + objective.ridge
        convexity = objective.strong_convexity + added
        step = 1.0 / (own + added)
        kept = 1.0 - step * convexity
        reach = min(diameter, 2 * clip / convexity)
        rounding = _GRADIENT_ROUNDING * clip / convexity + _STEP_ROUNDING * reach / (1.0 - kept)
        most = 2 * clip / (convexity * num_users) + 2 * rounding
        spread = multiplier * most * math.sqrt(dim)
        goal = _SOLVED_TO * spread / distance
        steps = max(1, math.ceil(math.log(goal) / math.log(kept))) if kept > 0 else 1
        error = distance * max(kept, 0.0) ** steps + rounding
        off = spread + error
        excess = added * distance**2 / 2
        if math.isinf(diameter):
            excess += added * distance * error + own * off**2 / 2
        else:
            excess += (clip + objective.ridge * (distance + off)) * off
        return Plan(
            num_users, items_per_user, dim, steps, constants, chunk_size, multiplier,
            _planning.float32_above(most), clip, step, added, epsilon, delta, error, excess,
        )  # fmt: skip

    if regularization is not None:
        added = _checks.require_real("regularization", regularization, 0, closed=True)
        if added + objective.strong_convexity <= 0:
            raise ValueError("regularization must be positive where nothing else is convex, got 0")
        return under(added)
    unit = float(objective.lipschitz) / distance
    choices = [unit * 2.0 ** (k / 4) for k in range(-80, 41)]
    if objective.strong_convexity > 0:
        choices.append(0.0)
    return min(map(under, choices), key=lambda candidate: candidate.excess_bound)


def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the starting point; projected onto the domain.

    Raises:
        ValueError: if the number of users is not the planned one.
    """
    _planning.require_users("data", plan.num_users, data)
    oracle_key, noise_key = jax.random.split(key)
    start = objective.domain.project(params)
    oracle, oracle_data = loop.clipped_sum_oracle(
        objective, data, start, plan.clip_norm, None, plan.chunk_size
    )

    def regularized(total: Any, point: Any) -> Any:
        def add(g: Any, ridge: Any, w: Any, origin: Any) -> Any:
            return g / plan.num_users + ridge + plan.regularization * (w - origin)

        return jax.tree.map(add, total, objective.regularizer_gradient(point), point, start)

    descent = optax.chain(
        optax.stateless(regularized),
        optax.scale(-plan.step_size),
        transforms.project(objective.domain),
    )
    end = loop.run(oracle_key, oracle, descent, start, oracle_data, plan.num_steps)

    # The statistic is how far the program moved; its sensitivity is that of the last point.
    statistic = transforms.Aggregate(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (updates, state),
        plan.sensitivity,
        _REPLACE,
    )
    release = transforms.privatize(statistic, noise_key, plan.noise_multiplier)
    moved = jax.tree.map(jnp.subtract, end.params, start)
    noised, state = release.update(moved, release.init(moved))
    reported = objective.domain.project(jax.tree.map(jnp.add, start, noised))
    slots = jax.tree.leaves(data.items)[0].shape[1]
    return finished(reported, state, plan.user_gradients * slots, end.num_gradients, None)


def _require_known_loss(objective: Objective) -> None:
    """Refuses losses that are not known to be convex, Lipschitz and smooth by construction."""
    model, smoothness = objective.linear_model, objective.smoothness
    if smoothness is None:
        raise ValueError("objective must be smooth, for gradient steps to contract, got None")
    if model is None:
        if objective.loss.__module__ != losses.__name__:
            raise ValueError(
                "objective must be a linear model or a loss of problems.losses, so that it is convex "
                f"and Lipschitz by construction, got {objective.loss!r}"
            )
        return
    diameter = float(np.asarray(objective.domain.diameter))
    margins = np.linspace(-1.0, 1.0, 2001) * min(diameter, 100.0) * model.feature_bound
    steepest = smoothness / model.feature_bound**2 * (margins[1] - margins[0])
    for label in (-1.0, 0.0, 0.5, 1.0):
        slopes = np.asarray(model.derivative(margins, np.full(2001, label)), np.float64)
        rises, rounding = np.diff(slopes), 1e-6 * max(1.0, float(np.max(np.abs(slopes))))
        if np.min(rises) < -rounding or np.max(rises) > 1.01 * steepest + rounding:
            raise ValueError("objective must have a link that is convex and as smooth as it says")
        within = np.max(np.abs(slopes)) * model.feature_bound <= 1.001 * objective.lipschitz
        if math.isinf(diameter) and not within:
            raise ValueError("objective must have a link that is no steeper than it says")
