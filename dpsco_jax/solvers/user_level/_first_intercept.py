"""A first intercept for whitened SGD, fitted alone before all else, and what it says of a rare class.

Noisy gradient descent on one number (of a matrix of parameters, on one for each output), averaged with
weights that grow as k². A ridge pulls it towards its start, the more strongly the larger the noise is. Where
a class is rare the link is nearly flat. Steps are then longer, up to the length at which the noise of one
moves a margin by a half, in deviation. Each step releases the mean of users' slopes, clipped to a public
number, with Gaussian noise: the cost is that of ``transforms.privatize``.

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

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import special

from dpsco_jax import privacy, transforms
from dpsco_jax._counts import Count
from dpsco_jax.oracles import linear
from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.solvers import loop
from dpsco_jax.solvers.user_level._linear_models import Bends
from dpsco_jax.solvers.user_level._whitened_plan import Plan

# Variance of an average whose weights grow as k², over that of one with equal weights.
_SPREAD = 1.8
_INTERCEPT_MARGINS = 2.0  # typical size of an intercept over that of a margin
_LONGER = 16.0  # steps than those that the largest curvature allows, at most
_MOVED = 0.5  # a margin, by the noise of one step: its deviation
_LONGEST = 2.0  # a step, in margins of classes

_ROOM = 4.0  # for columns by which the classes differ
_LONGER_ROWS = 4.0  # steps than those that the largest curvature allows
_STEEP = 2.0  # slopes of a rare class, over the mean
_SEEN = 0.5  # a share over the noise of it
_LEAST_SHARE = 1.0  # over the noise of it
_LARGEST_QUANTILE = 1.0 - 2.0**-20


class InterceptPrior(NamedTuple):
    """What is known of an intercept b before anything is released, and the noise of its descent.

    A priori b ~ N(start, s²), where s is twice the planned margin. If the gradient at the start is
    h·(start - b) with noise of variance t², then a descent with the ridge λ = t²/(s²·h) ends at the mean of b
    given what was released: noise does not carry it far beyond s, whatever the link is there.

    Attributes:
        variance: s².
        noise: (t/h)², what the estimate without λ has.
        curvature: h, the typical one.
    """

    variance: Any
    noise: Any
    curvature: Any

    @property
    def ridge(self) -> Any:
        """λ."""
        return self.curvature * self.noise / self.variance

    @property
    def slope_stddev(self) -> Any:
        """The standard deviation t."""
        return self.curvature * self.noise**0.5

    def weighed(self, moved: jax.Array) -> jax.Array:
        """How far to go from the start: what the descent found, or more if that is far for the prior.

        s² is the prior's, or the square of the estimate without λ less four times its noise if that is more:
        an intercept that is seen beyond doubt is not pulled back.
        """
        free = moved * (1.0 + self.noise / self.variance)
        seen = jnp.mean(jnp.square(free)) - 4.0 * self.noise
        variance = jnp.maximum(self.variance, seen)
        return free * variance / (variance + self.noise)


def prior(plan: Plan, slope: Any, bends: Bends) -> InterceptPrior:
    """The prior of a run of a plan with an intercept, in which slopes are clipped to ``slope``."""
    typical = bends.largest / bends.flatness
    sensitivity = 2.0 * slope / plan.num_users
    stddev = jnp.asarray(plan.start_multiplier) * sensitivity * (_SPREAD / plan.start_steps) ** 0.5
    variance = jnp.square(_INTERCEPT_MARGINS * plan.margin_scale)
    return InterceptPrior(variance, jnp.square(stddev / typical), typical)


def released(
    key: jax.Array, plan: Plan, objective: Objective, slope: jax.Array, bends: Bends,
    data: linear.LinearData, params: jax.Array, constant: Any,
) -> tuple[jax.Array, privacy.PrivacyLoss, Count]:  # fmt: skip
    """Descent along the intercept alone: the point, the cost, the number of gradients.

    Slopes are clipped to ``slope``; ``constant``, which may be traced, says whether the intercept's column
    may be the constant 1.
    """
    noise_key, oracle_key = jax.random.split(key)
    model, column = objective.linear_model, plan.intercept
    multiplier: Any = plan.start_multiplier
    assert model is not None
    assert column is not None
    feature = data.features[..., column : column + 1]
    lengths = jnp.maximum(jnp.abs(feature[..., 0]), 1e-6 * model.feature_bound)
    chosen = data._replace(features=feature, row_norms=lengths / linear.HEAD_ROOM)
    inner = linear.clipped_gradient_sum(model, slope, None, plan.chunk_size)
    start = params[column : column + 1]
    known = prior(plan, slope, bends)
    ridge = known.ridge
    noise = known.slope_stddev * (plan.start_steps / _SPREAD) ** 0.5
    least = jnp.minimum(jnp.maximum(bends.largest / _LONGER, noise / _MOVED), bends.largest)

    classes = of_classes(objective)

    def descend(slopes: jax.Array, now: jax.Array) -> jax.Array:
        bend = bends.largest
        if classes:
            at = curvature(bends.largest, objective, now[0])
            bend = jnp.where(constant, jnp.maximum(at, least), bends.largest)
        moved = -(slopes + ridge * (now - start)) / (bend + ridge)
        # Where it has gone too far a flat link would send it as far to the other side.
        return jnp.clip(moved, -_LONGEST, _LONGEST) if classes else moved

    chain = optax.chain(
        transforms.privatize(
            transforms.summed_contributions(slope, plan.num_users), noise_key, multiplier
        ),
        optax.stateless(descend),
        transforms.average(2.0),
    )
    end = loop.run(oracle_key, inner, chain, start, chosen, plan.start_steps)
    found = transforms.average_eval_params(end.opt_state, end.params)
    found = start + known.weighed(found - start)
    return (
        params.at[column].set(found[0].astype(params.dtype)),
        privacy.privacy_spent(end.opt_state),
        end.num_gradients,
    )


def informed(
    plan: Plan, objective: Objective, bends: Bends, found: jax.Array,
    start: jax.Array, items: int, stddev: Any, constant: Any,
) -> tuple[jax.Array, Any, Bends]:  # fmt: skip
    """The intercept, the quantile and the curvatures of the link by what is known of the classes.

    Of them the descent has ``found`` the intercept from its ``start``; ``stddev`` is that of the noise of a
    share, ``items`` those of a user.
    """
    bounded = within_noise(objective, found, start, stddev)
    intercept = jnp.where(constant, bounded, found).astype(found.dtype)
    raised = quantile_with_room(
        plan.quantile, plan.least_class, objective, intercept, items, found, stddev
    )
    quantile = jnp.where(constant, raised, plan.quantile)
    flat = flatter(bends, objective, intercept, stddev)
    # Where noise hides the radius a rare class is clipped, and longer descents go astray.
    longer = constant & (1.0 - quantile > plan.radius_multiplier / plan.num_users)
    return intercept, quantile, bends._replace(mean=jnp.where(longer, flat.mean, bends.mean))


def quantile_with_room(
    planned: Any, least: Any, objective: Objective, intercept: jax.Array, items: int,
    found: jax.Array, stddev: Any,
) -> Any:  # fmt: skip
    """The planned quantile, or a larger one in which the rarest class that can be seen has its room.

    A steep class of the share p is given room if p·(1 - p) is above ``least``, and if the intercept that was
    ``found``, before ``within_noise``, is above a part of its noise. Where there is much padding among the
    ``items`` of a user there is less room.
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


