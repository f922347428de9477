"""Private online optimization of linear losses on a ball: the continuous measure, drawn from lazily.

What it computes: before each of T rounds a point x of the ball of radius R around 0 is played, then its loss
⟨g, x⟩ is seen, ‖g‖ ≤ L. x_s, played on all of batch s of B rounds, has the law

    ν_s ∝ exp(-β(⟨G, x⟩ + λ‖x‖²)) on the ball, G the sum of all g before the batch:

N(-G/(2λ), I/(2βλ)) on the ball. It is x_{s-1}, kept with the probability (1 - p)·exp(-β·Σ(⟨g_i, x_{s-1}⟩ +
‖g_i‖R)), i in batch s - 1, and otherwise drawn anew. With ``redraw_probability=1`` every batch has a fresh
draw. ``init`` and ``step`` play a stream as it comes; ``solve`` plays a whole one.

Source: thesis, Theorem 13.3.12 with Algorithm 44 on the regularized continuous measure; corrections C13-1,
C13-2 and C13-4. Without the printed reference points, which cost as much as the draws; the draw, the account
and the bound on the regret are ours (docs/theory/online.md, sections 5 and 6).

Formal guarantee: (ε, δ)-DP of all plays under REPLACE_ONE of the loss of one round, against losses that may
depend on earlier plays; T is public. Every g is clipped to length L (what is not finite is 0), rounded
towards 0 to 2^-24 of L, and added up as integers. A fresh draw is L²β/λ·(1 + r·T)²-zCDP: replacing g moves
the potential, which is 2βλ-strongly convex, by a 2βL-Lipschitz function, and r is what the sum is off by as a
float32, some 10^-6. What one round adds to a coin's exponent is clipped into [0, κ], κ = 2βLR, which cuts
nothing off. Draws are by attempts, of which all fail with a probability of at most 2·0.57^96: that is charged
as their total variation, (1 + e^ε) times for each. **Not covered**: densities and points are those of real
arithmetic up to the rounding of floats, in a log-density of about 10^-5 for d ≤ 10, and of 4·10^-7·d for
larger ones, up to 10,000, beyond which nothing is claimed. The whole run is charged before it begins.
Expected regret, against losses that do not depend on plays: ``regret_bound``; in orders LR(√(TB) +
√(d·log(T)/ρ)), ρ of a draw. ``noised_leader`` has far less for such losses; general convex losses go through
``lazy_to_private`` with a sampler of their own (docs/online.md).

Cost: T·d additions, memory O(d) and one play a batch; a draw is two numbers by 96 attempts each, and d
Gaussian variables.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import streams
    >>> from dpsco_jax.solvers.online import convex
    >>> plan = convex.plan(1000, 3, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0)
    >>> losses = streams.rows(jax.numpy.ones((1000, 3)))
    >>> solution = jax.jit(convex.solve)(jax.random.key(0), plan, losses)
    >>> plan.certificate().epsilon <= 1.0, solution.released["plays"].shape == (plan.num_batches, 3)
    (True, True)
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Positive, checked, real
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree
from dpsco_jax.geometry.norms import clip_to_norm, global_norm, head_room
from dpsco_jax.solvers.online import _ball_law, _calibration, _lazy
from dpsco_jax.solvers.online._lazy import LazyPlan, Measure, State
from dpsco_jax.solvers.online.experts import entries
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "State", "init", "plan", "solve", "step"]

_UNIT = 2**24
_SPREADS = np.geomspace(0.5, 30.0, 7)  # of λR/L times √(2ρ/d): all that the account leaves open
_SHORT = 1.0 - 1e-6  # of the budget: numbers are rounded to float32
_Chance = Annotated[float, real(0.0, math.nextafter(1.0, 2.0))]


@pytree
class Plan(LazyPlan):
    """What ``solve`` and ``step`` will do: ``LazyPlan``, with β for the rate.

    Attributes:
        radius: R.
        lipschitz: L, to which losses are clipped.
        regularization: λ.
        clip: κ.
    """

    radius: Number
    lipschitz: Number
    regularization: Number
    clip: Number

    @property
    def concentration(self) -> Any:
        """βλR²: a of the law on the unit ball."""
        # In this order no product leaves the floats where λR/L and βLR are within them.
        return (self.learning_rate * self.radius) * (self.regularization * self.radius)

    @property
    def tilt(self) -> Any:
        """βLR: k of the law on the unit ball, for one loss."""
        return self.learning_rate * self.lipschitz * self.radius

    @property
    def draw_zcdp(self) -> Any:
        """ρ = L²β/λ, and what the rounding of a sum of T losses adds; infinite where λ is not positive."""
        xp, (beta, slope, pull) = as_floats(self.learning_rate, self.lipschitz, self.regularization)
        rounded = 1.0 + _rounding(self.dim) * self.num_rounds
        good = pull > 0
        # L² of a small L would be zero in float32, and the charge with it.
        rho = (beta * slope) * (slope / xp.where(good, pull, 1.0)) * (rounded * rounded)
        return xp.where(good, rho, xp.inf)

    @property
    def variation(self) -> Any:
        """2·0.57^96 of a draw; 1, of which nothing is proven, where the law is sharper than its search."""
        xp, (a, k) = as_floats(self.concentration, self.tilt * self.num_rounds)
        proven = (a > 0) & (a <= _ball_law.MOST) & (k >= 0) & (k <= _ball_law.MOST)
        proven = proven & (self.dim <= _ball_law.MOST_DIM)
        return xp.where(proven & (self.radius > 0), _ball_law.VARIATION, 1.0)[()]


def regret_bound(num_rounds: int, dim: int, batch_size: int, zcdp: Any, pull: Any) -> Any:
    """The bound over LR, for ρ = L²β/λ and λR/L; see docs/theory/online.md, section 6."""
    rate = zcdp * pull
    start = _ball_law.moment(dim, rate * num_rounds, rate * pull)
    return start / rate + num_rounds * batch_size / (4.0 * pull)


@checked
def plan(
    num_rounds: Count,
    dim: Count,
    budget: privacy.Budget,
    *,
    radius: Positive,
    lipschitz: Positive,
    batch_size: Count | None = None,
    redraw_probability: _Chance | None = None,
) -> Plan:
    """Finds B, p, β and λ with the least bound on the regret for a budget. All of them are public.

    Args:
        num_rounds: T, at most 2^24.
        dim: d.
        budget: (ε, δ) of everything that is played, δ above 0.
        radius: R, of the ball around 0 that points are played in.
        lipschitz: L; longer gradients are clipped.
        batch_size: B ≤ T; a power of two if left out.
        redraw_probability: p in (0, 1]; the best one if left out. 1 is a fresh draw in every batch.

    Raises:
        ValueError: an argument is out of range, or δ is 0, or at least 1/T without ``allow_large_delta``, or
            β or λ is out of the range of float32.

    Example:
        >>> from dpsco_jax import Budget
        >>> made = plan(1000, 3, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0, redraw_probability=1.0)
        >>> made.redraw_probability, made.clip > 0
        (1.0, True)
    """
    _checks.require_instance("budget", budget, privacy.Budget)
    _checks.require(budget.delta > 0, "budget.delta", budget.delta, "above 0")
    _checks.require(num_rounds <= _UNIT, "num_rounds", num_rounds, "at most 2^24")
    budget.require_for(num_rounds)
    if batch_size is not None:
        _checks.require(batch_size <= num_rounds, "batch_size", batch_size, f"at most {num_rounds}")
    sizes = _calibration.powers_of_two(num_rounds) if batch_size is None else (batch_size,)
    wanted = f"at most {_ball_law.MOST_DIM}, beyond which float32 rounds the law by too much"
    _checks.require(dim <= _ball_law.MOST_DIM, "dim", dim, wanted)
    made = functools.partial(_made, num_rounds, dim, radius, lipschitz, budget)
    failed = (1.0 + math.exp(min(budget.epsilon, 700.0))) * num_rounds * _ball_law.VARIATION
    wanted = f"above {failed:.3g}, of draws that fail"
    _checks.require(_SHORT * budget.delta > failed, "budget.delta", budget.delta, wanted)
    rest = _SHORT * budget.delta - failed
    inner = privacy.Budget(_SHORT * budget.epsilon, rest, allow_large_delta=True)

    def best(spread: float) -> tuple[float, Any]:
        def releases(size: int, rates: Any, chances: Any, _: float) -> privacy.LazyReleases:
            return made(size, rates, chances, spread).releases

        def bound(size: int, rates: Any) -> Any:
            return regret_bound(num_rounds, dim, size, *_of_rate(rates, spread))

        found = _calibration.calibrate(
            inner, releases, bound, lambda _: 3.0, sizes, redraw_probability, (1.0,)
        )
        return spread, found

    tried = [best(spread * math.sqrt(dim)) for spread in _SPREADS]
    middle = min(tried, key=lambda pair: pair[1].bound)[0]
    step = (_SPREADS[1] / _SPREADS[0]) ** (1 / 3)
    tried += [best(middle * factor) for factor in (1 / step, step)]
    spread, found = min(tried, key=lambda pair: pair[1].bound)
    chosen = made(found.batch_size, found.rate, found.redraw_probability, spread)
    beta, pull = float(chosen.learning_rate), float(chosen.regularization)
    used = (radius, lipschitz, beta, pull, beta * radius, beta * lipschitz, pull * radius)
    normal = all(2.0**-126 <= number < 2.0**127 for number in (*used, lipschitz / pull))
    wanted = f"of a size for which β and λ, here {beta:.3g} and {pull:.3g}, are float32"
    _checks.require(normal, "lipschitz", lipschitz, wanted)
    claimed = math.sqrt(num_rounds) + (
        num_rounds ** (1 / 3) * math.sqrt(dim) / budget.epsilon ** (2 / 3)
    )
    claimed = 2.0 * radius * lipschitz * claimed
    said = (("T Theorem 13.3.12 claims", f"the order of {claimed:.5g}, which is not proven"),)
    return chosen.replace(
        title="private linear losses on a ball",
        regret_bound=lipschitz * radius * float(found.bound),
    ).replace(remarks=Remarks(said))


def _of_rate(rate: Any, spread: float) -> tuple[Any, Any]:
    """ρ and λR/L of √(2ρ) and their product's share."""
    zcdp = 0.5 * np.square(np.asarray(rate, np.float64))
    return zcdp, spread / (2.0 * np.sqrt(zcdp))


