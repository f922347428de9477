"""What slopes and curvatures of a link may be expected, from public numbers: where bounds are too far off.

No data are read, and none of these numbers bounds anything. A softmax of K classes bends by at most ½, and by
1/K at even odds (Böhning 1992); a link of one margin counts with its largest curvature.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.problems.objective import LinearModel, Objective

_MARGIN = 0.5


class Bends(NamedTuple):
    """Curvatures of a link.

    Attributes:
        largest: at any margin and label.
        flatness: the largest over that at margins of zero.
        mean: at most ``largest``; the mean over rows is taken to stay below it. An intercept of a rare class
            makes it smaller, and steps longer (``_rare_class``).
    """

    largest: Any
    flatness: Any
    mean: Any


def slope(model: LinearModel, objective: Objective) -> jax.Array:
    """The slope of the link that users may be expected to have: where the search for a radius starts."""
    largest = objective.lipschitz / model.feature_bound
    known = objective.label_range
    if model.outputs is not None or known is None or not np.isfinite([known.low, known.high]).all():
        return jnp.asarray(largest)
    ends = jnp.asarray([known.low, known.high], jnp.float32)
    return jnp.minimum(largest, 2.0 * jnp.max(jnp.abs(model.derivative(jnp.zeros(2), ends))))


def bends(model: LinearModel, largest: float) -> Bends:
    """What is known before anything is released: flatness is from 1 to the number of outputs, 1 for a vector.

    Args:
        model: of the objective.
        largest: curvature of the link.
    """
    if model.outputs is None:
        return Bends(largest, 1.0, largest)
    found = jax.jacfwd(model.derivative)(jnp.zeros(model.outputs), jnp.zeros(()))
    flatness = jnp.clip(largest / jnp.linalg.norm(found, 2), 1.0, model.outputs)
    return Bends(largest, flatness, largest)


def margin_scale(model: LinearModel, objective: Objective) -> float:
    """Half of the largest margin that a label asks for, in the units of labels; 0.5 where none asks for one.

    A label asks for the margin at which its loss is flat: with the squared loss for itself. Classes ask for
    infinite ones, and of labels whose range the objective does not say nothing is known.
    """
    known = objective.label_range
    curvature = (objective.smoothness or 0.0) / model.feature_bound**2
    if model.outputs is not None or known is None or curvature == 0.0:
        return _MARGIN
    ends = np.asarray([known.low, known.high], np.float32)
    if not np.isfinite(ends).all():
        return _MARGIN
    steep = np.asarray(model.derivative(jnp.zeros(2), jnp.asarray(ends)))
    asked = -steep / np.float32(curvature)
    left = np.asarray(model.derivative(jnp.asarray(asked), jnp.asarray(ends)))
    largest = float(np.max(np.abs(asked)))
    flat = bool(np.all(np.abs(left) <= 1e-3 * np.max(np.abs(steep))))
    return _MARGIN * largest if flat and largest > 0.0 else _MARGIN
