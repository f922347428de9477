"""AC-SA: accelerated stochastic approximation as an optax transformation.

What it computes: minimizes f + h over a convex set K from gradients of f that may be noisy, keeping
three sequences: the query point md (the parameters that the caller holds, where the next gradient
is to be evaluated), the prox point x, and the aggregate ag (the point to report).

Source: Ghadimi and Lan 2012, Optimal stochastic approximation algorithms for strongly convex stochastic
composite optimization I; Algorithm 3 of the thesis (chapter 1, Breaking the quadratic barrier), with α_t =
2/(t + 1) where that prints 2/(t + 2), and with halved squared norms in the prox step.

Formal guarantee: none of privacy; it is post-processing of the gradients that it is given. If f is L-smooth
and μ-strongly convex and gradients are unbiased with variance V, then for every point z of K

    μ > 0, smoothness = L:       E[F(ag_T) - F(z)] ≤ 2L‖x_0 - z‖²/(T(T+1)) + 2V/(μ(T+1)),
    μ = 0, smoothness = Γ ≥ 2L:  E[F(ag_T) - F(z)] ≤ 2Γ‖x_0 - z‖²/(T(T+1)) + V(2T+1)/(6Γ),

with F = f + h; with exact gradients Γ = L serves in the second line too. There the worst case over all
convex L-smooth functions is 6L‖x_0 - z‖²/(3T² + 7T + 14) (a Huber loss attains it; that none is worse was
found by semidefinite programming, for T up to 16), so that the line is sharp as T grows. With μ > 0 the
worst case is below the first line by a factor of at most 4.3 for T ≤ 16 and μ ≤ L/2.

Cost: one gradient, one prox and one projection per step; memory of two copies of the parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax._checks import (
    require,
    require_callable,
    require_each,
    require_given,
    require_instance,
    require_nonnegative,
    require_positive,
    require_whole,
)
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.geometry.prox import Term
from dpsco_jax.transforms import _states


class AcSaState(NamedTuple):
    """State of ``ac_sa``, sequences in at least float32.

    Attributes:
        prox_point: x_t, from which the prox steps go.
        aggregate: ag_t, the point to report.
        steps: t, the number of updates so far.
    """

    prox_point: Any
    aggregate: Any
    steps: jax.Array


def ac_sa_eval_params(state: Any, params: Any) -> Any:
    """The point to report, ag, in the dtypes of the parameters.

    Args:
        state: an optimizer state that holds the state of ``ac_sa``, at any depth of nesting: one for all
            parameters, or under ``optax.masked`` and ``optax.partition`` at most one for each.
        params: the parameters that the caller holds; where no ``ac_sa`` saw them they are returned.

    Raises:
        ValueError: the state holds no ``AcSaState``, or two of them move one parameter.
    """
    return _states.point_in(state, AcSaState, lambda found: found.aggregate, params)


def ac_sa(
    smoothness: jax.typing.ArrayLike,
    strong_convexity: jax.typing.ArrayLike = 0.0,
    domain: Domain | None = None,
    prox: Term | Callable[[Any, jax.Array], Any] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Accelerated stochastic approximation; the last transformation of a chain.

    The caller evaluates gradients at the parameters, applies the updates as usual, and reports
    ``ac_sa_eval_params(state, params)``. A starting point outside of the domain is projected.

    Args:
        smoothness: L if ``strong_convexity`` is positive. Without strong convexity it is the
            step-size parameter Γ of the guarantee above, ``balanced_smoothness(...)`` for noisy
            gradients. May be traced.
        strong_convexity: μ ≥ 0, of f and not of h. May be traced.
        domain: the set K to stay in; the whole space if None.
        prox: the composite term h: a term of ``geometry.prox``, or any function ``prox(point,
            step)`` that is the minimizer of ``step * h(w) + ‖w - point‖²/2`` over w; no term if
            None. With a domain too the result is projected. For a term of ``geometry.prox`` it is
            checked that this solves the joint step; for a function of your own it must (if it does
            not, let it be the joint prox, and give no domain).

    Raises:
        ValueError: ``strong_convexity`` is larger than ``smoothness``, or the term has no closed form over
            the domain.
    """
    require_positive("smoothness", smoothness)
    require_nonnegative("strong_convexity", strong_convexity)
    if domain is not None:
        require_instance("domain", domain, Domain)
    require_given(require_callable, prox=prox)
    if not isinstance(smoothness, jax.core.Tracer) and not isinstance(
        strong_convexity, jax.core.Tracer
    ):
        at_most = np.asarray(strong_convexity) <= np.asarray(smoothness)
        require(at_most, "strong_convexity", strong_convexity, f"at most smoothness = {smoothness}")
    if isinstance(prox, Term) and domain is not None and not prox.splits(domain):
        raise ValueError(
            "prox must be a term whose proximal point, projected, is the joint one over the domain; "
            "an l1 term is so over a box or a ball around the origin only"
        )

    def init(params: Any) -> AcSaState:
        start = _states.wide_copy(params)
        if domain is not None:
            start = domain.project(start)
        # Two copies: the buffers of a state may be donated, and then none may be shared.
        return AcSaState(start, _states.wide_copy(start), jnp.zeros([], jnp.int32))

    def curvature_ratio(t: jax.Array) -> jax.Array:
        """μ/γ_t for γ_t = 4L/(t(t+1)): all weights depend on μ and γ_t through it alone."""
        return jnp.asarray(strong_convexity * t * (t + 1) / (4 * smoothness))

    def query_point(state: AcSaState, t: jax.Array) -> Any:
        alpha = 2 / (t + 1)
        m = curvature_ratio(t)
        on_aggregate = (1 - alpha) * (m + 1) / (1 + (1 - alpha**2) * m)
        return _mix(on_aggregate, state.aggregate, state.prox_point)

    def update(
        updates: Any, state: AcSaState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AcSaState]:
        del extra_args
        if params is None:
            raise ValueError("params must be given to the update of ac_sa, got None")
        t = jnp.asarray(state.steps, jnp.result_type(float)) + 1
        alpha = 2 / (t + 1)
        m = curvature_ratio(t)
        # From the state, not from the caller's parameters, which may be of a narrower dtype.
        query = query_point(state, t)
        centre = _mix(alpha * m / (1 + m), query, state.prox_point)
        step = t / (2 * smoothness * (1 + m))  # α/(μ + γ)
        point = jax.tree.map(lambda x, g: x - step * g, centre, updates)
        if prox is not None:
            point = prox(point, step)
        if domain is not None:
            point = domain.project(point)
        point = jax.tree.map(lambda p, x: p.astype(x.dtype), point, state.prox_point)
        aggregate = _mix(alpha, point, state.aggregate)
        new_state = AcSaState(point, aggregate, optax.safe_increment(state.steps))
        next_query = query_point(new_state, t + 1)
        moves = jax.tree.map(lambda q, p: (q - p).astype(jnp.result_type(p)), next_query, params)
        return moves, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def balanced_smoothness(
    smoothness: jax.typing.ArrayLike,
    gradient_variance: jax.typing.ArrayLike,
    num_steps: jax.typing.ArrayLike,
    distance: jax.typing.ArrayLike,
) -> jax.typing.ArrayLike:
    """The Γ that balances both terms of the guarantee without strong convexity.

    Γ = max(2L, sqrt(V T(T+1)(2T+1)/12)/R), which gives a gap of at most
    4LR²/(T(T+1)) + 2R sqrt(V(2T+1)/(3T(T+1))).

    Args:
        smoothness: L of f.
        gradient_variance: public bound V on E‖gradient - its mean‖².
        num_steps: T, the number of updates that will be made.
        distance: public bound R on the distance from the start to a minimizer.
    """
    require_each(require_nonnegative, smoothness=smoothness, gradient_variance=gradient_variance)
    require_positive("distance", distance)
    require_whole("num_steps", num_steps, 1)
    cube = num_steps * (num_steps + 1) * (2 * num_steps + 1)
    xp = np if not isinstance(cube * gradient_variance * smoothness, jax.Array) else jnp
    return xp.maximum(2 * smoothness, xp.sqrt(gradient_variance * cube / 12) / distance)


def _mix(weight: jax.Array, first: Any, second: Any) -> Any:
    """``weight * first + (1 - weight) * second``, leaf by leaf, in the dtypes of the second."""
    return jax.tree.map(lambda a, b: (weight * a + (1 - weight) * b).astype(b.dtype), first, second)
