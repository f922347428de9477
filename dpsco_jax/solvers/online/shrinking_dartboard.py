"""The shrinking dartboard: multiplicative weights that are drawn from rarely. Not private.

What it computes: x_{t+1} is x_t with the probability e^(-η·loss_t(x_t)), and otherwise a fresh draw of
exponential weights after round t: ``experts`` with p = 0 and B = 1. Where nothing is lost nothing moves.

Source: Geulen, Vöcking and Winkler 2010; thesis, section 13.3.1.

Formal guarantee: of privacy none: a play that is left tells that its loss was not 0, and the plan's loss is
infinite. Each play has the law of multiplicative weights, so that the expected regret is at most log(d)/η +
ηT/8; at most η·Σ E loss_t(x_t) plays differ from the one before, on average.

Cost: that of ``experts``.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import streams
    >>> from dpsco_jax.solvers.online import shrinking_dartboard
    >>> plan = shrinking_dartboard.plan(100, 5)
    >>> losses = streams.bernoulli(jax.random.key(0), jax.numpy.full(5, 0.5))
    >>> solution = shrinking_dartboard.solve(jax.random.key(1), plan, losses)
    >>> plan.certificate().epsilon, solution.released["plays"].shape
    (inf, (100,))
"""

import math
from typing import Annotated

from dpsco_jax._argument_kinds import Count, Positive, checked, integer
from dpsco_jax.solvers.online import experts
from dpsco_jax.solvers.online.experts import Plan, State, init, solve, step

__all__ = ["Plan", "State", "init", "plan", "solve", "step"]


@checked
def plan(
    num_rounds: Count, dim: Annotated[int, integer(2)], *, learning_rate: Positive | None = None
) -> Plan:
    """The plan for a number of rounds.

    Args:
        num_rounds: T.
        dim: d, experts.
        learning_rate: η; √(8·log(d)/T) if left out, which is best.
    """
    rate = math.sqrt(8.0 * math.log(dim) / num_rounds) if learning_rate is None else learning_rate
    bound = experts.regret_bound(num_rounds, dim, 1, rate)
    return Plan(
        num_rounds=num_rounds,
        dim=dim,
        batch_size=1,
        reference="none",
        learning_rate=rate,
        redraw_probability=0.0,
        reference_probability=0.0,
        envelope_factor=1.0,
        epsilon=math.inf,
        delta=1e-6,
        regret_bound=bound,
        title="shrinking dartboard, not private",
    )
