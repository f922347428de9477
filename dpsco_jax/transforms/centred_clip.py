"""Centred clipping: users are clipped around a public centre, within a radius that adapts privately.

What it computes: with h_u = clip(v_u - c, r), the vector of user u shortened to a ball around c,

    release = c + (Σ_u h_u + noise)/N,    c ← c + centre_rate (release - c),

where c and r are functions of earlier releases. With ``quantile`` = γ the same Gaussian release holds the
share of users within 0.9 r of c, and r ← r exp(-quantile_rate (share - γ)).

Source: clipping around the last aggregate is Karimireddy, He and Jaggi 2021 (for robustness); the
geometric update is Andrew, Thakkar, Ramaswamy and McMahan 2021. The joint release without a price for
the quantile is derived in docs/theory/centred_clipping.md.

Formal guarantee: of ``privatize``, for any vectors. Given the earlier releases, c and r are constants, the
statistic is the sum over users of x_u = (h_u/r, w·1[‖v_u - c‖ ≤ 0.9 r]), and x_u is a function of user u
alone. Two users inside are at most 1.8 apart, two outside at most 2, one of each at most
√(1.9² + w²): with w = √(4 - 1.9²) the sensitivity is 2 under REPLACE_ONE, what it is without the
quantile. To a user who contributes nothing the distance is at most max(1, √(0.9² + w²)): with
w = √(1 - 0.9²) the sensitivity is 1 under ADD_OR_REMOVE_ONE and REPLACE_SPECIAL. A user with a NaN or an
infinity contributes nothing, as does one who is masked out. There is no test and no failure event.

Cost: that of ``clipped_mean``, one subtraction a number, and one more norm a user with a quantile.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation

from dpsco_jax import _compensated, _sharding
from dpsco_jax._checks import (
    require,
    require_given,
    require_inside,
    require_integer,
    require_positive,
    require_probability,
    require_real_leaves,
    require_relation,
    require_tree,
    require_whole,
)
from dpsco_jax._conditions import within_floats
from dpsco_jax._numerics import wide_number
from dpsco_jax.geometry import clipping, norms
from dpsco_jax.transforms import _states
from dpsco_jax.transforms.aggregate import Aggregate
from dpsco_jax.transforms.aggregates import sum_in_chunks

_INSIDE = 0.9  # in units of the radius: who is closer counts towards the quantile
_LEAST = 2.0**-126  # of the normal numbers of float32
_RANGE = 1e6  # the radius stays within this factor of where it started


class CentredClipState(NamedTuple):
    """State of ``centred_clip``; all of it is public, a function of what was released.

    Attributes:
        centre: what the users of the next step are clipped around, in at least float32.
        radius: how far from it.
    """

    centre: Any
    radius: jax.Array


class _Statistic(NamedTuple):
    """What the noise is added to: a mean in units of the radius, and the weighted share inside."""

    mean: Any
    inside: Any


def centred_clip(
    radius: jax.typing.ArrayLike,
    num_users: jax.typing.ArrayLike,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    *,
    centre_rate: jax.typing.ArrayLike = 0.5,
    start: Any = None,
    quantile: jax.typing.ArrayLike | None = None,
    quantile_rate: jax.typing.ArrayLike = 0.5,
    microbatch_size: int | None = None,
) -> Aggregate:
    """The mean of users clipped around a centre that follows the releases; for ``privatize``.

    Updates have a leading axis of users on every leaf, ``[users, ...]``; what ``privatize`` returns has none.
    ``update`` takes ``user_mask`` as ``clipped_mean`` does. The statistic without noise is no update: it is
    in units of the radius. The standard deviation of what is released is ``noise_multiplier * sensitivity *
    radius``, with a sensitivity of ``2 / num_users`` (``1 / num_users`` but for REPLACE_ONE).

        optimizer = optax.chain(
            transforms.privatize(
                transforms.centred_clip(1.0, n, centre_rate=0.5, quantile=0.5), key, noise_multiplier=4.0
            ),
            optax.adam(1e-2),
        )
        user_gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, data)  # [n, ...]
        updates, state = optimizer.update(user_gradients, state, params)

    Args:
        radius: r, of the first step and, without a quantile, of all; may be traced. A schedule by
            ``optax.inject_hyperparams`` can make the first release a coarse one.
        num_users: the public divisor: all users N, the fixed batch size, or q·N under Poisson sampling
            with probability q. It multiplies deviations from the centre only.
        relation: which data sets are neighbours, any of the three.
        centre_rate: how far the centre moves towards each release, in [0, 1]: 1 makes it the last
            release, less an exponential average of them (momentum 1 - centre_rate), 0 leaves it at
            the start. The centre carries the noise of the releases: above twice
            ``stable_centre_rate(...)`` centre and radius drive each other up.
        start: first centre, a public pytree like the parameters, an earlier release for instance;
            zeros if None.
        quantile: share γ in (0, 1) of users to be within 0.9 radii of the centre; the radius stays as
            it is if None. Costs no privacy.
        quantile_rate: speed of the radius: its logarithm moves by this times the error of the share.
        microbatch_size: number of users clipped and added at a time; all at once if None, which is
            best on accelerators. On a CPU 32 takes about half the time and no temporary memory.
    """
    require_positive("radius", radius)
    require_positive("num_users", num_users)
    require_positive("quantile_rate", quantile_rate)
    require_probability("centre_rate", centre_rate)
    if microbatch_size is not None:
        require_integer("microbatch_size", microbatch_size, 1)
    require_given(require_inside, quantile=quantile)
    require_given(require_tree, start=start)
    bound, num_users = _distance(relation), wide_number(num_users)
    weight = math.sqrt(bound**2 - (bound - 1 + _INSIDE) ** 2)

    def init(params: Any) -> CentredClipState:
        zeros = jax.tree.map(jnp.zeros_like, _states.wide_copy(params))
        if start is not None:
            zeros = jax.tree.map(lambda z, s: z + jnp.asarray(s, z.dtype), zeros, start)
        return CentredClipState(zeros, jnp.array(radius, float))

    def current(state: CentredClipState) -> jax.Array:
        return jnp.asarray(_sharding.here(radius), float) if quantile is None else state.radius

    @_sharding.transformation
    def update(
        updates: Any,
        state: CentredClipState,
        params: Any = None,
        *,
        user_mask: jax.Array | None = None,
        in_parts: bool = False,
        **extra_args: Any,
    ) -> tuple[_Statistic, CentredClipState]:
        del params, extra_args
        require_real_leaves("updates", updates)
        reach, divisor = current(state), _sharding.here(num_users)
        room = _compensated.room(
            jax.tree.leaves(updates)[0].shape[0], microbatch_size or _compensated.GROUP
        )

        def chunk_sum(rows: Any, counted: jax.Array) -> _Statistic:
            away = jax.tree.map(lambda v, c: v.astype(c.dtype) - c[None], rows, state.centre)
            total = clipping.split_sum_of_clipped(away, room * reach, counted)
            if quantile is None:
                return _Statistic(total, ())
            # A factor of exactly 1 proves that the norm, rounding included, is within the bound.
            factors = jax.vmap(lambda row: norms.clip_factor(row, _INSIDE * reach))(away)
            return _Statistic(total, jnp.sum(counted & (factors == 1), dtype=jnp.int32))

        total = sum_in_chunks(chunk_sum, updates, user_mask, microbatch_size)
        mean = _compensated.divided(total.mean, divisor * reach, in_parts)
        if quantile is None:
            return _Statistic(mean, ()), state
        count = total.inside.astype(float)
        inside = _compensated.Split(count, (total.inside - count.astype(jnp.int32)).astype(float))
        return _Statistic(mean, _compensated.divided(inside, divisor / weight, in_parts)), state

    def finish(released: _Statistic, state: CentredClipState) -> tuple[Any, CentredClipState]:
        reach, rate = current(state), _sharding.here(centre_rate)
        moved = jax.tree.map(lambda x: x * reach.astype(x.dtype), released.mean)
        mean = jax.tree.map(jnp.add, state.centre, moved)
        centre = jax.tree.map(lambda c, m: c + jnp.asarray(rate, c.dtype) * m, state.centre, moved)
        if quantile is not None:
            start_at, share, speed = _sharding.here((radius, quantile, quantile_rate))
            error = released.inside / weight - share
            first = jnp.asarray(start_at, float)
            # Within bounds, where a float can divide by it.
            reach = jnp.clip(
                reach * jnp.exp(-jnp.asarray(speed, float) * error),
                first / _RANGE,
                first * _RANGE,
            ).astype(state.radius.dtype)
        return mean, CentredClipState(centre, reach)

    longest = _RANGE * wide_number(radius)
    sensitivity = within_floats("radius", radius, bound / num_users, longest)
    # Everything is divided by the radius, as small as it may become.
    least = wide_number(radius) / (1.0 if quantile is None else _RANGE)
    divides = least >= _LEAST
    require(
        divides,
        "radius",
        radius,
        f"at least {_LEAST:.3g}, and {_RANGE:.0e} times it with a quantile",
    )
    if isinstance(divides, jax.core.Tracer):
        sensitivity = jnp.where(divides, sensitivity, jnp.inf)
    # With the bit of the quantile a vector may be √(0.9² + w²) > 1 long.
    return Aggregate(init, update, sensitivity, relation, finish, within_half=quantile is None)


def stable_centre_rate(
    noise_multiplier: jax.typing.ArrayLike,
    num_users: jax.typing.ArrayLike,
    dim: jax.typing.ArrayLike,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> Any:
    """About half of the largest ``centre_rate`` at which the noise of the centre stays in the radius.

    With k the norm of a release's noise in radii, y = 0.81/k²: rates below min(1, 2y/(1 + y)) are
    stable, and this is y/(1 + y): near 1 where k is small, 0.81/k² where it is large
    (docs/theory/centred_clipping.md, section 3). Public numbers only; for a centre near the mean.

    Args:
        noise_multiplier: of ``privatize``.
        num_users: the divisor.
        dim: number of parameters.
        relation: the one under which a user moves the sum by 2C (``REPLACE_ONE``), or by C.
    """
    require_positive("noise_multiplier", noise_multiplier)
    require_positive("num_users", num_users)
    require_whole("dim", dim, 1)
    bound = _distance(relation)
    multiplier, users, size = (wide_number(x) for x in (noise_multiplier, num_users, dim))
    noise_square = (multiplier * bound / users) ** 2 * size
    return _INSIDE**2 / (_INSIDE**2 + noise_square)


def _distance(relation: NeighboringRelation) -> float:
    """How far apart two users can be, in radii: from each other, or from one who contributes nothing."""
    require_relation("relation", relation)
    return 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
