"""Follow the noised leader: private online optimization on a ball by sums of gradients with correlated noise.

What it computes: before round t the point

    x_t = argmin over ‖x‖ ≤ R of ⟨S_{t-1} + Z_t, x⟩ + λ‖x‖²

is played, S_t the sum of the first t gradients, clipped to length L, and Z_t noise that is correlated over
rounds: of a banded square root, or of a binary tree (``constants="paper"``). With ``losses="linear"`` every
Z_t is filled up with fresh noise to one law N(0, s²I), the same in all rounds. ``init`` and ``step`` play a
stream as it comes; ``solve`` plays a whole one.

Source: Smith and Thakurta 2013 and Kairouz et al. 2021 (DP-FTRL, by a tree); Agarwal and Singh 2017 (one law
of noise in all rounds); the banded square root is that of ``mechanisms.correlated_noise``. The baseline of
the thesis, Table 13.1.

Formal guarantee: (ε, δ)-DP of all plays under REPLACE_ONE of the loss of one round, which moves one gradient
of the stream by 2L; later gradients may depend on plays. The stream of noised gradients is one Gaussian
release of multiplier σ (docs/theory/correlated_noise.md), and plays are post-processing. The whole run is
charged before it begins. The expected regret is at most ``regret_bound`` (docs/theory/online.md, section 7),

- ``"linear"``: for linear losses that do not depend on plays, λR² + min(R·s·E χ_d, s²d/(4λ)) +
  (TL²/2)·min(1/(2λ), R·c_d/s), c_d = min(√(2/π), E 1/χ_d): about √T·LR, and R·s·√d for privacy once, not
  in every round;
- ``"convex"``: for convex losses with gradients at the plays, λR² + TL²/(4λ) + L√d·Σ s_t/(2λ), s_t the noise
  in round t.

Cost: of a round d Gaussian variables and ``bands``·d operations; memory ``bands``·d.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import streams
    >>> from dpsco_jax.solvers.online import noised_leader
    >>> plan = noised_leader.plan(1000, 3, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0)
    >>> losses = streams.rows(jax.numpy.ones((1000, 3)))
    >>> solution = jax.jit(noised_leader.solve)(jax.random.key(0), plan, losses)
    >>> plan.certificate().epsilon <= 1.0, solution.released["plays"].shape
    (True, (1000, 3))
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Array, ArrayLike, Float, Int
from scipy import special

from dpsco_jax import _checks, _counts, _keys, privacy
from dpsco_jax._argument_kinds import Constants, Count, Positive, checked, one_of
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats, float32_above
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.norms import clip_to_norm, global_norm
from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms.correlated_noise import NoiseCorrelation, banded_square_root
from dpsco_jax.mechanisms.tree import TreeCorrelation
from dpsco_jax.solvers import _costs, _planning, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.online.experts import entries
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "State", "init", "plan", "solve", "step"]

_LEAST = 2.0**-100  # of L


@pytree
class Plan(MadeFor):
    """What ``solve`` and ``step`` will do. Sizes are static, numbers are leaves (may be batched).

    Attributes:
        num_rounds: T.
        dim: d.
        losses: ``"linear"`` or ``"convex"``.
        bands: of the banded square root; 0 for a tree.
        radius: R.
        lipschitz: L, to which gradients are clipped.
        regularization: λ, at least 0.
        noise_multiplier: σ of the stream of gradients, over its sensitivity 2L.
        noise_floor: s, to which the noise in a sum is filled up; 0 for convex losses.
        epsilon: the budget that was planned for.
        delta: δ of the budget.
        regret_bound: what is proven of the expected regret.
    """

    num_rounds: int = static()
    dim: int = static()
    losses: str = static(choices=("linear", "convex"))
    bands: int = static(least=0)
    radius: Number
    lipschitz: Number
    regularization: Number
    noise_multiplier: Number
    noise_floor: Number
    epsilon: Number
    delta: Number
    regret_bound: Number
    remarks: Remarks = static(default=Remarks(), kw_only=True)

    @property
    def correlation(self) -> NoiseCorrelation | TreeCorrelation:
        """How the noise of the stream of gradients is correlated."""
        if self.bands == 0:
            return TreeCorrelation(self.num_rounds)
        return banded_square_root(self.num_rounds, 1, bands=self.bands)

    @property
    def relation(self) -> NeighboringRelation:
        """The loss of one round is replaced."""
        return _planning.REPLACE_ONE

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy, or the bound on the regret, assumes."""
        return ("the key and the state stay secret",)

    @property
    def user_gradients(self) -> int:
        """None: gradients come from outside."""
        return 0

    @property
    def floating_point_operations(self) -> Any:
        """Operations of the whole run."""
        return self.work().floating_point_operations

    @property
    def accounted(self) -> Any:
        """Whether a run with these numbers is private at all; a bool, may be traced."""
        # Of shorter gradients the noise is lost in part: floats below 2^-126 are zero.
        normal = as_floats(self.lipschitz)[1][0] >= _LEAST
        return positive_and_finite(self.noise_multiplier, self.lipschitz) & normal

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced. Infinite where nothing is proven."""
        return privacy.unbounded_unless(self.accounted, privacy.gaussian(self.noise_multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of everything that a run plays: one Gaussian release."""
        multiplier = float(self.noise_multiplier) if bool(self.accounted) else 0.0
        event = privacy.events.gaussian(multiplier)
        return privacy.certificate(event, float(self.delta), self.relation, self.assumes)

    def work(self) -> Work:  # type: ignore[override]
        """What the whole run costs; gradients themselves are the caller's."""
        memory = self.correlation.levels if self.bands == 0 else self.bands  # type: ignore[union-attr]
        mixed = Work(0.0, 2.0 * memory * self.dim, 8.0 * memory * self.dim, 1.0)
        return (mixed + _costs.release(self.dim)) * self.num_rounds

    def __str__(self) -> str:
        return plans.describe("follow the noised leader", self, self.remarks)


