"""What parallel ball acceleration is compared with: subgradient descent, and accelerated smoothing.

What it computes: minimizes a convex L-Lipschitz f over the ball of radius R around the start from rounds of
stochastic gradients, like ``parallel_sco``, by

- ``"sgd"``: projected subgradient steps and the mean of all iterates; one query a round;
- ``"ac_sa"``: accelerated steps on f convolved with N(0, ρ²I), each from one round of queries around the
  point at which its gradient is wanted.

Source: Nesterov 2018 (SGD); Duchi, Bartlett and Wainwright 2012, Randomized smoothing for stochastic
optimization ("DBW12", rows 1 and 2 of the thesis's Table 2.1); Ghadimi and Lan 2012.

Formal guarantee: E f(x) ≤ min f + ε. The mean of T + 1 iterates of SGD with step R/(L√(T+1)), the start
included, has excess at most LR/√(T+1). The convolution costs at most ρL·E‖N(0, I)‖ = ε/2 and is S-smooth
with S = √(2/π)·L/ρ; AC-SA with step parameter 2S adds 4SR²/(T(T+1)) and V(2T+1)/(12S) with V ≤ L²/B from
batches of B, each set to ε/4. Not private.

Cost: SGD κ² rounds of one query, κ = LR/ε. AC-SA O(d^(1/4)·κ) rounds and O(κ²) queries.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import parallel_baselines
    >>> def gradient(keys, points):
    ...     return jnp.sign(points - 0.5) / 2**0.5
    >>> plan = parallel_baselines.plan(lipschitz=1.0, distance=1.0, dim=2, excess=0.3)
    >>> result = parallel_baselines.solve(jax.random.key(0), plan, gradient, jnp.zeros(2))
    >>> bool(abs(result.params - 0.5).sum() / 2**0.5 < 0.3)
    True
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from dpsco_jax import transforms
from dpsco_jax._argument_kinds import Count, Positive, checked, one_of
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import smoothing
from dpsco_jax.geometry.domains import ball
from dpsco_jax.oracles.resque import BatchGradient
from dpsco_jax.solvers import _arguments, plans
from dpsco_jax.solvers.ball import ball_acceleration
from dpsco_jax.solvers.ball.parallel_sco import QueryCost

METHODS = ("sgd", "ac_sa")


@pytree
class Plan:
    """What ``solve`` will do.

    Attributes:
        method: ``"sgd"`` or ``"ac_sa"``.
        dim: d.
        num_rounds: T.
        batch_size: B, queries of a round.
        distance: R.
        step_size: of SGD; one over the step parameter of AC-SA.
        smoothing_radius: ρ; 0 for SGD.
    """

    method: str = static(choices=METHODS)
    dim: int = static()
    num_rounds: int = static()
    batch_size: int = static()
    distance: Number
    step_size: Number
    smoothing_radius: Number

    def cost(self, rounds: int) -> QueryCost:
        """The exact cost of that many rounds."""
        queries = rounds * self.batch_size
        return QueryCost(rounds, queries, rounds, queries * self.dim)

    def __str__(self) -> str:
        return plans.describe(f"parallel baseline {self.method}", self)


class Result(NamedTuple):
    """The end of a run.

    Attributes:
        params: ``[dim]``.
        rounds: how many were made.
    """

    params: Float[Array, "dim"]
    rounds: Int[Array, ""]


@checked
def plan(
    *,
    lipschitz: Positive,
    distance: Positive,
    dim: Count,
    excess: Positive,
    method: Annotated[str, one_of(*METHODS)] = "ac_sa",
) -> Plan:
    """Sizes for which E f(x) ≤ min f + ε is proved. Host only.

    Arguments are those of ``parallel_sco.plan``, and the ``method``, ``"sgd"`` or ``"ac_sa"``.

    Raises:
        ValueError: an argument is out of range.
    """
    ball_acceleration.require_target(lipschitz, distance, excess)
    if method == "sgd":
        rounds = max(1, math.ceil((lipschitz * distance / excess) ** 2) - 1)
        step = distance / (lipschitz * math.sqrt(rounds + 1))
        return Plan(
            method=method,
            dim=dim,
            num_rounds=rounds,
            batch_size=1,
            distance=distance,
            step_size=step,
            smoothing_radius=0.0,
        )
    radius = excess / (2 * smoothing.gaussian_bias(lipschitz, 1.0, dim))
    smoothness = smoothing.gaussian_smoothness(lipschitz, radius)
    least = 16 * smoothness * distance**2 / excess  # of T(T + 1)
    rounds = math.ceil(math.sqrt(least + 0.25) - 0.5)
    enough = math.ceil(lipschitz**2 * (2 * rounds + 1) / (3 * smoothness * excess))
    step = 1 / (2 * smoothness)
    return Plan(
        method=method,
        dim=dim,
        num_rounds=rounds,
        batch_size=enough,
        distance=distance,
        step_size=step,
        smoothing_radius=radius,
    )


def solve(
    key: Key[Array, ""],
    plan: Plan,
    gradient: BatchGradient,
    start: Float[Array | np.ndarray, "dim"],
    *,
    stop: Callable[[Any], Any] | None = None,
) -> Result:
    """Runs the plan. Pure JAX: jit, and map over key, the plan's numbers and start.

    Arguments are those of ``parallel_sco.solve``, with ``stop(params)`` of the point to report.

    Raises:
        ValueError: if an argument is not what it must be, or the start has another dimension than planned.
    """
    _arguments.require_asked(Plan, key, plan, gradient, start, stop)
    start = jnp.asarray(start, jnp.result_type(float))
    domain = ball(plan.distance, start)
    if plan.method == "sgd":
        optimizer = optax.chain(
            optax.scale(-plan.step_size), transforms.project(domain), transforms.average()
        )
        report = transforms.average_eval_params
    else:
        optimizer = transforms.ac_sa(1 / plan.step_size, 0.0, domain)
        report = transforms.ac_sa_eval_params

    def active(carry: tuple[Any, Any, Any]) -> Any:
        params, state, rounds = carry
        on = rounds < plan.num_rounds
        return on if stop is None else on & ~stop(report(state, params))

    def advance(carry: tuple[Any, Any, Any]) -> Any:
        params, state, rounds = carry
        shift_key, query_key = jax.random.split(jax.random.fold_in(key, rounds))
        noise = jax.random.normal(shift_key, (plan.batch_size, plan.dim))
        points = params + plan.smoothing_radius * noise
        answers = gradient(jax.random.split(query_key, plan.batch_size), points)
        updates, state = optimizer.update(jnp.mean(answers, axis=0), state, params)
        return optax.apply_updates(params, updates), state, rounds + 1

    state = optimizer.init(start)
    if plan.method == "sgd":  # the start is the first of the averaged iterates
        state = (*state[:-1], state[-1]._replace(steps=jnp.ones((), jnp.int32)))
    carry = (start, state, jnp.zeros((), jnp.int32))
    params, state, rounds = jax.lax.while_loop(active, advance, carry)
    return Result(report(state, params), rounds)
