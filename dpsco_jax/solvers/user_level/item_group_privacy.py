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
  most 2kC. This is sampling of users with replacement (docs/privacy/subsampling.md, section 5).
That is ``constants="tight"``. ``"paper"`` takes the noise from the black box: an (ε₀, δ₀) guarantee for
one item is (m·ε₀, δ₀·(e^(mε₀) - 1)/(e^ε₀ - 1)) for m. Its certificate and ledger are still computed as
above, so they show how much the black box gives away. Assumed: the key and the draws stay secret.
Utility, for a convex loss, no ridge, clip_norm ≥ its Lipschitz constant and m items for every user:
E F(average) - F* ≤ R·√(V/T), V = clip_norm² + dim·σ². Users with fewer items weigh less.

Cost: T·N·m item gradients, or T·B; memory of one chunk.
"""

import dataclasses
import importlib.metadata
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax.oracles import sampling
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers.convex import loop
from dpsco_jax.solvers.solution import Solution, finished

_REPLACE = NeighboringRelation.REPLACE_ONE
_ASSUMES = ("the key and the items drawn in each step stay secret",)
_LEAST_MULTIPLIER = 0.01


@_planning.pytree
@dataclasses.dataclass(frozen=True)
class Plan:
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        items_per_user: m, the number of item slots of a user.
        dim: number of parameters.
        num_steps: T.
        batch_size: B, items drawn in a step; ``None`` for all N·m slots.
        constants: ``"tight"`` or ``"paper"``: where the noise comes from.
        chunk_size: items whose gradients are held at once.
        noise_multiplier: σ over the ℓ2 sensitivity of the sum: 2·m·``clip_norm`` to a user if all items
            take part, 2·``clip_norm`` to one draw else.
        clip_norm: bound on an item's gradient.
        step_size: η.
        epsilon: the budget.
        delta: likewise.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    num_users: int
    items_per_user: int
    dim: int
    num_steps: int
    batch_size: int | None
    constants: str
    chunk_size: int
    noise_multiplier: Any
    clip_norm: Any
    step_size: Any
    epsilon: Any
    delta: Any
    excess_bound: Any

    @property
    def scheme(self) -> privacy.FullBatch | privacy.WithReplacement:
        """How users take part in a step."""
        return _scheme(self.num_users, self.batch_size)

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run, empty slots included."""
        return self.num_steps * (self.batch_size or self.num_users * self.items_per_user)

    @property
    def noise_stddev(self) -> float:
        """σ of the noise on the mean gradient of a step."""
        return _stddev(self.noise_multiplier, self.clip_norm, self.num_users, self.batch_size)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        return (
            f"losses are convex and {float(self.clip_norm):.4g}-Lipschitz",
            f"every user has {self.items_per_user} items",
        )

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run by the tightest accountant that applies."""
        delta = float(self.delta)
        if self.batch_size is None:
            releases = _planning.fixed_size(self.num_users, self.num_users, self.num_steps)
            return releases.certificate(self.noise_multiplier, delta)
        step = self.scheme.gaussian_loss(float(self.noise_multiplier), _REPLACE)
        epsilon = float(privacy.epsilon(privacy.scale(step, self.num_steps), delta))
        accountant = f"Rényi curves (dpsco_jax {importlib.metadata.version('dpsco-jax')})"
        return privacy.Certificate(epsilon, delta, _REPLACE, accountant, _ASSUMES)

    def __str__(self) -> str:
        tight = self.constants == "tight"
        rows: list[tuple[str, Any]] = [
            ("users, items of each", f"{self.num_users}, {self.items_per_user}"),
            ("parameters", self.dim),
            ("steps", self.num_steps),
            ("items a step", self.batch_size or "all"),
            ("from items to users", "all items change at once" if tight else "black box"),
            ("clip norm", self.clip_norm),
            ("step size", self.step_size),
            ("excess risk bound", self.excess_bound),
            ("which assumes", "; ".join(self.assumes)),
            ("noise multiplier", self.noise_multiplier),
            ("item gradients", self.item_gradients),
            ("budget", f"({float(self.epsilon):g}, {float(self.delta):g})"),
            ("certificate", ",".join(str(self.certificate()).split("\n"))),
        ]
        return _planning.table("item-level DP-SGD, for users", rows)


def item_budget(epsilon: float, delta: float, items_per_user: int) -> tuple[float, float]:
    """(ε₀, δ₀) for one item that group privacy makes (ε, δ) for m: ε₀ = ε/m, δ₀ as in the header."""
    _checks.require_positive("epsilon", epsilon)
    _checks.require_inside("delta", delta)
    items_per_user = _checks.require_count("items_per_user", items_per_user)
    each = epsilon / items_per_user
    return each, delta * math.expm1(each) / math.expm1(epsilon) if items_per_user > 1 else delta


def plan(
    objective: Objective,
    *,
    num_users: int,
    items_per_user: int,
    dim: int,
    epsilon: float,
    delta: float,
    num_steps: int,
    batch_size: int | None = None,
    clip_norm: float | None = None,
    step_size: float | None = None,
    initial_distance: float | None = None,
    constants: str = "tight",
    chunk_size: int = 1024,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        objective: for its Lipschitz constant, domain and ridge.
        num_users: N ≥ 2.
        items_per_user: m ≥ 1, the number of item slots of a user.
        dim: number of parameters.
        epsilon: budget, in (0, inf).
        delta: budget, in (0, 1).
        num_steps: T ≥ 1.
        batch_size: items drawn in a step, in [1, N]; all N·m slots if left out.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        initial_distance: R, bound on the distance from the start to a minimizer; the diameter of the
            domain if left out. Needed for the step size only.
        constants: ``"tight"`` or ``"paper"``, see the file's docstring.
        chunk_size: items whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_given(_checks.require_positive, initial_distance=initial_distance)
    num_users = _checks.require_integer("num_users", num_users, 2)
    items_per_user = _checks.require_integer("items_per_user", items_per_user, 1)
    dim = _checks.require_integer("dim", dim, 1)
    num_steps = _checks.require_integer("num_steps", num_steps, 1)
    chunk_size = _checks.require_integer("chunk_size", chunk_size, 1)
    epsilon = _checks.require_real("epsilon", epsilon, 0)
    delta = _checks.require_real("delta", delta, 0, 1)
    _checks.require_choice("constants", constants, ("tight", "paper"))
    if batch_size is not None:
        batch_size = _checks.require_integer("batch_size", batch_size, 1, num_users)
    lipschitz = float(objective.lipschitz)
    clip = _checks.require_real("clip_norm", lipschitz if clip_norm is None else clip_norm, 0)
    if constants == "tight":
        multiplier = _multiplier(num_users, batch_size, num_steps, epsilon, delta)
    else:
        budget = item_budget(epsilon, delta, items_per_user)
        multiplier = _multiplier(num_users * items_per_user, batch_size, num_steps, *budget)
        if batch_size is None:  # from the sensitivity to an item to that to a user
            multiplier = _planning.float32_above(multiplier / items_per_user)
    slope = clip
    if initial_distance is None:
        initial_distance = float(np.asarray(objective.domain.diameter))
    if objective.ridge:
        slope += objective.ridge * initial_distance
    stddev = _stddev(multiplier, clip, num_users, batch_size)
    variance = slope**2 + dim * stddev**2
    excess_bound = math.inf
    if step_size is None:
        distance = _checks.require_real("initial_distance", initial_distance, 0)
        step_size = distance / math.sqrt(num_steps * variance)
        if clip >= lipschitz and not objective.ridge:
            excess_bound = distance * math.sqrt(variance / num_steps)
    step_size = _checks.require_real("step_size", step_size, 0)
    return Plan(
        num_users, items_per_user, dim, num_steps, batch_size, constants, chunk_size,
        multiplier, clip, step_size, epsilon, delta, excess_bound,
    )  # fmt: skip


def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users and ``plan.items_per_user`` item slots.
        params: the starting point; projected onto the domain.
        trace: see ``convex.loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users or of item slots is not the planned one.
    """
    _planning.require_users("data", plan.num_users, data)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    planned = f"of plan.items_per_user = {plan.items_per_user} slots"
    _checks.require(slots == plan.items_per_user, "data", slots, planned)
    total = plan.num_users * slots
    # Every slot is a user with one item, so each item's gradient is clipped by itself.
    items = jax.tree.map(lambda leaf: leaf.reshape(total, 1, *leaf.shape[2:]), data)
    oracle_key, noise_key = jax.random.split(key)
    params = objective.domain.project(params)
    draws, clip = plan.batch_size, plan.clip_norm
    sampler = None if draws is None else lambda k: sampling.with_replacement(k, total, draws)
    oracle, oracle_data = loop.clipped_sum_oracle(
        objective, items, params, clip, sampler, plan.chunk_size
    )
    if draws is None:
        aggregate = transforms.summed_contributions(slots * clip, total, _REPLACE)
    else:
        aggregate = transforms.summed_contributions(clip, draws, _REPLACE)
    chain = optax.chain(
        transforms.privatize(aggregate, noise_key, plan.noise_multiplier, plan.scheme),
        optax.stateless(lambda g, p: jax.tree.map(jnp.add, g, objective.regularizer_gradient(p))),
        optax.scale(-plan.step_size),
        transforms.project(objective.domain),
        transforms.average(0.0),
    )
    end = loop.run(oracle_key, oracle, chain, params, oracle_data, plan.num_steps, trace)
    reported = transforms.average_eval_params(end.opt_state, end.params)
    return finished(reported, end.opt_state, plan.item_gradients, end.num_gradients, end.trace)


def _scheme(population: int, batch_size: int | None) -> privacy.FullBatch | privacy.WithReplacement:
    if batch_size is None:
        return privacy.FullBatch()
    return privacy.WithReplacement(population, batch_size)


def _multiplier(
    population: int, batch_size: int | None, num_steps: int, epsilon: float, delta: float
) -> float:
    """The smallest multiplier that meets (ε, δ) for one of a population of users, or of items."""
    if batch_size is None:
        releases = _planning.fixed_size(population, population, num_steps)
        return releases.noise_multiplier(epsilon, delta, "pld")
    scheme = _scheme(population, batch_size)
    run = lambda s: privacy.scale(scheme.gaussian_loss(s, _REPLACE), num_steps)  # noqa: E731
    most = 2 * math.sqrt(num_steps) / delta
    # The ledger adds in float32 and rounds up: leave it the room.
    room = epsilon * (1 - 2e-5)
    return _planning.float32_above(privacy.calibrate(run, room, delta, _LEAST_MULTIPLIER, most))


def _stddev(multiplier: Any, clip_norm: Any, num_users: int, batch_size: int | None) -> float:
    return 2 * float(multiplier) * float(clip_norm) / (batch_size or num_users)
