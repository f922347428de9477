"""Prediction with experts under differential privacy: multiplicative weights, drawn from as rarely as can be.

What it computes: in each of T rounds one of d experts is played, before losses in [0, 1] of all of them are
seen. x_s, played on all of batch s of B rounds, has the law ν_s ∝ exp(-η·Σ losses before the batch),
exactly. It is x_{s-1}, kept with the probability

- (1 - p)·exp(-η·L(x_{s-1})), L the losses of batch s - 1 (``reference="none"``); or
- (1 - p)·exp(-η·(L(x_{s-1}) - L(y_{s-1})) - E), y_s an independent sequence of draws, E =
  ``envelope_factor``·B·η (``reference="lagged"``: thesis, Algorithm 44 as it is printed, with p_y = p);

otherwise it is drawn anew. ``init`` and ``step`` play a stream as it comes; ``solve`` plays a whole one.

Source: thesis, Theorem 13.3.10, with corrections C13-1, C13-2, C13-3 and C13-5; without reference own, after
Geulen, Vöcking and Winkler 2010. The proofs are in docs/theory/online.md.

Formal guarantee: (ε, δ)-DP of all plays under REPLACE_ONE of the losses of one round, against losses that
may depend on earlier plays; T is public. Losses are clipped into [0, 1], what is NaN is 0, and they are
added up as integers, so that sums of neighbours differ by what one round adds, exactly. One draw has
log-ratios of range 2η and is η²/2-zCDP. The whole run is charged before it begins. **Not covered**: draws
are exact but for the rounding of scores, η times a sum of losses, which moves a log-ratio by 2^-22 of a score
that is ever drawn, some 10^-5. Beside an η below 10^-3 that counts: switch on ``jax_enable_x64``, which makes
it 10^-14. Expected regret, against losses that do not depend on plays: log(d)/η + ηTB/8.

Cost: T·d additions, memory O(d) and one play a batch, at most ⌈T/B⌉ draws of d variables. ``solve`` passes
over losses in blocks, and does something for the play only where a coin is lost (``_blocks``).

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import streams
    >>> from dpsco_jax.solvers.online import experts
    >>> plan = experts.plan(1000, 10, Budget(1.0, 1e-6))
    >>> losses = streams.bernoulli(jax.random.key(0), jax.numpy.linspace(0.2, 0.8, 10))
    >>> solution = jax.jit(experts.solve)(jax.random.key(1), plan, losses)
    >>> plan.certificate().epsilon <= 1.0, len(solution.released["plays"]) == plan.num_batches
    (True, True)
    >>> state = experts.init(jax.random.key(2), plan)
    >>> state, play = jax.jit(experts.step)(state, losses(0))
    >>> 0 <= int(play) < 10
    True
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, checked, integer, one_of, real
from dpsco_jax._pytrees import pytree
from dpsco_jax.mechanisms import selection
from dpsco_jax.solvers.online import _blocks, _calibration, _lazy
from dpsco_jax.solvers.online._lazy import LazyPlan, Measure, State
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "State", "init", "plan", "solve", "step"]

_UNIT = 2**24
_Chance = Annotated[float, real(0.0, math.nextafter(1.0, 2.0))]


@pytree
class Plan(LazyPlan):
    """What ``solve`` and ``step`` will do; attributes are those of ``LazyPlan``, with η for the rate."""

    @property
    def clip(self) -> Any:
        """η: losses are in [0, 1], so that nothing is cut off."""
        return self.learning_rate

    @property
    def draw_zcdp(self) -> Any:
        """η²/2, of log-ratios with range 2η."""
        return 0.5 * self.learning_rate * self.learning_rate


def regret_bound(num_rounds: int, dim: int, batch_size: int, learning_rate: Any) -> Any:
    """log(d)/η + ηTB/8: the regret of exponential weights on sums of B losses."""
    return math.log(dim) / learning_rate + learning_rate * num_rounds * batch_size / 8.0


@checked
def plan(
    num_rounds: Count,
    dim: Annotated[int, integer(2)],
    budget: privacy.Budget,
    *,
    reference: Annotated[str, one_of("none", "lagged")] = "none",
    batch_size: Count | None = None,
    redraw_probability: _Chance | None = None,
) -> Plan:
    """Finds B, p and η with the least bound on the regret for a budget. All of them are public.

    Args:
        num_rounds: T.
        dim: d, experts.
        budget: (ε, δ) of everything that is played, δ above 0.
        reference: whether coins compare the play with a second sequence of draws, as it is printed, or look
            at its losses alone, which costs less.
        batch_size: B ≤ T; a power of two if left out.
        redraw_probability: p in (0, 1]; the best one if left out.

    Raises:
        ValueError: an argument is out of range, or δ is 0, or at least 1/T without ``allow_large_delta``.

    Example:
        >>> from dpsco_jax import Budget
        >>> made = plan(10_000, 1000, Budget(1.0, 1e-6))
        >>> made.regret_bound < plan(10_000, 1000, Budget(1.0, 1e-6), reference="lagged").regret_bound
        True
    """
    _checks.require_instance("budget", budget, privacy.Budget)
    _checks.require(budget.delta > 0, "budget.delta", budget.delta, "above 0")
    budget.require_for(num_rounds)
    if batch_size is not None:
        _checks.require(batch_size <= num_rounds, "batch_size", batch_size, f"at most {num_rounds}")
    lagged = reference == "lagged"

    def releases(size: int, rates: Any, chances: Any, factor: float) -> privacy.LazyReleases:
        none = np.zeros(len(chances))
        made = _made(num_rounds, dim, size, reference, rates, chances, factor, budget, none)
        return made.releases

    found = _calibration.calibrate(
        budget,
        releases,
        lambda size, rates: regret_bound(num_rounds, dim, size, rates),
        lambda size: math.sqrt(8.0 * math.log(dim) / (num_rounds * size)),
        _calibration.powers_of_two(num_rounds) if batch_size is None else (batch_size,),
        redraw_probability,
        (1.0, 2.0) if lagged else (1.0,),
    )
    claimed = math.sqrt(num_rounds * math.log(dim)) + (
        num_rounds ** (1 / 3) * math.log(dim) / budget.epsilon ** (2 / 3)
    )
    numbers = found.rate, found.redraw_probability, found.envelope_factor
    made = _made(num_rounds, dim, found.batch_size, reference, *numbers, budget, found.bound)
    said = (("T Theorem 13.3.10 claims", f"the order of {claimed:.5g}, which is not proven"),)
    return made.replace(title="private experts").replace(remarks=Remarks(said))


def _made(
    num_rounds: int,
    dim: int,
    batch_size: int,
    reference: str,
    rate: Any,
    chance: Any,
    factor: float,
    budget: privacy.Budget,
    bound: Any,
) -> Plan:
    return Plan(
        num_rounds=num_rounds,
        dim=dim,
        batch_size=batch_size,
        reference=reference,
        learning_rate=rate,
        redraw_probability=chance,
        reference_probability=chance,
        envelope_factor=factor,
        epsilon=budget.epsilon,
        delta=budget.delta,
        regret_bound=bound,
    )


def init(key: jax.Array, plan: Plan) -> State:
    """The state of a run before its first round; ``state.play`` is what is played in it.

    Args:
        key: a typed key, used up. All of the state but ``play`` and ``ledger`` is secret.
        plan: of ``plan``. The whole run is charged to ``state.ledger`` at once.
    """
    _checks.require_instance("plan", plan, Plan)
    return _lazy.init(key, plan, measure(plan))


def step(state: State, loss: Float[ArrayLike, " dim"]) -> tuple[State, Int[Array, ""]]:
    """Sees the losses of a round, and says what is played in the next one.

    Args:
        state: of ``init`` or of the step before. After T rounds nothing is seen, and nothing moves.
        loss: of all experts; clipped into [0, 1], 0 for NaN.

    Returns:
        The new state, and its ``play``, the number of an expert.
    """
    _checks.require_instance("state", state, State)
    return _lazy.step(state, measure(state.plan), entries("loss", state.plan.dim, loss))


def solve(
    key: jax.Array, plan: Plan, losses: Callable[[Int[Array, ""]], Float[ArrayLike, " dim"]]
) -> Solution:
    """Plays a whole stream, of whose losses 2^17 at most, or those of one round, are in memory at a time.

    Args:
        key: a typed key, used up.
        plan: of ``plan``; its numbers may be traced and batched.
        losses: ``losses(t)``, those of round t = 0, ..., T - 1, as ``problems.streams`` has them, for many
            rounds at once by ``jax.vmap``. They must not depend on anything that the run draws.

    Returns:
        The last play; ``released["plays"]`` are all, one a batch. ``unprivate["trace"]["loss"]`` is what was
        lost in each batch, ``unprivate["statistic"]`` the sums of losses, as ``totals`` reads them.
    """
    _checks.require_instance("plan", plan, Plan)
    _checks.require_callable("losses", losses)
    _checks.require_key(key)

    def units(t: Any) -> Any:
        return _units(entries("losses", plan.dim, losses(t)))

    return _blocks.solve(key, plan, measure(plan), units)


def totals(statistic: Any) -> np.ndarray:
    """Σ of the losses of each expert, in float64 on the host: for study, not covered by any guarantee."""
    whole, part = (np.asarray(leaf, np.float64) for leaf in statistic)
    return whole + part / _UNIT


def measure(plan: Plan) -> Measure:
    """Exponential weights of sums of losses, which are integers in units of 2^-24, in two words."""

    def zeros() -> Any:
        return (jnp.zeros(plan.dim, jnp.int32), jnp.zeros(plan.dim, jnp.int32))

    def update(sums: Any, loss: Any) -> Any:
        whole, part = sums
        part = part + _units(loss)
        return whole + (part >> 24), part & (_UNIT - 1)

    def sample(key: jax.Array, sums: Any) -> Any:
        whole, part = sums
        # Relative to the least: large sums would be rounded.
        far = (whole - jnp.min(whole)).astype(float) + part.astype(float) / _UNIT
        return selection.exponential_mechanism(key, -far, 2.0 * plan.learning_rate, 1.0)

    return Measure(zeros, update, sample, lambda loss, x: _units(loss[x]) / float(_UNIT))


def _units(loss: Any) -> Any:
    """Clipped into [0, 1], 0 for NaN, to the nearest of 2^24 parts of one."""
    bounded = jnp.where(jnp.isnan(loss), 0.0, jnp.clip(loss, 0.0, 1.0))
    return jnp.round(bounded.astype(jnp.float32) * _UNIT).astype(jnp.int32)


def entries(name: str, dim: int, loss: Any) -> Any:
    _checks.require_number(name, loss, "an array of real numbers")
    _checks.require(np.shape(loss) == (dim,), name, f"shape {np.shape(loss)}", f"of shape ({dim},)")
    return jnp.asarray(loss)
