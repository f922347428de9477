"""Steps by a model of one record's loss: linear, truncated from below, or the loss itself (APROX).

What it computes: the gradient mapping g = (w - w⁺)/α of w⁺ = argmin over Θ of model(v) + ‖v - w‖²/(2α), with
model(v) one of

- ``"linear"``: ℓ(w) + ⟨∇ℓ(w), v - w⟩, a projected gradient step;
- ``"truncated"``: the same, but no lower than the infimum of the loss, which is known. Then w⁺ =
  Π(w - λα∇ℓ(w)) with the multiplier λ = 1 if the linear model is above the infimum there, else the λ in
  [0, 1] at which it meets it; without a constraint λα = min{α, (ℓ(w) - inf ℓ)/‖∇ℓ(w)‖²};
- ``"proximal"``: ℓ(v), by projected gradient steps from w.

Source: E (20), conditions C.i to C.iii; Asi and Duchi 2019. The multiplier: the model is the maximum over λ
in [0, 1] of λ·(linear model) + (1 - λ)·inf ℓ, and minimum and maximum change places.

Formal guarantee: ‖g‖ ≤ L if the loss is convex and L-Lipschitz: projections bring no points farther apart,
and for the proximal point strong convexity gives ‖w - w⁺‖²/α ≤ ℓ(w) - ℓ(w⁺) ≤ L‖w - w⁺‖, but for the steps to
it: J of them leave at most the share (αH/(1 + αH))^J of the way, H the smoothness. Nothing here is enforced
or private: a solver has to clip g.

Cost: one gradient; ``inner_steps`` of them for the proximal point, 40 projections for the truncated model.

Example:
    >>> import jax.numpy as jnp
    >>> from dpsco_jax.geometry import domains
    >>> from dpsco_jax.solvers.element_level import aprox
    >>> distance = lambda w: jnp.sum(jnp.abs(w))
    >>> domain, start = domains.whole_space(), jnp.array([3.0])
    >>> [float(aprox.mapping(distance, start, 6.0, domain, model)[0]) for model in ("linear", "truncated")]
    [1.0, 0.5]
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks
from dpsco_jax.geometry.domains import Domain

__all__ = ["MODELS", "mapping"]

MODELS = ("linear", "truncated", "proximal")
_HALVINGS = 40


def mapping(
    loss: Callable[[Any], Any],
    params: Any,
    step_size: Any,
    domain: Domain,
    model: str = "linear",
    *,
    infimum: Any = 0.0,
    smoothness: Any = None,
    inner_steps: int = 50,
) -> Any:
    """The gradient mapping at a point, in the structure of params.

    Args:
        loss: of one record, ``params -> scalar``, convex.
        params: w, in the domain.
        step_size: α > 0; may be traced.
        domain: Θ.
        model: ``"linear"``, ``"truncated"`` or ``"proximal"``.
        infimum: a number that the loss is nowhere below; for the truncated model.
        smoothness: H of the loss, needed for the proximal point.
        inner_steps: gradient steps for the proximal point, static.

    Raises:
        ValueError: an argument is out of its range, or the proximal point is asked for without a smoothness.
    """
    _checks.require_callable("loss", loss)
    _checks.require_tree("params", params)
    _checks.require_positive("step_size", step_size)
    _checks.require_instance("domain", domain, Domain)
    _checks.require_choice("model", model, MODELS)
    _checks.require_finite("infimum", infimum)
    _checks.require_count("inner_steps", inner_steps)
    if model == "proximal":
        _checks.require_positive("smoothness", smoothness)
        after = _proximal(loss, params, step_size, domain, smoothness, inner_steps)
    else:
        value, slope = jax.value_and_grad(loss)(params)

        def at(share: Any) -> Any:
            reach = share * step_size
            return domain.project(jax.tree.map(lambda w, g: w - reach * g, params, slope))

        share = 1.0 if model == "linear" else _share(at, params, value - infimum, slope)
        after = at(share)
    return jax.tree.map(lambda w, v: (w - v) / step_size, params, after)


def _share(at: Callable[[Any], Any], params: Any, height: Any, slope: Any) -> Any:
    """The multiplier: the largest λ in [0, 1] at which the linear model is not below the infimum."""

    def above(share: Any) -> Any:
        moved = jax.tree.map(jnp.subtract, at(share), params)
        return height + optax.tree.vdot(slope, moved) >= 0

    def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = ends
        middle = (low + high) / 2
        good = above(middle)
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    ends = jnp.zeros_like(height), jnp.ones_like(height)
    low, _ = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
    return jnp.where(above(1.0), 1.0, low)


def _proximal(
    loss: Callable[[Any], Any],
    params: Any,
    step_size: Any,
    domain: Domain,
    smoothness: Any,
    steps: int,
) -> Any:
    """Projected gradient steps of length 1/(H + 1/α) on a function of that smoothness."""
    length = step_size / (1 + step_size * smoothness)

    def step(_: Any, point: Any) -> Any:
        def moved(v: Any, g: Any, w: Any) -> Any:
            return v - length * (g + (v - w) / step_size)

        return domain.project(jax.tree.map(moved, point, jax.grad(loss)(point), params))

    return jax.lax.fori_loop(0, steps, step, params)
