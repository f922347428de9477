"""L2P: any law that a stream of losses moves little at a time, played lazily and privately.

What it computes: Algorithm 44 for a ``Measure`` of the caller's, four functions: ``init() -> statistic``,
``update(statistic, loss)``, ``sample(key, statistic)`` and ``loss_at(loss, point)``. x_s is played in batch
s and y_s is its reference; x_s is x_{s-1} with the probability (1 - p)·exp(-Σ c_i - E), c_i =
β(loss_i(x_{s-1}) - loss_i(y_{s-1})) clipped into [-κ, κ] over the rounds i of batch s - 1, and else a fresh
draw; y_s is y_{s-1} with the probability 1 - p_y. Without reference c_i is β·loss_i(x_{s-1}), clipped into
[0, κ], and there is no E.

Source: thesis, Algorithm 44 and Theorem 13.3.2, with corrections C13-1, C13-5, C13-6 and C13-8: the clip is
ours, the envelope E = ``envelope_factor``·B·κ is by 2 as printed and by 1 the least, and coins look at
batch s - 1 and at y_{s-1}.

Formal guarantee: that of ``privacy.LazyReleases`` for REPLACE_ONE of the loss of one round, if a fresh draw
is ``draw_zcdp``-zCDP whatever the other losses are, which is the caller's promise. Where log ν_s/ν_{s-1} is
-β·Σ loss_i up to a constant and no c_i is clipped, x_s has the law ν_s exactly and is independent of y_1,
..., y_{s-1}; the clip costs the law at most the probability that it is active.

Cost: that of the measure; at most two draws a batch.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.mechanisms import selection
    >>> from dpsco_jax.solvers.online import lazy_to_private
    >>> measure = lazy_to_private.Measure(
    ...     init=lambda: jnp.zeros(3),
    ...     update=lambda total, loss: total + loss,
    ...     sample=lambda key, total: selection.exponential_mechanism(key, -total, 0.2, 1.0),
    ...     loss_at=lambda loss, x: loss[x],
    ... )
    >>> plan = lazy_to_private.plan(
    ...     100, learning_rate=0.1, clip=0.1, draw_zcdp=0.005, redraw_probability=0.2, delta=1e-6
    ... )
    >>> solution = lazy_to_private.solve(jax.random.key(0), plan, measure, lambda t: jnp.eye(3)[t % 3])
    >>> solution.released["plays"].shape, plan.certificate().epsilon < 10.0
    ((100,), True)
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import jax

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import (
    BelowOne,
    Count,
    Inside,
    Nonnegative,
    Positive,
    checked,
    one_of,
    real,
)
from dpsco_jax._pytrees import Number, pytree
from dpsco_jax.solvers.online import _lazy
from dpsco_jax.solvers.online._lazy import LazyPlan, Measure, State
from dpsco_jax.solvers.solution import Solution

__all__ = ["Measure", "Plan", "State", "init", "plan", "solve", "step"]

_Chance = Annotated[float, real(0.0, math.nextafter(1.0, 2.0))]


@pytree
class Plan(LazyPlan):
    """What ``solve`` and ``step`` will do: ``LazyPlan``, and what is promised of the measure.

    Attributes:
        clip: κ.
        draw_zcdp: ρ of a fresh draw, a promise.
        own_variation: total variation distance of a draw from an exact one, a promise; ``None`` if exact.
    """

    clip: Number
    draw_zcdp: Number
    own_variation: Number | None = None

    @property
    def variation(self) -> Any:
        """What was promised."""
        return self.own_variation

    @property
    def assumes(self) -> tuple[str, ...]:
        """What is promised."""
        zcdp = "a fresh draw is draw_zcdp-zCDP for the loss of one round"
        if self.own_variation is not None:
            zcdp += ", within own_variation of it in total variation whatever the losses are"
        return (zcdp, *super().assumes)


@checked
def plan(
    num_rounds: Count,
    *,
    learning_rate: Positive,
    clip: Positive,
    draw_zcdp: Nonnegative,
    redraw_probability: _Chance,
    delta: Inside,
    batch_size: Count = 1,
    reference: Annotated[str, one_of("lagged", "none")] = "lagged",
    reference_probability: Annotated[float, real(0.0, math.nextafter(1.0, 2.0), True)]
    | None = None,
    envelope_factor: Annotated[float, real(1.0, closed=True)] = 1.0,
    variation: BelowOne | None = None,
) -> Plan:
    """The plan of these numbers, all public; ``certificate`` says what they cost.

    Args:
        num_rounds: T.
        learning_rate: β.
        clip: κ; β times the largest difference of two losses of a round cuts off nothing.
        draw_zcdp: ρ: a fresh draw is ρ-zCDP for the loss of one round.
        redraw_probability: p in (0, 1].
        delta: δ of the certificate.
        batch_size: B ≤ T.
        reference: ``"lagged"``, as printed, or ``"none"``, for losses that are at least 0.
        reference_probability: p_y in [0, 1]; p, as printed, if left out. 0 costs nothing, where the law of
            x_s does not ask for more, as that of experts does not.
        envelope_factor: E over B·κ, at least 1.
        variation: of a sampler that is not exact, the total variation distance of a draw from an exact one,
            whatever the losses are: what ``solvers.sampling`` certifies. It is charged (1 + e^ε) times for
            each draw.

    Raises:
        ValueError: an argument is out of range.
    """
    _checks.require(batch_size <= num_rounds, "batch_size", batch_size, f"at most {num_rounds}")
    made = Plan(
        num_rounds=num_rounds,
        dim=1,
        batch_size=batch_size,
        reference=reference,
        learning_rate=learning_rate,
        redraw_probability=redraw_probability,
        reference_probability=(
            redraw_probability if reference_probability is None else reference_probability
        ),
        envelope_factor=envelope_factor,
        epsilon=math.inf,
        delta=delta,
        regret_bound=math.inf,
        clip=clip,
        draw_zcdp=draw_zcdp,
        own_variation=variation,
        title="lazy to private",
    )
    return made.replace(epsilon=made.certificate().epsilon)


def init(key: jax.Array, plan: Plan, measure: Measure) -> State:
    """The state of a run before its first round; ``state.play`` is what is played in it.

    Args:
        key: a typed key, used up. All of the state but ``play`` and ``ledger`` is secret.
        plan: of ``plan``. The whole run is charged to ``state.ledger`` at once.
        measure: whose laws are drawn from.
    """
    _checks.require_instance("plan", plan, Plan)
    _checks.require_instance("measure", measure, Measure)
    return _lazy.init(key, plan, measure)


def step(state: State, measure: Measure, loss: Any) -> tuple[State, Any]:
    """Sees the loss of a round, and says what is played in the next one.

    Args:
        state: of ``init`` or of the step before. After T rounds nothing is seen, and nothing moves.
        measure: that of ``init``.
        loss: as ``measure.update`` takes it.
    """
    _checks.require_instance("state", state, State)
    _checks.require_instance("measure", measure, Measure)
    return _lazy.step(state, measure, loss)


def solve(key: jax.Array, plan: Plan, measure: Measure, losses: Callable[[Any], Any]) -> Solution:
    """Plays a whole stream; ``released["plays"]`` are the points, one a batch.

    Args:
        key: a typed key, used up.
        plan: of ``plan``; its numbers may be traced and batched.
        measure: whose laws are drawn from.
        losses: ``losses(t)``, the loss of round t = 0, ..., T - 1.
    """
    _checks.require_instance("plan", plan, Plan)
    _checks.require_instance("measure", measure, Measure)
    return _lazy.solve(key, plan, measure, losses, keep=True)
