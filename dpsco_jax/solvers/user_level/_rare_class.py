"""What an intercept says of a rare class, and what whitened SGD does about it: clipping, lengths of steps.

What it computes: the shares of the classes, from the intercept alone, which was released: at the minimizer
the slopes of all classes, each with its share, sum to zero. Where one class is rare

- its users' slopes are near the largest that there is and those of all others small, so that a quantile
  below 1 - share gives a radius of the others, and nearly all that is known of the rare class is clipped.
  Then the quantile is put in the midst of the rare class: 1 - share/2. A class is rare if its slopes are more
  than twice the mean; it is given room only where the noise that comes with its radius does not hide it;
- the link is nearly flat for most rows, so that steps may be longer;
- noise can make an intercept of any size, which is bounded by what noise can hide.

Source: own.

Formal guarantee: post-processing of released slopes and intercepts, with public numbers. A quantile has no
part in the sensitivity of anything.

Cost: derivatives of the link at one point, for each class.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.solvers.user_level._typical_link import Bends

_ROOM = 4.0  # for columns by which the classes differ
_LONGER = 4.0  # steps than those that the largest curvature allows
_STEEP = 2.0  # slopes of a rare class, over the mean


def quantile(
    planned: Any, least: Any, objective: Objective, intercept: jax.Array, items: int
) -> Any:  # fmt: skip
    """The planned quantile, or a larger one in which the rarest class that can be seen has its room.

    Args:
        planned: the quantile, in (0, 1).
        least: a class of the share p is given room if p·(1 - p) is above this.
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
        items: of a user.
    """
    if not _of_classes(objective):
        return planned
    shares, slopes = _classes(_model(objective), _wide(intercept))
    # A user with one item of the class counts: for few items that is where slopes are steep.
    steeper = slopes[None, :] >= slopes[:, None]
    holders = 1.0 - (1.0 - jnp.clip(steeper @ shares, 0.0, 1.0)) ** items
    rare = slopes > _STEEP * (shares @ slopes)
    rare &= shares * (1.0 - shares) > least
    return jnp.maximum(planned, jnp.max(jnp.where(rare, 1.0 - 0.5 * holders, 0.0)))


def bends(
    known: Bends, objective: Objective, intercept: jax.Array, stddev: Any
) -> Bends:  # fmt: skip
    """What the intercept tells of the link's curvatures where a class is rare.

    In logistic and softmax regression the curvature at margins m is of the size of the rarer probability
    there. Its mean over rows is the share p of the class, and so it is over those of any direction in which
    the class is spread as the others are: the mean curvature is p, with room for those in which it is not.
    Even where that fails, steps of ``_LONGER`` times the certain length hold if second moments are at most
    1.5 times what they were found to be.

    Args:
        known: without that knowledge.
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
        stddev: of the noise of a share.
    """
    size = curvature(known.largest, objective, intercept) + 3.0 * stddev
    return known._replace(mean=jnp.clip(_ROOM * size, known.largest / _LONGER, known.largest))


def within_noise(
    objective: Objective, intercept: jax.Array, start: jax.Array, stddev: Any
) -> jax.Array:
    """The intercept of two classes, but no farther than a share that noise could have made, or the start.

    To take a share p for one that is far smaller costs p·log of the ratio, and for one that is larger no
    more than that share.

    Args:
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
        start: an intercept that was known beforehand.
        stddev: of the noise of a share.
    """
    if _model(objective).outputs is not None or not _of_classes(objective):
        return intercept
    share = jnp.clip(stddev, 1e-30, 0.5)
    furthest = jnp.maximum(jnp.log1p(-share) - jnp.log(share), jnp.abs(start))
    return jnp.clip(intercept, -furthest, furthest)


def curvature(largest: Any, objective: Objective, intercept: jax.Array) -> Any:
    """The curvature of the link where all margins are the intercept, if that is the same for all labels.

    Args:
        largest: of the link; what is returned where the curvature depends on labels.
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
    """
    if not _of_classes(objective):
        return largest
    model = _model(objective)
    intercept = _wide(intercept)
    shares, _ = _classes(model, intercept)
    if model.outputs is None:
        found = jax.vmap(jax.grad(model.derivative), (None, 0))(intercept, jnp.arange(2.0))
        expected = jnp.prod(shares)
    else:
        labels = jnp.arange(float(model.outputs))
        found = jax.vmap(jax.jacfwd(model.derivative), (None, 0))(intercept, labels)
        expected = jnp.diag(shares) - jnp.outer(shares, shares)
    size = jnp.max(jnp.sum(jnp.abs(jnp.atleast_2d(expected)), axis=0))
    alike = jnp.max(jnp.abs(found - expected)) < 0.01 * jnp.max(jnp.abs(expected))
    return jnp.where(alike, jnp.minimum(size, largest), largest)


def _of_classes(objective: Objective) -> bool:
    return _model(objective).outputs is not None or objective.label_range == TWO_CLASSES


def _model(objective: Objective) -> LinearModel:
    assert objective.linear_model is not None
    return objective.linear_model


def _wide(intercept: jax.Array) -> jax.Array:
    """In float32 at least: shares of rare classes are lost in shorter numbers."""
    return intercept.astype(jnp.promote_types(intercept.dtype, jnp.float32))


def _classes(model: LinearModel, intercept: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The share of each class, and the length of its slope, where only an intercept is known."""
    if model.outputs is None:
        steep = model.derivative(jnp.broadcast_to(intercept, (2,)), jnp.asarray([0.0, 1.0]))
        one = steep[0] / (steep[0] - steep[1])
        return jnp.stack([1.0 - one, one]), jnp.abs(steep)
    labels = jnp.arange(model.outputs, dtype=jnp.float32)
    steep = jax.vmap(lambda label: model.derivative(intercept, label))(labels)
    return 1.0 + jnp.diagonal(steep), jnp.linalg.norm(steep, axis=1)
