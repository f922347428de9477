"""Room for a rare class: the quantile to which whitened SGD clips where few users have the steep gradients.

What it computes: the shares of the classes, from the intercept alone, which was released: at the minimizer the
slopes of all classes, each with its share, sum to zero. Where one class is rare its users' slopes are near the
largest that there is and those of all others small, so that a quantile below 1 - share gives a radius of the
others, and nearly all that is known of the rare class is clipped. Then the quantile is put in the midst of the
rare class: 1 - share/2. A class is rare if its slopes are more than twice the mean; it is given room only where
the noise that comes with its radius does not hide it.

Source: own.

Formal guarantee: post-processing of the released intercept, with public numbers. A quantile has no part in the
sensitivity of anything.

Cost: the derivative of the link at one point, for each class.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.objective import LinearModel, Objective

_STEEP = 2.0  # slopes of a rare class, over the mean


def quantile(
    planned: Any, least: Any, model: LinearModel, objective: Objective, intercept: jax.Array, items: int
) -> Any:  # fmt: skip
    """The planned quantile, or a larger one in which the rarest class that can be seen has its room.

    Args:
        planned: the quantile, in (0, 1).
        least: a class of the share p is given room if p·(1 - p) is above this.
        model: of the objective.
        objective: for its labels.
        intercept: the margin that all rows have in common, a number or one for each output.
        items: of a user.
    """
    if model.outputs is None and objective.label_range != TWO_CLASSES:
        return planned
    shares, slopes = _classes(model, intercept)
    # A user with one item of the class counts: for few items that is where slopes are steep.
    steeper = slopes[None, :] >= slopes[:, None]
    holders = 1.0 - (1.0 - jnp.clip(steeper @ shares, 0.0, 1.0)) ** items
    rare = slopes > _STEEP * (shares @ slopes)
    rare &= shares * (1.0 - shares) > least
    roomy = 1.0 - 0.5 * jnp.min(jnp.where(rare, holders, 1.0))
    return jnp.where(jnp.any(rare), jnp.maximum(planned, roomy), planned)


def _classes(model: LinearModel, intercept: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The share of each class, and the length of its slope, where only an intercept is known."""
    if model.outputs is None:
        steep = model.derivative(jnp.broadcast_to(intercept, (2,)), jnp.asarray([0.0, 1.0]))
        one = steep[0] / (steep[0] - steep[1])
        return jnp.stack([1.0 - one, one]), jnp.abs(steep)
    labels = jnp.arange(model.outputs, dtype=jnp.float32)
    steep = jax.vmap(lambda label: model.derivative(intercept, label))(labels)
    return 1.0 + jnp.diagonal(steep), jnp.linalg.norm(steep, axis=1)