def _made(
    num_rounds: int,
    dim: int,
    radius: float,
    lipschitz: float,
    budget: privacy.Budget,
    batch_size: int,
    rate: Any,
    chance: Any,
    spread: float,
) -> Plan:
    zcdp, pull = _of_rate(rate, spread)
    beta = zcdp * pull / (lipschitz * radius)
    return Plan(
        num_rounds=num_rounds,
        dim=dim,
        batch_size=batch_size,
        reference="none",
        learning_rate=beta[()],
        redraw_probability=chance,
        reference_probability=0.0 * np.asarray(chance)[()],
        envelope_factor=1.0 + 0.0 * np.asarray(chance)[()],
        epsilon=budget.epsilon,
        delta=budget.delta,
        regret_bound=math.inf,
        radius=radius,
        lipschitz=lipschitz,
        regularization=(pull * lipschitz / radius)[()],
        # A little more than 2βLR: float32 may take that much away.
        clip=(2.0 * (1.0 + 1e-6) * beta * lipschitz * radius)[()],
    )


def init(key: jax.Array, plan: Plan) -> State:
    """The state of a run before its first round; ``state.play`` is what is played in it.

    Args:
        key: a typed key, used up. All of the state but ``play`` and ``ledger`` is secret.
        plan: of ``plan``. The whole run is charged to ``state.ledger`` at once.
    """
    _checks.require_instance("plan", plan, Plan)
    return _lazy.init(key, plan, measure(plan))


