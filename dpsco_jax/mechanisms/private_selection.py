"""Selection of the best of many private candidates, at the price of three of them.

What it computes: a number N is drawn from the geometric law, P(N > k) = (1 - γ)^k. N times, a candidate
mechanism chosen uniformly among K releases its value, with fresh noise each time. The smallest value and its
index are returned.

Source: L Algorithm 5 (the loop); Liu and Talwar 2019, Theorem 3.2 (selection from private candidates).

Formal guarantee: if every candidate is pure ε₁-DP, index and value together are pure 3ε₁-DP under the same
relation, as long as N stays secret. For with p_j the density of candidate j and F the distribution function
of the value of a uniform draw, the density of the result at (j, v) is

    p_j(v)/K · Σ_N γ(1 - γ)^(N-1)·N·(1 - F(v))^(N-1) = p_j(v)/K · γ/(γ + (1 - γ)F(v))²;

a neighbour changes p_j by a factor e^ε₁ at most and γ + (1 - γ)F by no more. N is drawn without looking at
data, but N together with the value is not covered: the density at (j, v, N) is p_j(v)/K times the N-th term
of the sum, whose factor (1 - F)^(N-1) may change by e^(ε₁(N-1)). Where N is shown, N draws cost Nε₁, and with
Laplace noise no less. So nothing that tells N, such as how long a selection took, may be shown with its
result. Candidates that are only (ε, δ)-DP, Gaussian noise among them, are not covered; nor is a value that is
kept and used again for a second draw of the same candidate.

Cost: 1/γ releases on average; N is at most 44/γ (up to a probability of 2^-64).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import privacy
from dpsco_jax._checks import (
    require,
    require_callable,
    require_integer,
    require_key,
    require_multiplier,
    require_number,
)
from dpsco_jax._numerics import wide_number
from dpsco_jax._parts import require_same_everywhere
from dpsco_jax.mechanisms import _draws

LEAST_STOPPING_PROBABILITY = 45.0 / (2**31 - 1)
"""With it N fits an int32: no exponential variable of ours is longer than 45."""


class Selection(NamedTuple):
    """The result.

    Attributes:
        choice: index of the candidate selected.
        value: that it released.
        draws: N, for study. Secret: not covered by the guarantee if choice or value is shown.
    """

    choice: Int[Array, ""]
    value: Float[Array, ""]
    draws: Int[Array, ""]


def geometric_selection(
    key: jax.Array,
    candidate: Callable[[jax.Array, jax.Array], jax.Array],
    num_candidates: int,
    stopping_probability: ArrayLike,
) -> Selection:
    """Selects the candidate with the smallest value seen.

    Choice and value together cost ``geometric_selection_loss``; ``draws`` has to stay secret.

    Args:
        key: a typed key, used up.
        candidate: ``candidate(key, index) -> value``, a pure ε₁-DP release of a scalar; lower is better. A
            NaN is never selected.
        num_candidates: K ≥ 1.
        stopping_probability: γ in (0, 1]; may be traced.

    Raises:
        ValueError: γ is not in (0, 1], or so small that N may not fit an int32.
    """
    require_key(key)
    require_callable("candidate", candidate)
    num_candidates = require_integer("num_candidates", num_candidates, 1)
    require_number("stopping_probability", stopping_probability)
    if not isinstance(stopping_probability, jax.core.Tracer):
        given = np.asarray(stopping_probability)
        inside = np.all((given >= LEAST_STOPPING_PROBABILITY) & (given <= 1))
        working_range = f"in [{LEAST_STOPPING_PROBABILITY:.3g}, 1]"
        require(inside, "stopping_probability", stopping_probability, working_range)
    count_key, draw_key = jax.random.split(key)
    dtype = jnp.result_type(float)
    rate = -jnp.log1p(-jnp.asarray(stopping_probability, dtype))
    draws = 1 + jnp.floor(_draws.exponential(count_key, (), dtype) / rate).astype(jnp.int32)

    def draw(step: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        index_key, value_key = jax.random.split(jax.random.fold_in(draw_key, step))
        index = jax.random.randint(index_key, (), 0, num_candidates, jnp.int32)
        value = jnp.asarray(candidate(value_key, index), dtype)
        require_same_everywhere("values of candidate", value)
        better = value < best[1]
        return jnp.where(better, index, best[0]), jnp.where(better, value, best[1])

    start = (jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf, dtype))
    index, value = jax.lax.fori_loop(0, draws, draw, start)
    return Selection(index, value, draws)


def geometric_selection_loss(candidate_epsilon: ArrayLike) -> privacy.PrivacyLoss:
    """What choice and value of a selection cost: three times ``candidate_epsilon``, pure.

    Args:
        candidate_epsilon: ε₁ ≥ 0 of which every candidate is pure ε₁-DP; may be traced.
    """
    require_multiplier("candidate_epsilon", candidate_epsilon)
    return privacy.pure_dp(3 * wide_number(candidate_epsilon))
