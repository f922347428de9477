"""Rejection at the target itself: a draw from exp(-k·(F + (μ/2)‖x - x₀‖²)) without a chain.

What it computes: from x₀ some gradient steps lead to an anchor w near the minimizer of F + (μ/2)‖x - x₀‖².
The tangent of F at w in place of F makes a Gaussian of the target; what it proposes is accepted with
probability exp(-k·D(x)), D(x) = F(x) - F(w) - ⟨∇F(w), x - w⟩. This is exact for convex F and any w.

Source: T, Proposition 4.4.8 for a regularizer; the bound is derived in docs/theory/exact_draws.md.

Formal guarantee: let F be convex and L-Lipschitz with an H-Lipschitz gradient, on every data set. After the
planned gradients a trial succeeds with probability at least

    p = exp(-(H/(2μ))·(e + θ²)),    θ = ½,

e = 1 if F is a mean of losses of linear models, and e = d otherwise; none of N does with probability (1 -
p)^N at most, which is in τ. Where H/μ is large a chain needs less; without smoothness no bound holds for
every data set. What leaves lies on a public grid around x₀, so that digits that would tell of the anchor are
gone. Roundings of D are for the caller to count: an error of e in the acceptance, in the mean, costs e/p; so
are those of x₀, whose digits must go below 1/√(kμ). Trial counts depend on the data.

Cost: J gradients and 1/p remainders, on average, or fewer.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.sampling import target_rejection
    >>> numbers = target_rejection.planned(1e-9, 2, 20.0, 0.5, lipschitz=1.0, smoothness=0.25)
    >>> with jax.enable_x64(True):  # F(x) = x₀²/8
    ...     drawn = target_rejection.draw(
    ...         *(jax.random.key(0), numbers, jnp.zeros(2), 20.0, 0.5),
    ...         gradient=lambda x: x * jnp.array([0.25, 0.0]),
    ...         remainder=lambda w, move: 0.125 * move[0] ** 2,
    ...     )
    >>> drawn.params.shape, bool(drawn.accepted), numbers.variation <= 1e-9
    ((2,), True, True)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _checks, _keys, _released
from dpsco_jax._argument_kinds import Count, Flag, Inside, Positive, checked
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.solvers.sampling._precision import float64_vector, require_x64
from dpsco_jax.solvers.sampling._rows import on_grid, power_below
from dpsco_jax.solvers.sampling.attempt_bounds import attempts_variation
from dpsco_jax.solvers.sampling.restricted_gaussian import Drawn, until_one_counts

__all__ = ["Numbers", "draw", "planned"]

_CLOSE = 0.5  # θ: of an anchor, from the mean of the proposal, over the deviation
_PLACES = 32.0  # of the public grid, in a deviation
_RAREST = 1e-6
# How many quarters of a deviation gradients come from at most: beyond, float64 has no such digits.
_FAR = 2.0**46
_DOWN = 1.0 - 2.0**-20


class Numbers(NamedTuple):
    """What a draw needs.

    Attributes:
        num_gradients: J.
        step: of the gradient steps, 2/(2μ + H).
        acceptance: p, at least.
        num_trials: N.
        variation: (1 - p)^N, a part of τ.
    """

    num_gradients: int
    step: float
    acceptance: float
    num_trials: int
    variation: float


@checked
def planned(
    variation: Inside,
    dim: Count,
    inverse_temperature: Positive,
    convexity: Positive,
    lipschitz: Positive,
    smoothness: Positive | None,
    linear_model: Flag = False,
) -> Numbers:
    """Gradients and trials with which no draw is made with at most the given probability.

    Args:
        variation: that probability, in (0, 1).
        dim: d, at least 1.
        inverse_temperature: k, above 0.
        convexity: μ, above 0.
        lipschitz: L of F, above 0, proven for every data set.
        smoothness: H of F, above 0, proven for every data set too; ``None`` is refused: there is no bound
            without one.
        linear_model: whether F is a mean of losses ℓ(⟨x, a⟩) with ℓ″·‖a‖² ≤ H.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: trials succeed too rarely; ``needed`` has a ``convexity`` that would do.
    """
    failing, k, mu, slope = variation, inverse_temperature, convexity, lipschitz
    what = "a number: else no bound on trials holds"
    _checks.require(smoothness is not None, "smoothness", None, what)
    bend = float(smoothness or math.nan)
    exponent = 0.5 * (bend / mu) * ((1.0 if linear_model else dim) + _CLOSE**2)
    acceptance = math.exp(-exponent) * _DOWN
    if acceptance < _RAREST:
        enough = mu * exponent / -math.log(_RAREST / _DOWN**2)
        raise Infeasible(
            f"convexity must be at least {enough:.6g} for trials to succeed with probability {_RAREST}, "
            f"got {mu}",
            {"convexity": enough},
        )
    # ‖q - w‖ = ‖∇V(w)‖/μ ≤ (1 + H/μ)·ρ^J·L/μ; half of θ is left for the grid of w.
    far = (1.0 + bend / mu) * slope * math.sqrt(k / mu) / (0.5 * _CLOSE)
    what = f"such that L·√(k/μ)·(1 + H/μ) ≤ {_FAR / 4:.3g}: float64"
    _checks.require(far <= _FAR, "inverse_temperature", k, what)
    steps = max(0, math.ceil(math.log(max(far, 1.0)) / math.log1p(2.0 * mu / bend))) + 1
    trials = max(1, math.ceil(math.log(failing) / math.log1p(-acceptance)))
    while attempts_variation(acceptance, trials) > failing:
        trials += 1
    return Numbers(
        steps, 2.0 / (2.0 * mu + bend), acceptance, trials, attempts_variation(acceptance, trials)
    )


def draw(
    key: jax.Array,
    numbers: Numbers,
    center: Float[Array, " dim"],
    inverse_temperature: ArrayLike,
    convexity: ArrayLike,
    *,
    gradient: Callable[[Any], Any],
    remainder: Callable[[Any, Any], Any],
) -> Drawn:
    """Trials until one succeeds, at most N. Pure JAX.

    Args:
        key: a typed key. Trial i uses ``fold_in(key, i)``.
        numbers: of ``planned``.
        center: x₀, float64, public.
        inverse_temperature: k; may be traced.
        convexity: μ; may be traced.
        gradient: ``gradient(x) -> [dim]``, ∇F, float64. One that is wrong makes the law wrong.
        remainder: ``remainder(w, move)``, D at w + move, best without cancellation.

    Raises:
        ValueError: an argument is of another kind, or jax_enable_x64 is off.
    """
    require_x64("target_rejection")
    _checks.require_key(key)
    key = _keys.alone(key)
    _checks.require_instance("numbers", numbers, Numbers)
    center = float64_vector("center", center)
    _checks.require_positive("inverse_temperature", inverse_temperature)
    _checks.require_positive("convexity", convexity)
    _checks.require_callable("gradient", gradient)
    _checks.require_callable("remainder", remainder)
    mu = jnp.asarray(convexity, jnp.float64)
    deviation = 1.0 / jnp.sqrt(jnp.asarray(inverse_temperature, jnp.float64) * mu)
    unit = power_below(deviation / _PLACES)
    # The grid moves ∇V by (μ + H)·√d/2 of its units, or fewer: what θ has left.
    bend = 2.0 / numbers.step - 2.0 * mu
    fine = jnp.minimum(
        unit, power_below(deviation * mu * _CLOSE / ((mu + bend) * len(center) ** 0.5))
    )

    def nearer(_: Any, offset: Array) -> Array:
        return offset - numbers.step * (gradient(center + offset) + mu * offset)

    found = jax.lax.fori_loop(0, numbers.num_gradients, nearer, jnp.zeros_like(center))
    anchor = jax.lax.optimization_barrier(on_grid(found, fine))
    at = center + anchor
    move = -anchor - gradient(at) / mu

    def trial(index: Array) -> tuple[Array, Array]:
        normal_key, coin_key = jax.random.split(jax.random.fold_in(key, index))
        offset = move + deviation * jax.random.normal(normal_key, center.shape, jnp.float64)
        lost = inverse_temperature * remainder(at, offset)
        return offset, jax.random.uniform(coin_key, (), jnp.float64) < jnp.exp(-lost)

    offset, accepted, trials = until_one_counts(trial, move, numbers.num_trials)
    # The last digits of the sum would be those of the offset, and tell of the anchor.
    base = on_grid(anchor, unit)
    drawn = center + (base + on_grid((anchor - base) + offset, unit))
    return Drawn(_released.without_derivatives(drawn), accepted, trials)