def step(state: State, loss: Float[ArrayLike, " dim"]) -> tuple[State, Float[Array, " dim"]]:
    """Sees the loss of a round, and says what is played in the next one.

    Args:
        state: of ``init`` or of the step before. After T rounds nothing is seen, and nothing moves. Never
            step twice from one state with other losses: both steps would share their noise.
        loss: the gradient g of a linear loss ⟨g, x⟩; clipped to length L, 0 if a number is not finite.

    Returns:
        The new state, and its ``play``, a point of the ball.
    """
    _checks.require_instance("state", state, State)
    return _lazy.step(state, measure(state.plan), entries("loss", state.plan.dim, loss))


def solve(
    key: jax.Array, plan: Plan, losses: Callable[[Int[Array, ""]], Float[ArrayLike, " dim"]]
) -> Solution:
    """Plays a whole stream, of whose losses those of one round are in memory at a time.

    Args:
        key: a typed key, used up.
        plan: of ``plan``; its numbers may be traced and batched.
        losses: ``losses(t)``, the gradient of round t = 0, ..., T - 1. They must not depend on anything that
            the run draws.

    Returns:
        The last play; ``released["plays"]`` are all, one a batch. ``unprivate["trace"]["loss"]`` is what was
        lost in each batch, and Σ ‖g‖R of its clipped losses more.
    """
    _checks.require_instance("plan", plan, Plan)
    _checks.require_callable("losses", losses)
    return _lazy.solve(
        key, plan, measure(plan), lambda t: entries("losses", plan.dim, losses(t)), keep=True
    )


def measure(plan: Plan) -> Measure:
    """The law on the ball, of sums of gradients that are integers in units of 2^-24 of L, in two words."""

    def units(loss: Any) -> Any:
        short = clip_to_norm(loss.astype(jnp.float32) / plan.lipschitz, 1.0)
        return jnp.trunc(short.astype(jnp.float32) * _UNIT).astype(jnp.int32)

    def zeros() -> Any:
        return (jnp.zeros(plan.dim, jnp.int32), jnp.zeros(plan.dim, jnp.int32))

    def update(sums: Any, loss: Any) -> Any:
        whole, part = sums
        part = part + units(loss)
        return whole + (part >> 24), part & (_UNIT - 1)

    def sample(key: jax.Array, sums: Any) -> Any:
        whole, part = sums
        total = whole.astype(float) + part.astype(float) / _UNIT
        tilt = plan.tilt * global_norm(total)
        return plan.radius * _ball_law.draw(key, -total, tilt, plan.concentration)

    def loss_at(loss: Any, x: Any) -> Any:
        gradient = units(loss).astype(float) * (plan.lipschitz / _UNIT)
        return jnp.dot(gradient, x) + global_norm(gradient) * plan.radius

    return Measure(zeros, update, sample, loss_at)


@functools.cache
def _rounding(dim: int) -> float:
    """r: what the direction and the length of a float32 sum are off by, over the sum's length.

    Of a norm half of the roundings of its additions count, and seven more: of an entry, its square, the
    root, the product with βLR, the entry of the direction and its division, and one for good measure.
    """
    spare = 9.0 * 2.0**-24  # of the head-room of a clip, which pays for sixteen
    return 1.0 - head_room(np.zeros(dim, np.float32)) - spare
