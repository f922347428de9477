"""Smooth stand-ins for losses with a kink: Moreau envelopes of their links.

What it computes: for a link that is linear on both sides of one kink, ψ(r) = max(low·r, high·r) of the margin
less the kink's place, its envelope with parameter γ, min over z of ψ(z) + (r - z)²/(2γ): with g = r/γ within
[low, high], it is g·r - γ·g²/2, and g is its derivative. That of ``absolute`` is Huber's loss over its
threshold.

Source: Moreau 1965. The place and the slopes of a kink are those of ``LinearModel.kink``.

Formal guarantee: the envelope is convex, as Lipschitz as the loss, B²/γ-smooth for features of norm B, at
most the loss, and below it by at most γ·sup|φ'|²/2 (of a label of ½, whose hinge loss is the constant 1, it
is 0). Like all constants of losses these hold for every item.

Example:
    >>> from dpsco_jax import problems
    >>> envelope = problems.envelopes.moreau_envelope(problems.losses.hinge(2.0), smoothing=0.1)
    >>> envelope.lipschitz, envelope.smoothness
    (2.0, 40.0)
"""

from typing import Any

import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax._redact import Words
from dpsco_jax.problems import _links, _proofs, _remainders
from dpsco_jax.problems.labels import ANY_NUMBER
from dpsco_jax.problems.objective import Objective

__all__ = ["envelope_gap", "moreau_envelope"]


def moreau_envelope(objective: Objective, smoothing: float) -> Objective:
    """The objective whose loss is the Moreau envelope of the given one's.

    Args:
        objective: with a loss of ``problems.losses`` that has one kink: ``hinge``, ``absolute`` or
            ``quantile``. Its domain and ridge stay.
        smoothing: γ > 0, in units of the margin over the slope: the kink is rounded off within γ·|slope|.

    Raises:
        ValueError: the loss has no such kink, or claims more than is proven of it.
    """
    smoothing = _checks.require_real("smoothing", smoothing, 0.0)
    kink, bound, slope = _kink(objective)

    def clipped(m: Any, y: Any) -> tuple[Any, Any]:
        place, low, high = kink(y)
        return m - place, jnp.clip((m - place) / smoothing, low, high)

    def link(m: Any, y: Any) -> Any:
        r, g = clipped(m, y)
        return g * r - 0.5 * smoothing * g * g

    def remainder(m: Any, y: Any, change: Any) -> Any:
        place, low, high = kink(y)
        bent = _remainders.ramp(m - place, change, smoothing * low, smoothing * high)
        return bent / smoothing

    return _links.objective(
        link=link,
        derivative=lambda m, y: clipped(m, y)[1],
        slope=slope,
        curvature=1.0 / smoothing,
        feature_bound=bound,
        domain=objective.domain,
        ridge=objective.ridge,
        label_range=objective.label_range or ANY_NUMBER,
        remainder=remainder,
    )


def envelope_gap(objective: Objective, smoothing: float) -> float:
    """How far the loss is at most above its Moreau envelope: γ·sup|φ'|²/2.

    Args:
        objective: a loss with a kink, such as ``moreau_envelope`` takes.
        smoothing: γ > 0.

    Raises:
        ValueError: the loss is one that ``moreau_envelope`` refuses.

    Example:
        >>> from dpsco_jax import problems
        >>> problems.envelopes.envelope_gap(problems.losses.quantile(1.0, level=0.75), smoothing=0.5)
        0.140625
    """
    smoothing = _checks.require_real("smoothing", smoothing, 0.0)
    return 0.5 * smoothing * _kink(objective)[2] ** 2


def _kink(objective: Objective) -> tuple[Any, float, float]:
    """The kink of the loss, the bound on its features, and the largest slope of its link."""
    _checks.require_instance("objective", objective, Objective)
    proof = _proofs.require_proven(objective)
    model = proof.linear_model
    if model is None or model.kink is None:
        what = "with one kink: of problems.losses.hinge, absolute or quantile"
        _checks.require(False, "objective", Words(f"one with the loss {objective.loss!r}"), what)
    assert model is not None
    return model.kink, float(model.feature_bound), proof.lipschitz / model.feature_bound
