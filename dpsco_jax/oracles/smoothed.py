"""Randomized smoothing: user gradients at points shifted within a small ball.

What it computes: an unbiased estimate of the gradient of f_r(w) = E f(w + y), y uniform in the ball of
radius r around the origin: the gradient of f at one shifted point, with a shift for each user of its own.

Source: thesis, Claim 1.4.2 and Fact 1.4.3; Yousefian, Nedić and Shanbhag 2012. For f convex and
G-Lipschitz in dimension d: f ≤ f_r ≤ f + G·r·d/(d+1), and f_r is (c_d·G/r)-smooth with
c_d = ``geometry.smoothing.smoothness_factor(d)`` ≤ √d.

Formal guarantee: none of privacy. The law of the shift knows no data, so whatever is proved of a user's
gradient at a fixed point (its clip) holds here. The estimate has variance at most G² per user, hence G²/B
in a mean over B users: shifts are independent over users; one shift for all would leave G².

Cost: as without smoothing, plus dim + 2 normal draws per user, made inside of the chunk.
"""

from typing import Any

import jax
from jaxtyping import ArrayLike

from dpsco_jax.geometry._checks import require_nonnegative
from dpsco_jax.geometry.smoothing import uniform_ball
from dpsco_jax.oracles import gradients
from dpsco_jax.problems.objective import Objective


def user_gradient(objective: Objective, radius: ArrayLike) -> gradients.UserGradient:
    """The gradient of one user's mean loss at a point shifted uniformly within a ball.

    The loss must be defined within ``radius`` around the domain, and Lipschitz there.

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r ≥ 0; may be traced.

    Raises:
        ValueError: if a concrete radius is negative or not finite.
    """
    require_nonnegative("radius", radius)
    at_point = gradients.user_gradient(objective)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        shift_key, gradient_key = jax.random.split(key)
        shift = uniform_ball(shift_key, params, radius)
        shifted = jax.tree.map(lambda p, y: p + y.astype(p.dtype), params, shift)
        return at_point(gradient_key, shifted, items, mask)

    return evaluate