class State(NamedTuple):
    """The state of an online run.

    Attributes:
        plan: what is run.
        round: how many losses were seen.
        play: x_t, for the next round: all that may be shown.
        ledger: the loss of the whole run, charged before the first round.
        key: of the run; secret.
        secret: the noised sum, and the noise that later rounds take back; secret.
    """

    plan: Plan
    round: Any
    play: Any
    ledger: privacy.Ledger
    key: jax.Array
    secret: Any


@checked
def plan(
    num_rounds: Count,
    dim: Count,
    budget: privacy.Budget,
    *,
    radius: Positive,
    lipschitz: Positive,
    losses: Annotated[str, one_of("linear", "convex")] = "linear",
    constants: Constants = "tight",
    bands: Count = 256,
) -> Plan:
    """Finds σ for a budget, and λ and s with the least bound on the regret. All of them are public.

    Args:
        num_rounds: T, at most 2^24.
        dim: d.
        budget: (ε, δ) of everything that is played, δ above 0.
        radius: R, of the ball around 0 that points are played in.
        lipschitz: L, at least 2^-100; longer gradients are clipped.
        losses: ``"linear"``, fixed before they are played against, or ``"convex"``, of which gradients at
            the plays are seen.
        constants: noise of a banded square root, or of a binary tree, as papers have it.
        bands: of the square root, or T where that is less: more have less noise, and more memory.

    Raises:
        ValueError: an argument is out of range, or δ is 0, or at least 1/T without ``allow_large_delta``.

    Example:
        >>> from dpsco_jax import Budget
        >>> settings = {"radius": 1.0, "lipschitz": 1.0}
        >>> made = plan(1000, 3, Budget(1.0, 1e-6), **settings)
        >>> made.regret_bound < plan(1000, 3, Budget(1.0, 1e-6), constants="paper", **settings).regret_bound
        True
    """
    _checks.require_instance("budget", budget, privacy.Budget)
    _checks.require(budget.delta > 0, "budget.delta", budget.delta, "above 0")
    _checks.require(num_rounds <= 2**24, "num_rounds", num_rounds, "at most 2^24")
    _checks.require(lipschitz >= _LEAST, "lipschitz", lipschitz, "at least 2^-100")
    budget.require_for(num_rounds)
    whole = privacy.FullBatch()
    sigma = float32_above(
        privacy.certified_noise_multiplier(
            whole, 1, budget.epsilon, budget.delta, _planning.REPLACE_ONE
        )
    )
    made = Plan(
        num_rounds=num_rounds,
        dim=dim,
        losses=losses,
        bands=0 if constants == "paper" else min(bands, num_rounds),
        radius=radius,
        lipschitz=lipschitz,
        regularization=0.0,
        noise_multiplier=sigma,
        noise_floor=0.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
        regret_bound=math.inf,
    )
    noise = 2.0 * sigma * _in_sums(made)  # over L
    if losses == "linear":
        pull, floor, bound = _linear(num_rounds, dim, float(noise.max()))
    else:
        lost = 0.5 * math.sqrt(dim) * float(noise.sum())
        pull, floor = math.sqrt(0.25 * num_rounds + lost), 0.0
        bound = pull + (0.25 * num_rounds + lost) / pull
    return made.replace(
        regularization=pull * lipschitz / radius,
        noise_floor=float32_above(floor * lipschitz * (1 + 1e-6)) if floor else 0.0,
        regret_bound=min(bound, 2.0 * num_rounds) * lipschitz * radius * (1 + 1e-5),
    )


