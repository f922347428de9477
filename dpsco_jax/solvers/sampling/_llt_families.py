"""Draws from γ_y ∝ exp(-b·ψ(x) + ⟨x, y⟩) on a ball: by self-concordance, or of normal numbers where p = 2.

What it computes: for one ψ, b and ball what is prepared for a y, and attempts at points.

Source: docs/theory/llt_sampler.md, section 4.

Formal guarantee: exact, if an attempt counts.

Cost: as ``_self_concordant`` says; of p = 2 some normal numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from dpsco_jax import _checks
from dpsco_jax.geometry import _powers
from dpsco_jax.solvers.sampling import _self_concordant
from dpsco_jax.solvers.sampling._llt_transform import Transform
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling._self_concordant import Attempted, Prepared


class Family(NamedTuple):
    """The laws γ_y for one ψ, b and set.

    Attributes:
        prepare: ``prepare(y, start)``, what all attempts for a y share.
        attempts: ``attempts(key, prepared)``.
        blank: of the structure of what is prepared, for a point.
    """

    prepare: Callable[[Array, Array], Any]
    attempts: Callable[[Array, Any], Attempted]
    blank: Callable[[Array], Any]


def family(
    psi: Transform,
    power: ArrayLike,
    radius: ArrayLike,
    num_attempts: int,
    num_newton: Any,
    constant_time: bool,
) -> Family:
    """The laws, on the ball of a radius in ℓp.

    Args:
        psi: the transform.
        power: b.
        radius: of the ball.
        num_attempts: static.
        num_newton: steps of Newton's method, at most.
        constant_time: static; whether all of both are made.
    """
    _checks.require_instance("psi", psi, Transform)
    _checks.require_positive("power", power)
    _checks.require_positive("radius", radius)
    require_x64("llt_sampler")

    def contains(point: Array) -> Array:
        return _powers.norm(point, psi.exponent) <= radius

    def prepare(tilt: Array, start: Array) -> Prepared:
        return _self_concordant.prepare(
            psi.value, psi.local, power, tilt, start, num_newton, constant_time
        )

    def attempts(key: Array, prepared: Prepared) -> Attempted:
        return _self_concordant.attempts(
            *(key, prepared, psi.value, contains, power, 8.0 * psi.errors.value),
            *(num_attempts, constant_time),
        )

    def blank(point: Array) -> Prepared:
        dim = len(point)
        square = jnp.zeros((dim, dim))
        return Prepared(point, point, jnp.zeros(()), square, square, jnp.array(False))

    def gaussian(key: Array, tilt: Array) -> Attempted:
        # ψ is ‖x‖²/4 and a constant: N(2y/b, 2/b).
        def once(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            held, counted, index = carry
            free = jax.random.normal(jax.random.fold_in(key, index), tilt.shape, jnp.float64)
            point = 2.0 * tilt / power + jnp.sqrt(2.0 / power) * free
            return jnp.where(counted, held, point), counted | contains(point), index + 1

        none = (tilt, jnp.array(False), jnp.zeros((), jnp.int32))
        if constant_time:
            every = jax.lax.fori_loop(0, num_attempts, lambda _, carry: once(carry), none)
            return Attempted(*every)
        pending = lambda carry: ~carry[1] & (carry[2] < num_attempts)  # noqa: E731
        return Attempted(*jax.lax.while_loop(pending, once, none))

    if psi.gaussian:
        return Family(lambda tilt, start: tilt, gaussian, lambda point: point)
    return Family(prepare, attempts, blank)
