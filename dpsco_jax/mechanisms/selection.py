"""Private selection: the index of a good score out of finitely many.

What it computes: the argmax of scores with noise on each. Gumbel noise gives the exponential
mechanism, P(i) ∝ exp(ε s_i / 2Δ); exponential noise gives permute-and-flip, which is never worse;
Laplace noise gives the classical report-noisy-max.

Source: McSherry and Talwar 2007 (exponential mechanism); Dwork and Roth 2014, section 3.3 (Laplace);
McKenna and Sheldon 2020 and Ding et al. 2021 (permute-and-flip, its noise form); Durfee and Rogers
2019 and Dong, Durfee and Rogers 2020 (bounded range).

Formal guarantee: let neighbouring data sets move every score by at most ``sensitivity``. With noise of scale
2Δ/ε each mechanism is ε-DP, and the exponential mechanism is moreover of ε-bounded range, which composes
better. If scores are monotone (one neighbour's scores are all at least the other's, as for counts under
addition or removal), the scale Δ/ε is enough for the same guarantee. For Gumbel noise: log P(i)/P'(i) =
(ε/2Δ)(s_i - s_i') - log Z/Z' varies over i by at most (ε/2Δ)·2Δ = ε, and with monotone scores s_i - s_i'
ranges over an interval of length Δ, so twice the rate is allowed. A score that is not finite is never
selected (if another is finite); which scores are so must not depend on the data.

Cost: one draw per candidate.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Real

from dpsco_jax._checks import require_flag, require_key, require_number, require_positive
from dpsco_jax._parts import require_same_everywhere
from dpsco_jax.mechanisms import _draws


def exponential_mechanism(
    key: jax.Array,
    scores: Real[Array | np.ndarray, " candidates"],
    epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    monotone: bool = False,
) -> Int[Array, ""]:
    """Draws candidate i with probability proportional to exp(ε s_i / 2Δ).

    Costs ``privacy.bounded_range(epsilon)``.

    Args:
        key: a typed key, used up.
        scores: higher is better.
        epsilon: the parameter ε; may be traced, as may ``sensitivity``.
        sensitivity: Δ, how far any single score can move between neighbours.
        monotone: whether neighbours move all scores in the same direction; then exp(ε s_i / Δ).

    Returns:
        The index drawn, int32.

    Raises:
        ValueError: there is no candidate.
    """
    return _noisy_argmax(key, scores, epsilon, sensitivity, monotone, _draws.gumbel)


def permute_and_flip(
    key: jax.Array,
    scores: Real[Array | np.ndarray, " candidates"],
    epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    monotone: bool = False,
) -> Int[Array, ""]:
    """Report-noisy-max with exponential noise of mean 2Δ/ε.

    Costs ``privacy.pure_dp(epsilon)``. For one selection its expected score is at least that of the
    exponential mechanism at the same ε. It takes and returns what ``exponential_mechanism`` does.
    """
    return _noisy_argmax(key, scores, epsilon, sensitivity, monotone, _draws.exponential)


def report_noisy_max(
    key: jax.Array,
    scores: Real[Array | np.ndarray, " candidates"],
    epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    monotone: bool = False,
) -> Int[Array, ""]:
    """Report-noisy-max with Laplace noise of scale 2Δ/ε.

    Costs ``privacy.pure_dp(epsilon)``. It takes and returns what ``exponential_mechanism`` does.
    """
    return _noisy_argmax(key, scores, epsilon, sensitivity, monotone, _draws.laplace)


def _noisy_argmax(
    key: jax.Array,
    scores: Real[Array | np.ndarray, " candidates"],
    epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    monotone: bool,
    draw: Callable[..., jax.Array],
) -> Int[Array, ""]:
    require_key(key)
    require_positive("epsilon", epsilon)
    require_positive("sensitivity", sensitivity)
    require_flag("monotone", monotone)
    require_number("scores", scores, "an array of real numbers")
    require_same_everywhere("scores", scores)
    require_positive("number of candidates in scores", scores.shape[0])
    dtype = jnp.result_type(float)
    scale = (1 if monotone else 2) * jnp.asarray(sensitivity, dtype) / epsilon
    scores = jnp.asarray(scores, dtype)
    # In units of the noise, so that a small ε does not round the scores away.
    noisy = scores / scale + draw(key, scores.shape, dtype)
    return jnp.argmax(jnp.where(jnp.isfinite(scores), noisy, -jnp.inf)).astype(jnp.int32)