def _in_sums(plan: Plan) -> np.ndarray:
    """Standard deviations of the noise in S_0, ..., S_{T-1}, over σ and the sensitivity."""
    return np.append(0.0, plan.correlation.prefix_stddev()[:-1])


def _linear(num_rounds: int, dim: int, least: float) -> tuple[float, float, float]:
    """λR/L, s/L and the bound over LR: the best that section 7 proves, with noise of at least ``least``."""
    half = 0.5 * dim
    mean = math.sqrt(2.0) * math.exp(special.gammaln(half + 0.5) - special.gammaln(half))
    flat = math.sqrt(2.0 / math.pi)
    if dim > 1:
        inverse = math.exp(special.gammaln(half - 0.5) - special.gammaln(half)) / math.sqrt(2.0)
        flat = min(flat, inverse)

    def bound(pull: float, s: float) -> float:
        start = min(s * mean, s * s * dim / (4.0 * pull) if pull else math.inf)
        bend = min(1.0 / (2.0 * pull) if pull else math.inf, flat / s if s else math.inf)
        return pull + start + 0.5 * num_rounds * bend

    own = max(least, math.sqrt(num_rounds * flat / (2.0 * mean)))
    quarter = 0.25 * num_rounds
    tried = [
        (0.0, own),
        (math.sqrt(quarter), least),
        (math.sqrt(quarter + 0.25 * least**2 * dim), least),
    ]
    pull, s = min(tried, key=lambda pair: bound(*pair))
    return pull, s, bound(pull, s)


def _begin(key: jax.Array, plan: Plan) -> tuple[jax.Array, Any, Any]:
    """The key of the run, its secrets, and the first play."""
    run_key, first_key = jax.random.split(key)
    zeros = jnp.zeros(plan.dim)
    secret = zeros, plan.correlation.init(zeros)
    return run_key, secret, _played(first_key, plan, zeros, 0)


def _seen(key: jax.Array, plan: Plan, secret: Any, count: Any, loss: Any) -> tuple[Any, Any]:
    """One gradient more: the secrets after it, and the next play. ``count`` losses were seen with it."""
    noise_key, play_key = jax.random.split(_keys.of_part(key, count))
    total, stream = secret
    gradient = clip_to_norm(loss.astype(float), plan.lipschitz)
    noised, stream = plan.correlation.add_noise(
        noise_key, gradient, stream, plan.noise_multiplier, 2.0 * plan.lipschitz
    )
    total = total + noised
    return (total, stream), _played(play_key, plan, total, count)


def _played(key: jax.Array, plan: Plan, total: Any, count: Any) -> Any:
    if plan.losses == "linear":
        there = 2.0 * plan.lipschitz * plan.noise_multiplier * jnp.asarray(_in_sums(plan))[count]
        missing = jnp.sqrt(jnp.maximum(jnp.square(plan.noise_floor) - jnp.square(there), 0.0))
        # It hides nothing, but a round with less noise would have another law.
        total = total + missing * additive.gaussian(key, jnp.zeros_like(total), 1.0)
    length = global_norm(total)
    pull = 2.0 * plan.regularization
    inside = length <= pull * plan.radius
    short = jnp.where(inside, pull, jnp.where(length > 0, length, 1.0) / plan.radius)
    return -total / jnp.where(short > 0, short, 1.0)


