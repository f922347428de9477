"""A first intercept for whitened SGD: fitted alone, before the other parameters.

Noisy gradient descent on one number (of a matrix of parameters, on one for each output), averaged with
weights that grow as k². A ridge pulls it towards its start, the more strongly the larger the noise is. Where
a class is rare the link is nearly flat. Steps are then longer, up to the length at which the noise of one
moves a margin by a half, in deviation.

Each step releases the mean of users' slopes, clipped to a public number, with Gaussian noise: the cost is
that of ``transforms.privatize``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import privacy, transforms
from dpsco_jax._counts import Count
from dpsco_jax.oracles import linear
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers import loop
from dpsco_jax.solvers.user_level import _rare_class
from dpsco_jax.solvers.user_level._typical_link import Bends
from dpsco_jax.solvers.user_level._whitened_plan import Plan

_SPREAD = (
    1.8  # variance of an average whose weights grow as k², over that of one with equal weights
)
_INTERCEPT_MARGINS = 2.0  # typical size of an intercept over that of a margin
_LONGER = 16.0  # steps than those that the largest curvature allows, at most
_MOVED = 0.5  # a margin, by the noise of one step: its deviation
_LONGEST = 2.0  # a step, in margins of classes


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
    """The prior of a run.

    Args:
        plan: of the solver, with an intercept.
        slope: to which slopes are clipped.
        bends: of the link.
    """
    curvature = bends.largest / bends.flatness
    sensitivity = 2.0 * slope / plan.num_users
    stddev = jnp.asarray(plan.start_multiplier) * sensitivity * (_SPREAD / plan.start_steps) ** 0.5
    variance = jnp.square(_INTERCEPT_MARGINS * plan.margin_scale)
    return InterceptPrior(variance, jnp.square(stddev / curvature), curvature)


def released(
    key: jax.Array, plan: Plan, objective: Objective, slope: jax.Array, bends: Bends,
    data: linear.LinearData, params: jax.Array, constant: Any,
) -> tuple[jax.Array, privacy.PrivacyLoss, Count]:  # fmt: skip
    """Descent along the intercept alone: the point, the cost, the number of gradients.

    Args:
        key: of the noise; used once.
        plan: of the solver, with an intercept.
        objective: a linear model.
        slope: to which slopes are clipped.
        bends: of the link.
        data: dense rows.
        params: the start.
        constant: whether the intercept's column may be the constant 1; may be traced.
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

    classes = _rare_class.of_classes(objective)

    def descend(slopes: jax.Array, now: jax.Array) -> jax.Array:
        bend = bends.largest
        if classes:
            at = _rare_class.curvature(bends.largest, objective, now[0])
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
