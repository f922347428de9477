"""The Monteiro-Svaiter-Newton step without a Hessian: by gradients and products with Hessians alone.

What it computes: what ``newton_ball_oracles.monteiro_svaiter`` does, the smallest λ, within a factor of two,
at which a regularized Newton step from y satisfies ‖x - y + ∇F(x)/λ‖ ≤ σ‖x - y‖. The step is the best one of
the Krylov space of ∇F(y) under ∇²F(y), grown by one product at a time until its linear system is solved to
0.9·σλ‖x - y‖. All λ share the space, since ∇²F(y) + λ has that of ∇²F(y): another λ costs a gradient and
the products by which it needs a larger one.

Source: Carmon, Hausler, Jambulapati, Jin and Sidford 2022, section 4 (adaptive oracle of first order, by
conjugate residuals started anew for each λ); Lanczos 1950.

Formal guarantee: the condition on x is tested on the gradient there, so that an answer with a finite
multiplier satisfies it however well the systems were solved.

Cost: a gradient at y, one for each λ tried, and the products; ``max_products``·dim numbers of memory.

Example:
    >>> import jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import krylov_ball_oracles
    >>> oracle = krylov_ball_oracles.monteiro_svaiter(lambda x: jnp.array([1.0, 4.0]) * x - 4.0)
    >>> answer = oracle(None, jnp.zeros(2), 1.0)
    >>> float(answer.multiplier) < 1e-9, [int(count) for count in answer.calls[:1]]
    (True, [1])
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Flag, Function, checked
from dpsco_jax.solvers.ball._regularized_step import least_regularization
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle

_SHARE = 0.9  # of the accuracy that the linear system may take; at 1/2 it took up to half as many calls more


class _Space(NamedTuple):
    """An orthonormal basis, ``[max + 1, dim]`` with zeros for what is not there, and H in it: tridiagonal."""

    basis: Any
    diagonal: Any
    beside: Any
    size: Any


@checked
def monteiro_svaiter(
    gradient: Function,
    accuracy: float = 0.5,
    lazy: Flag = False,
    max_products: Count = 100,
) -> BallOracle:
    """One regularized Newton step in a Krylov space, with a λ found by doubling exponents, then by bisection.

    The λ that the oracle is asked at is the first one tried; its answer's multiplier is the one found.

    Args:
        gradient: ∇F, flat to flat; products with its derivative are taken.
        accuracy: σ in (0, 1).
        lazy: whether to take the first λ as it is where it fits.
        max_products: of one call, at most; λ grows where they do not suffice.

    Returns:
        An oracle that counts problems, gradients and products. Its answers hold ∇F.

    Raises:
        ValueError: if σ is not in (0, 1).
    """
    _checks.require_within("accuracy", accuracy, 0.0, 1.0, open_low=True, open_high=True)

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        slope, product = jax.linearize(gradient, center)
        most = min(max_products, len(center))
        steepness = jnp.linalg.norm(slope)
        zeros = jnp.zeros(most, center.dtype)
        first = slope / jnp.where(steepness > 0, steepness, 1.0)
        empty = _Space(
            jnp.zeros((most + 1, len(center)), center.dtype).at[0].set(first),
            zeros,
            zeros,
            jnp.zeros((), jnp.int32),
        )

        def solved(space: _Space, lam: Any) -> tuple[Any, Any]:
            """The step in the space, and the length of its system's residual."""
            there = jnp.arange(most) < space.size
            inner = jnp.where(there[1:], space.beside[:-1], 0.0)
            middle = jnp.where(there, space.diagonal + lam, 1.0)
            below, above = jnp.pad(inner, (1, 0)), jnp.pad(inner, (0, 1))
            right = zeros.at[0].set(-steepness)[:, None]
            parts = jax.lax.linalg.tridiagonal_solve(below, middle, above, right)[:, 0]
            last = jnp.maximum(space.size - 1, 0)
            left = jnp.where(space.size > 0, space.beside[last] * jnp.abs(parts[last]), jnp.inf)
            return jnp.where(there, parts, 0.0), left

        def grown(space: _Space) -> _Space:
            n, basis = space.size, space.basis
            image = product(basis[n])
            height = jnp.vdot(image, basis[n])
            # Twice against all: rounding would bring back what has been taken away.
            for _ in range(2):
                image = image - (basis @ image) @ basis
            length = jnp.linalg.norm(image)
            # What rounding leaves of nothing is no direction: the space is whole.
            whole = length <= 1e2 * jnp.finfo(center.dtype).eps * jnp.abs(height)
            length = jnp.where(whole, 0.0, length)
            following = image / jnp.where(whole, 1.0, length)
            return _Space(
                basis.at[n + 1].set(jnp.where(whole, 0.0, following)),
                space.diagonal.at[n].set(jnp.maximum(height, 0.0)),
                space.beside.at[n].set(length),
                n + 1,
            )

        def move(lam: Any, space: _Space) -> tuple[Any, _Space]:
            def rough(space: _Space) -> Any:
                parts, left = solved(space, lam)
                close = left <= _SHARE * accuracy * lam * jnp.linalg.norm(parts)
                return ~close & (space.size < most) & (steepness > 0)

            space = jax.lax.while_loop(rough, grown, space)
            return solved(space, lam)[0] @ space.basis[:-1], space

        answer, space = least_regularization(
            gradient, center, slope, regularization, move, empty, accuracy, lazy
        )
        counts = [jnp.ones((), jnp.int32), answer.calls + 1, space.size]
        return answer._replace(calls=jnp.stack(counts))

    return oracle