def init(key: jax.Array, plan: Plan) -> State:
    """The state of a run before its first round; ``state.play`` is what is played in it.

    Args:
        key: a typed key, used up. All of the state but ``play`` and ``ledger`` is secret.
        plan: of ``plan``. The whole run is charged to ``state.ledger`` at once.
    """
    _checks.require_key(key)
    _checks.require_instance("plan", plan, Plan)
    plan = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), plan)
    run_key, secret, play = _begin(key, plan)
    ledger = privacy.charge(privacy.open_ledger(plan.relation), plan.loss())
    return State(plan, jnp.zeros((), jnp.int32), play, ledger, run_key, secret)


def step(state: State, gradient: Float[ArrayLike, " dim"]) -> tuple[State, Float[Array, " dim"]]:
    """Sees the gradient of a round, and says what is played in the next one.

    Args:
        state: of ``init`` or of the step before. After T rounds nothing is seen, and nothing moves. Never
            step twice from one state with other losses: the two plays share their noise, and tell by how
            much the losses differ.
        gradient: of the loss of the round, at ``state.play``; clipped to length L, 0 if a number is not
            finite.

    Returns:
        The new state, and its ``play``, a point of the ball.
    """
    _checks.require_instance("state", state, State)
    gradient = entries("gradient", state.plan.dim, gradient)
    count = state.round + 1
    secret, play = _seen(state.key, state.plan, state.secret, count, gradient)
    over = count >= state.plan.num_rounds  # of the last loss no play tells anything
    done = state.round >= state.plan.num_rounds
    old = state.secret, state.play
    kept = jax.tree.map(lambda a, b: jnp.where(over, a, b), old, (secret, play))
    count = jnp.where(done, state.round, count)
    return state._replace(round=count, play=kept[1], secret=kept[0]), kept[1]


def solve(
    key: jax.Array,
    plan: Plan,
    losses: Callable[..., Float[ArrayLike, " dim"]],
) -> Solution:
    """Plays a whole stream, of whose losses those of one round are in memory at a time.

    Args:
        key: a typed key, used up.
        plan: of ``plan``; its numbers may be traced and batched.
        losses: the gradient of round t = 0, ..., T - 1: ``losses(t)`` of a linear loss, ``losses(t, x)``
            of a convex one, at the play x.

    Returns:
        The last play; ``released["plays"]`` are all. ``unprivate["trace"]["loss"]`` is ⟨g_t, x_t⟩ of clipped
        gradients, ``unprivate["statistic"]`` their sum.
    """
    _checks.require_key(key)
    _checks.require_instance("plan", plan, Plan)
    _checks.require_callable("losses", losses)
    plan = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), plan)
    run_key, secret, play = _begin(key, plan)

    def gradient(t: Int[Array, ""], x: Any) -> Any:
        found = losses(t) if plan.losses == "linear" else losses(t, x)
        return clip_to_norm(entries("losses", plan.dim, found).astype(float), plan.lipschitz)

    def one(at: Any, t: Any) -> Any:
        secret, play, total = at
        g = gradient(t, play)
        secret, new = _seen(run_key, plan, secret, t + 1, g)
        return (secret, new, total + g), (play, jnp.dot(g, play))

    at = secret, play, jnp.zeros(plan.dim)
    at, (plays, lost) = jax.lax.scan(one, at, jnp.arange(plan.num_rounds - 1))
    _, play, total = at
    last = gradient(jnp.int32(plan.num_rounds - 1), play)
    good = jnp.all(jnp.isfinite(play))
    return Solution(
        params=play,
        privacy=plan.loss(),
        status=jnp.where(good, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(0),
        unprivate={
            "gradients": _counts.count(0),
            "trace": {"loss": jnp.append(lost, jnp.dot(last, play))},
            "statistic": total + last,
        },
        released={"plays": jnp.concatenate([plays, play[None]])},
    )
