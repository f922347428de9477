"""Linear losses on which every algorithm that sees few values fails: data, exact minimizer, exact risk.

What it computes: n records s ~ N(κv, σ²·I) for a direction v that is drawn from the key, the losses <x, s> on
the ℓp ball of diameter D around the origin, 1 <= p <= 2, and the population's risk κ<x, v>, whose minimizer
and least value are in closed form:

    signs   v in {-1, 1}^d              -(D/2)·d^(-1/p)·v     -(D/2)·κ·d^(1 - 1/p)
    axis    v among ±e_1, ..., ±e_d     -(D/2)·v              -(D/2)·κ

κ and σ are such that k values cannot tell v (``rates.value_queries``). With ``bounded``, records beyond a
bound are set to zero, so that every loss is G-Lipschitz; the mean is c·v then, with c in place of κ
(``rates.bounded_losses``).

Source: T Theorem 3.7.1, Corollaries 3.7.6, 3.7.7, Proposition 5.7.4, Corollaries 5.7.5, 5.7.6. Corrected
where docs/corrections.md says so: for p near 1 one sign of v is enough for a good point, so v is an axis
there.

Formal guarantee: on average over v (over keys) no algorithm that sees ``queries`` values of losses of these
records has a smaller excess risk than ``lower_bound``. For a fixed v that holds of algorithms that treat all
directions alike. G is in the dual norm: E‖s‖_q² <= G², or ‖s‖_q <= G if bounded.

Cost: n·d normal numbers; if bounded a bisection on the host.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import value_instances
    >>> hard = value_instances.hard_linear_instance(jax.random.key(0), 50, 16, queries=800)
    >>> round(hard.optimum, 4), round(hard.lower_bound, 4)
    (-0.0088, 0.0044)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax._checks import (
    require_choice,
    require_count,
    require_flag,
    require_key,
    require_positive,
)
from dpsco_jax.geometry.lp import Regularizer
from dpsco_jax.geometry.lp_balls import lp_ball
from dpsco_jax.problems import _links
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates import bounded_losses, value_queries


class ValueInstance(NamedTuple):
    """A hard law of linear losses, and records drawn from it.

    Attributes:
        data: n users with one record each; features ``[n, 1, dim]``, labels zero.
        draw: ``draw(key)``: other data of the same law, v included; works under ``jax.vmap``.
        objective: <params, features> on the ball, with its ℓ2 Lipschitz constant; ``None`` unless bounded, as
            there is none otherwise.
        direction: v, ``[dim]``, float64 on the host.
        mean: the records' mean is ``mean``·v.
        minimizer: of the population's risk over the ball; ``[dim]``, float64 on the host.
        optimum: that risk there.
        lower_bound: on the excess population risk of whoever sees the given number of values.
    """

    data: UserData
    draw: Callable[[Any], UserData]
    objective: Objective | None
    direction: Float[np.ndarray, "dim"]
    mean: float
    minimizer: Float[np.ndarray, "dim"]
    optimum: float
    lower_bound: float

    def excess(self, params: Float[Array | np.ndarray, "*batch dim"]) -> Float[Array, "*batch"]:
        """The excess population risk, exact; at least 0 on the ball.

        Args:
            params: one point, or a batch of them along leading axes.
        """
        return self.mean * (jnp.asarray(params) @ jnp.asarray(self.direction)) - self.optimum


class SamplingInstance(NamedTuple):
    """A density exp(-F - μr) on a ball that no sampler comes near to that sees few values.

    Attributes:
        losses: F is their mean over the population.
        regularizer: r, around the origin.
        diameter: of the ball, in the ℓp norm.
        distance: in variation: no sampler that sees as many values comes nearer, on average over v.
    """

    losses: ValueInstance
    regularizer: Regularizer
    diameter: float
    distance: float


def hard_linear_instance(
    key: Key[Array, ""],
    num_users: int,
    dim: int,
    queries: int,
    lipschitz: float = 1.0,
    diameter: float = 1.0,
    p: float = 2.0,
    bounded: bool = False,
    direction: str | None = None,
) -> ValueInstance:
    """Records on which ``queries`` values say too little of the direction that matters.

    Args:
        key: of direction and records.
        num_users: n.
        dim: d.
        queries: k, the number of values that an algorithm may see.
        lipschitz: G, in the dual norm; on average over records, or of each if ``bounded``.
        diameter: D, of the ball in the ℓp norm.
        p: in [1, 2].
        bounded: whether records beyond the bound are set to zero.
        direction: "signs" or "axis"; ``None`` is that of the larger lower bound.

    Raises:
        ValueError: p is 1, the direction signs and ``bounded`` asked for.

    Example:
        >>> hard = hard_linear_instance(jax.random.key(0), 50, 16, 800, p=1.0, bounded=True)
        >>> bool(abs(hard.excess(hard.minimizer)) < 1e-6), hard.objective.lipschitz
        (True, 4.0)
    """
    require_key(key)
    num_users, dim = require_count("num_users", num_users), require_count("dim", dim)
    require_positive("diameter", diameter)
    require_flag("bounded", bounded)
    word, scales = _law(queries, dim, lipschitz, p, direction, num_users, bounded)
    direction_key, data_key = jax.random.split(key)
    v = _signs(direction_key, dim) if word == "signs" else _axis(direction_key, dim)
    bound, mean = None, scales.mean
    if isinstance(scales, bounded_losses.BoundedScales):
        bound, mean = scales.bound, scales.kept_mean

    def draw(key: Key[Array, ""]) -> UserData:
        records = scales.mean * v + scales.stddev * jax.random.normal(key, (num_users, 1, dim))
        if bound is not None:
            sizes = jnp.linalg.norm(records, 2 if p == 2.0 else jnp.inf, axis=-1, keepdims=True)
            records = jnp.where(sizes <= bound, records, 0.0)
        return UserData(Example(records, jnp.zeros((num_users, 1))))

    reach, _ = value_queries.reach_and_share(p, dim, word)
    where = np.asarray(v, np.float64)
    shrink = dim ** (-1.0 / p) if word == "signs" else 1.0
    return ValueInstance(
        data=draw(data_key),
        draw=draw,
        objective=None if bound is None else _linear(lipschitz, diameter, p, dim),
        direction=where,
        mean=mean,
        minimizer=-0.5 * diameter * shrink * where,
        optimum=-0.5 * diameter * mean * reach,
        lower_bound=diameter * scales.risk,
    )


def hard_sampling_instance(
    key: Key[Array, ""],
    dim: int,
    queries: int,
    lipschitz: float,
    regularization: float,
    p: float = 2.0,
) -> SamplingInstance:
    """Bounded losses on the ball of the diameter at which sampling is hardest (T Cor 3.7.7, 5.7.6).

    Args:
        key: of direction and records, of which there are as many as queries.
        dim: d.
        queries: k.
        lipschitz: G, of every loss in the dual norm.
        regularization: μ; about G²/μ values are needed.
        p: in [1, 2].

    Example:
        >>> hard = hard_sampling_instance(jax.random.key(0), 16, 1000, 1e4, 1.0)
        >>> round(hard.diameter, 3), hard.distance > 5e-4
        (11.314, True)
    """
    queries = require_count("queries", queries)
    diameter = bounded_losses.sampling_diameter(regularization, dim, p)
    return SamplingInstance(
        hard_linear_instance(key, queries, dim, queries, lipschitz, diameter, p, bounded=True),
        Regularizer(p, dim),
        diameter,
        bounded_losses.sampling_distance(queries, dim, lipschitz, regularization, p),
    )


def _law(
    queries: int,
    dim: int,
    lipschitz: float,
    p: float,
    direction: str | None,
    num_users: int,
    bounded: bool,
) -> tuple[str, bounded_losses.BoundedScales | value_queries.Scales]:
    """The direction, and the scales of its law."""
    words: tuple[str, ...] = value_queries.DIRECTIONS
    if direction is not None:
        words = (require_choice("direction", direction, words),)
    elif bounded and p == 1.0:
        words = ("axis",)
    scales = bounded_losses.bounded_scales if bounded else value_queries.hard_scales
    laws = [(word, scales(queries, dim, lipschitz, p, word, num_users)) for word in words]
    return max(laws, key=lambda law: law[1].risk)


def _signs(key: Any, dim: int) -> Array:
    return jax.random.rademacher(key, (dim,), float)


def _axis(key: Any, dim: int) -> Array:
    place = jax.random.randint(key, (), 0, 2 * dim)
    return jnp.where(jnp.arange(dim) == place // 2, 1.0 - 2.0 * (place % 2), 0.0)


def _linear(lipschitz: float, diameter: float, p: float, dim: int) -> Objective:
    bound = lipschitz * dim ** (1.0 / p - 0.5)
    return _links.objective(
        link=lambda m, y: m,
        derivative=lambda m, y: jnp.ones_like(m),
        slope=1.0,
        # Zero would be true as well, but plans divide by the smoothness, which is G/D like this.
        curvature=1.0 / (bound * diameter),
        feature_bound=bound,
        domain=lp_ball(0.5 * diameter, p, dim),
        ridge=0.0,
        remainder=lambda m, y, change: jnp.zeros_like(change),
    )
