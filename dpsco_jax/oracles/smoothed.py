"""Randomized smoothing: user gradients at points shifted within a small ball.

What it computes: an unbiased estimate of the gradient of f_r(w) = E f(w + y), y uniform in the ball of
radius r around the origin: the gradient of f at shifted points, with a shift for each user, for each item,
or one for all.

Source: thesis, Claim 1.4.2 and Fact 1.4.3, and Algorithm 29 (a shift for each item); Yousefian, Nedić and
Shanbhag 2012. For f convex and G-Lipschitz in dimension d: f ≤ f_r ≤ f + G·r·d/(d+1), and f_r is
(c_d·G/r)-smooth with c_d = ``geometry.smoothing.smoothness_factor(d)`` ≤ √d.

Formal guarantee: none of privacy. The law of the shift knows no data, so whatever is proved of a user's
gradient at a fixed point (its clip) holds here. The estimate has variance at most G² per user, hence G²/B
in a mean over B users: shifts are independent over users; one shift for all leaves G², one for each of m
items G²/(mB). Gradients of users with shifts of their own are up to 2G apart even if their data are alike:
aggregates that look for outliers need shifts for each item, which average out, or one for all.

Cost: as without smoothing, plus dim + 2 normal draws per shift, made inside of the chunk; a shift for each
item takes memory of items × dim for each user of the chunk.
"""

from typing import Any

import jax
from jaxtyping import ArrayLike

from dpsco_jax._checks import require_callable, require_instance, require_nonnegative
from dpsco_jax.geometry.smoothing import uniform_ball
from dpsco_jax.oracles import Estimate, Oracle, _convolutions, gradients
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import user_loss


def user_gradient(objective: Objective, radius: ArrayLike) -> gradients.UserGradient:
    """The gradient of one user's mean loss at a point shifted uniformly within a ball.

    The loss must be defined within ``radius`` around the domain, and Lipschitz there.

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r ≥ 0; may be traced.
    """
    require_instance("objective", objective, Objective)
    require_nonnegative("radius", radius)
    at_point = gradients.user_gradient(objective)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        shift_key, gradient_key = jax.random.split(key)
        shift = uniform_ball(shift_key, params, radius)
        return at_point(gradient_key, _add(params, shift), items, mask)

    return evaluate


def user_gradient_by_item(objective: Objective, radius: ArrayLike) -> gradients.UserGradient:
    """The mean over a user's items of gradients at points shifted independently for each item.

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r ≥ 0; may be traced.
    """
    require_instance("objective", objective, Objective)
    require_nonnegative("radius", radius)

    def shifted_loss(params: Any, item_and_shift: Any) -> Any:
        item, shift = item_and_shift
        return objective.loss(_add(params, shift), item)

    loss = user_loss(objective._replace(loss=shifted_loss))
    gradient = _convolutions.kept_apart(jax.grad(loss), loss)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        slots = jax.tree.leaves(items)[0].shape[0]
        keys = jax.random.split(key, slots)
        shifts = jax.vmap(lambda item_key: uniform_ball(item_key, params, radius))(keys)
        return gradient(params, (items, shifts), mask)

    return evaluate


def at_shifted_point(oracle: Oracle, radius: ArrayLike) -> Oracle:
    """The oracle evaluated, for all users and items alike, at one point shifted within the ball.

    Args:
        oracle: any oracle.
        radius: r ≥ 0; may be traced.
    """
    require_callable("oracle", oracle)
    require_nonnegative("radius", radius)

    def shifted(key: jax.Array, params: Any, data: Any) -> Estimate:
        shift_key, oracle_key = jax.random.split(key)
        return oracle(oracle_key, _add(params, uniform_ball(shift_key, params, radius)), data)

    return shifted


def _add(params: Any, shift: Any) -> Any:
    return jax.tree.map(lambda p, y: p + y.astype(p.dtype), params, shift)
