"""Switches and fake switches by normalized weights: the scheme before L2P, without a claim of privacy.

What it computes: x_{t+1} is x_t with the probability (1 - p)·e^(-η)·ν_{t+1}(x_t)/ν_t(x_t), ν the normalized
exponential weights, and otherwise a fresh draw from ν_{t+1}. Each play has the law of multiplicative weights.

Source: Asi, Feldman, Koren and Talwar 2023; thesis, section 13.3 (the baseline before Algorithm 44).

Formal guarantee: of privacy none is claimed, and the loss is infinite: the ratio of normalized weights
depends on all losses so far, so that every later coin tells something of a replaced round. Expected regret:
log(d)/η + ηT/8.

Cost: T·d operations and at most T draws of d variables; memory O(d).

Example:
    >>> import jax
    >>> from dpsco_jax.problems import streams
    >>> from dpsco_jax.solvers.online import fake_switch
    >>> plan = fake_switch.plan(100, 5, redraw_probability=0.01)
    >>> losses = streams.bernoulli(jax.random.key(0), jax.numpy.full(5, 0.5))
    >>> solution = fake_switch.solve(jax.random.key(1), plan, losses)
    >>> plan.certificate().epsilon, solution.released["plays"].shape
    (inf, (100,))
"""

import math
from collections.abc import Callable
from typing import Annotated

import jax
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Positive, checked, integer, real
from dpsco_jax._pytrees import pytree
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.solvers.online import _lazy, experts
from dpsco_jax.solvers.online._lazy import At
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "plan", "solve"]


@pytree
class Plan(experts.Plan):
    """What ``solve`` will do; attributes are those of ``LazyPlan``."""

    def loss(self) -> privacy.PrivacyLoss:
        """Infinite: nothing is claimed."""
        return privacy.unbounded()

    def certificate(self) -> privacy.Certificate:
        """Of an infinite ε: nothing is claimed."""
        by = accounted_by("nothing is claimed")
        return privacy.Certificate(math.inf, float(self.delta), self.relation, by)


@checked
def plan(
    num_rounds: Count,
    dim: Annotated[int, integer(2)],
    *,
    redraw_probability: Annotated[float, real(0.0, math.nextafter(1.0, 2.0), True)],
    learning_rate: Positive | None = None,
) -> Plan:
    """The plan for a number of rounds.

    Args:
        num_rounds: T.
        dim: d, experts.
        redraw_probability: p in [0, 1], of fake switches.
        learning_rate: η; √(8·log(d)/T) if left out, which is best.
    """
    rate = math.sqrt(8.0 * math.log(dim) / num_rounds) if learning_rate is None else learning_rate
    return Plan(
        num_rounds=num_rounds,
        dim=dim,
        batch_size=1,
        reference="none",
        learning_rate=rate,
        redraw_probability=redraw_probability,
        reference_probability=0.0,
        envelope_factor=1.0,
        epsilon=math.inf,
        delta=1e-6,
        regret_bound=experts.regret_bound(num_rounds, dim, 1, rate),
        title="fake switches, without a claim of privacy",
    )


def solve(
    key: jax.Array, plan: Plan, losses: Callable[[Int[Array, ""]], Float[ArrayLike, " dim"]]
) -> Solution:
    """Plays a whole stream; what is returned is as of ``experts.solve``.

    Args:
        key: a typed key, used up.
        plan: of ``plan``; its numbers may be traced and batched.
        losses: ``losses(t)``, those of round t = 0, ..., T - 1.
    """
    _checks.require_instance("plan", plan, Plan)
    _checks.require_callable("losses", losses)
    measure = experts.measure(plan)

    def log_total(sums: tuple[Array, Array]) -> Array:
        return jax.nn.logsumexp(-plan.learning_rate * (sums[0] + sums[1] / 2.0**24))

    def normalized(at: At, before: At) -> Array:
        # -log of e^(-η)·ν_{t+1}(x)/ν_t(x), the exponent so far being η·loss(x).
        return plan.learning_rate + log_total(at.statistic) - log_total(before.statistic)

    def checked_losses(t: Array) -> Array:
        return experts.entries("losses", plan.dim, losses(t))

    return _lazy.solve(key, plan, measure, checked_losses, keep=True, extra=normalized)
