"""What an intercept says of a rare class, and what whitened SGD does about it: clipping, lengths of steps.

In logistic and softmax regression the intercept alone, which was released, gives the shares of the classes.
Where one class is rare

- its users' slopes are near the largest that there is and those of all others small. A quantile below
  1 - share gives a radius of the others, and nearly all that is known of the rare class is clipped away. Then
  the quantile is 1 - share/2: half of the users of the rare class are inside. A class is rare if its slopes
  are more than twice the mean; it is given room only where the noise that comes with its radius does not hide
  it;
- the link is nearly flat for most rows, so that steps may be longer;
- a share below its noise may have any logarithm: the intercept is no farther out than that noise allows.

That an intercept is a share supposes that its column is the constant 1, also after rows were made shorter
(``Coordinates.constant``). A quantile has no part in the sensitivity of anything.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.solvers.user_level._typical_link import Bends

_ROOM = 4.0  # for columns by which the classes differ
_LONGER = 4.0  # steps than those that the largest curvature allows
_STEEP = 2.0  # slopes of a rare class, over the mean
_SEEN = 0.5  # a share over the noise of it
_LEAST_SHARE = 1.0  # over the noise of it
_LARGEST_QUANTILE = 1.0 - 2.0**-20


def quantile(
    planned: Any, least: Any, objective: Objective, intercept: jax.Array, items: int,
    found: jax.Array, stddev: Any,
) -> Any:  # fmt: skip
    """The planned quantile, or a larger one in which the rarest class that can be seen has its room.

    Args:
        planned: the quantile, in (0, 1).
        least: a steep class of the share p is given room if p·(1 - p) is above this.
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
        items: of a user, padding included: where there is much of it there is less room.
        found: the intercept before ``within_noise``: in it a class must be above a part of its noise.
        stddev: of the noise of a share.
    """
    if not of_classes(objective):
        return planned
    shares = _shares(intercept)
    # Of a row of the class k the slope is shares - e_k.
    squares = 1.0 - 2.0 * shares + jnp.sum(jnp.square(shares))
    slopes = jnp.sqrt(jnp.maximum(squares, 0.0))
    order = jnp.argsort(-slopes)
    steeper = jnp.zeros_like(shares).at[order].set(jnp.cumsum(shares[order]))
    # A user with one item of the class counts: for few items that is where slopes are steep.
    holders = 1.0 - (1.0 - jnp.clip(steeper, 0.0, 1.0)) ** items
    rare = slopes > _STEEP * (shares @ slopes)
    rare &= (shares * (1.0 - shares) > least) & (_shares(found) > _SEEN * stddev)
    room = jnp.max(jnp.where(rare, 1.0 - 0.5 * holders, 0.0))
    return jnp.maximum(planned, jnp.minimum(room, _LARGEST_QUANTILE))


def bends(known: Bends, objective: Objective, intercept: jax.Array, stddev: Any) -> Bends:
    """What the intercept tells of the link's curvatures where a class is rare.

    The curvature of the logistic link (and of softmax) at margins m is at most the rarer probability there.
    Its mean over rows is the share p of the class, and so it is over those of any direction in which the
    class is spread as the others are: the mean curvature is p, with room for those in which it is not.

    Args:
        known: without that knowledge.
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
        stddev: of the noise of a share.
    """
    if not of_classes(objective):
        return known
    size = curvature(known.largest, objective, intercept) + 3.0 * stddev
    return known._replace(mean=jnp.clip(_ROOM * size, known.largest / _LONGER, known.largest))


def within_noise(
    objective: Objective, intercept: jax.Array, start: jax.Array, stddev: Any
) -> jax.Array:
    """The intercept of two classes, but no farther from zero than what noise could be, or than the start.

    A share that is estimated as far below the deviation of its noise is not known to be that small, and
    the loss of a class is the logarithm of its estimated share: too small a share is the dearer mistake.

    Args:
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
        start: an intercept that was known beforehand.
        stddev: of the noise of a share.
    """
    if not of_classes(objective) or _model(objective).outputs is not None:
        return intercept
    share = jnp.clip(_LEAST_SHARE * stddev, 1e-30, 0.5)
    furthest = jnp.maximum(jnp.log1p(-share) - jnp.log(share), jnp.abs(start))
    return jnp.clip(intercept, -furthest, furthest)


def curvature(largest: Any, objective: Objective, intercept: jax.Array) -> Any:
    """A bound on the curvature of the link where all margins are the intercept.

    Args:
        largest: of the link; what is returned where the link is not that of logistic or softmax regression.
        objective: a linear model.
        intercept: the margin that all rows have in common, a number or one for each output.
    """
    if not of_classes(objective):
        return largest
    spread = _shares(intercept) * (1.0 - _shares(intercept))
    # The rows of diag(p) - ppᵀ have absolute values that sum to 2p(1 - p); two classes have one margin.
    rows = 1.0 if _model(objective).outputs is None else 2.0
    return jnp.minimum(rows * jnp.max(spread), largest)


def of_classes(objective: Objective) -> bool:
    """Whether slopes of the link are those of logistic or of softmax regression: probability minus label."""
    model = objective.linear_model
    if model is None or (model.outputs is None and objective.label_range != TWO_CLASSES):
        return False
    with jax.ensure_compile_time_eval():
        if model.outputs is None:
            margins: Any = np.linspace(-6.0, 6.0, 8)
            labels = np.arange(8) % 2
            expected = np.asarray(special.expit(margins) - labels)
        else:
            margins = np.linspace(-2.0, 2.0, model.outputs) * np.ones((2, 1))
            labels = np.asarray([0, model.outputs - 1])
            expected = np.asarray(special.softmax(margins, axis=1) - np.eye(model.outputs)[labels])
        found = model.derivative(
            jnp.asarray(margins, jnp.float32), jnp.asarray(labels, jnp.float32)
        )
        alike = np.shape(found) == expected.shape
        return bool(alike and np.allclose(found, expected, atol=1e-4))


def _model(objective: Objective) -> LinearModel:
    assert objective.linear_model is not None
    return objective.linear_model


def _shares(intercept: jax.Array) -> jax.Array:
    """Of each class, where only an intercept is known; in float32 at least, or rare classes are lost."""
    wide = intercept.astype(jnp.promote_types(intercept.dtype, jnp.float32))
    return jax.nn.softmax(jnp.stack([jnp.zeros_like(wide), wide]) if wide.ndim == 0 else wide)
