"""One pass of SGD over users whose gradients are clipped: the part that private one-pass solvers are made of.

What it computes: from x_0, with one user in each step, in the order of their positions,

    x_{t+1} = Π_X(x_t - η·clip(∇f(x_t; s_{t+1}), C)),

and the average of x_0, ..., x_{T-1}. ``run`` takes any rule that says of each user what step is made, so that
it is also the pass of Algorithm 42, where the rule is a noisy test; ``bound`` is what is proven of the
average.

Source: T, Algorithm 40, Corollary 12.7.3. Correction: H1 (docs/corrections/heavy_tails.md).

Formal guarantee: **none of privacy**: the average is a statistic, whose sensitivity is proven by whoever
releases it, from properties of the losses that clipping does not have by itself (a clipped step may expand
distances: ``problems.fixtures.clip_noncontraction``).

Cost: one gradient for each item, one after the other; memory of one user. Sizes are numbers, which may be
traced: passes of several lengths share a program.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.heavy_tailed import onepass_clipped_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> step = onepass_clipped_sgd.clipped_steps(made.objective, made.data, clip_norm=0.5)
    >>> average, _ = onepass_clipped_sgd.run(
    ...     step, made.objective.domain.project, jnp.zeros(3), first=0, count=100, step_size=0.1
    ... )
    >>> average.shape
    (3,)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax._argument_kinds import Count, Positive, checked
from dpsco_jax._checks import (
    require_callable,
    require_instance,
    require_positive,
    require_real_leaves,
    require_whole,
)
from dpsco_jax.geometry.norms import clip_bias, clip_to_norm
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, user_loss
from dpsco_jax.rates.heavy_tailed import OfMoments

__all__ = ["bound", "clipped_steps", "run", "user_slopes"]

Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""``step(state, user, point) -> (clipped gradient, whether to move, state)``."""


@checked
def bound(
    moments: OfMoments,
    distance: Positive,
    diameter: Positive,
    *,
    num_users: Count,
    step_size: Positive,
    clip_norm: Positive,
) -> float:
    """Bound on E F(average) - F(u) for convex losses: R²/(2ηT) + ηG_2²/2 + D·(bias of the clip).

    It holds for every point u that does not depend on the users of the pass, also if steps are clipped at a
    level of at least C that depends on the past and on the user. The thesis has four times the second term
    and G_k^k/(C/2)^{k-1} for the bias where a user below the level is not clipped: what is not clipped has no
    bias, and what is clipped to more than C a smaller one.

    Args:
        moments: of the users' slopes.
        distance: R, bound on the root mean square of ‖x_0 - u‖.
        diameter: D of the domain.
        num_users: T.
        step_size: η.
        clip_norm: C.
    """
    start = distance**2 / (2 * step_size * num_users)
    bias = clip_bias(moments.highest, moments.order, clip_norm, sharp=True)
    return start + step_size * moments.second**2 / 2 + diameter * bias


def user_slopes(objective: Objective, data: UserData) -> Callable[[Any, Any], Any]:
    """The gradient of one user's mean loss, without the regularizer: ``slope(user, point)``.

    Args:
        objective: static.
        data: of all users, of whom the one at the position ``user``, which may be traced, is read.
    """
    require_instance("objective", objective, Objective)
    require_instance("data", data, UserData)
    loss = user_loss(objective)
    slope = jax.grad(loss)

    def of_user(user: Any, point: Any) -> Any:
        items, mask = jax.tree.map(
            lambda x: jnp.asarray(x).at[user].get(mode="promise_in_bounds"),
            (data.items, data.mask),
        )
        return slope(point, items, mask)

    return of_user


def clipped_steps(objective: Objective, data: UserData, clip_norm: jax.typing.ArrayLike) -> Step:
    """The steps of Algorithm 40: every user's gradient is clipped to the same norm.

    Args:
        objective: static; its regularizer is no part of a step.
        data: of all users.
        clip_norm: C, positive; may be traced. A gradient that is not finite counts as zero.
    """
    require_positive("clip_norm", clip_norm)
    slope = user_slopes(objective, data)

    def step(state: Any, user: Any, point: Any) -> tuple[Any, Any, Any]:
        return clip_to_norm(slope(user, point), clip_norm), True, state

    return step


def run(
    step: Step,
    project: Callable[[Any], Any],
    start: Any,
    *,
    first: Any,
    count: Any,
    step_size: jax.typing.ArrayLike,
    state: Any = (),
) -> tuple[Any, Any]:
    """One pass over the users at the positions first, ..., first + count - 1.

    Args:
        step: what is done with a user; see ``Step``.
        project: onto the domain.
        start: x_0, in the domain; a tree of real arrays.
        first: position of the first user, may be traced.
        count: T, how many; may be traced, and is public: a pass takes as long, whatever users hold.
        step_size: η; may be traced.
        state: of the rule, at the first user.

    Returns:
        The average of the points before the steps, and the state at the end.
    """
    require_callable("step", step)
    require_callable("project", project)
    require_real_leaves("start", start)
    for name, value in (("first", first), ("count", count)):
        require_whole(name, value, 0)
    require_positive("step_size", step_size)

    def move(t: jax.Array, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        point, average, state = carry
        average = jax.tree.map(lambda a, x: a + (x - a) / (t + 1), average, point)
        slope, moving, state = step(state, first + t, point)
        moved = project(
            jax.tree.map(lambda x, g: (x - step_size * g).astype(x.dtype), point, slope)
        )
        point = jax.tree.map(lambda new, old: jnp.where(moving, new, old), moved, point)
        return point, average, state

    start = jax.tree.map(jnp.asarray, start)
    _, average, state = jax.lax.fori_loop(0, count, move, (start, start, state))
    return average, state