def flatter(known: Bends, objective: Objective, intercept: jax.Array, stddev: Any) -> Bends:
    """What the intercept tells of the link's curvatures where a class is rare.

    The curvature of the logistic link (and of softmax) at margins m is at most the rarer probability there.
    Its mean over rows is the share p of the class, and so it is over those of any direction in which the
    class is spread as the others are: the mean curvature is p, with room for those in which it is not.
    """
    if not of_classes(objective):
        return known
    size = curvature(known.largest, objective, intercept) + 3.0 * stddev
    return known._replace(mean=jnp.clip(_ROOM * size, known.largest / _LONGER_ROWS, known.largest))


def within_noise(
    objective: Objective, intercept: jax.Array, start: jax.Array, stddev: Any
) -> jax.Array:
    """The intercept of two classes, but no farther from zero than what noise could be, or than the start.

    A share that is estimated as far below the deviation of its noise is not known to be that small, and
    the loss of a class is the logarithm of its estimated share: too small a share is the dearer mistake.
    """
    if not of_classes(objective) or _model(objective).outputs is not None:
        return intercept
    share = jnp.clip(_LEAST_SHARE * stddev, 1e-30, 0.5)
    furthest = jnp.maximum(jnp.log1p(-share) - jnp.log(share), jnp.abs(start))
    return jnp.clip(intercept, -furthest, furthest)


def curvature(largest: Any, objective: Objective, intercept: jax.Array) -> Any:
    """A bound on the curvature of the link where all margins are the intercept; ``largest`` if no classes."""
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
