"""The search for the λ of a regularized Newton step, whatever way its linear systems are solved.

Source: Carmon, Hausler, Jambulapati, Jin and Sidford 2022, section 4 (their adaptive oracle).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax.solvers.ball.ball_oracles import BallAnswer

_LEAST, _MOST = 1e-10, 1e10  # of the λ that are tried


class _Trial(NamedTuple):
    """λ to try next; bracket of the smallest one that fits; the point at its upper end."""

    lam: Any
    fits: Any
    fails: Any
    point: Any
    gradient: Any
    doublings: Any
    turns: Any
    done: Any
    kept: Any


def least_regularization(
    gradient: Callable[[Any], Any],
    center: Any,
    slope: Any,
    first: Any,
    move: Callable[[Any, Any], tuple[Any, Any]],
    kept: Any,
    accuracy: float,
    lazy: bool,
) -> tuple[BallAnswer, Any]:
    """The smallest λ, within a factor of two, at which a move x - y fits: ‖x - y + ∇F(x)/λ‖ ≤ σ‖x - y‖.

    Args:
        gradient: ∇F.
        center: y.
        slope: ∇F(y).
        first: λ to try first; exponents are doubled from there, then the bracket is halved.
        move: from λ and what is kept to x - y and what is kept for the next λ.
        kept: for the first λ.
        accuracy: σ.
        lazy: whether to take the first λ as it is where it fits.

    Returns:
        The answer, whose ``calls`` are the λ that were tried, and what is kept in the end.
    """

    def turn(trial: _Trial) -> _Trial:
        lam = trial.lam
        step, kept = move(lam, trial.kept)
        point = center + step
        after = gradient(point)
        error = jnp.linalg.norm(step + after / lam)
        fit = error <= accuracy * jnp.linalg.norm(step)
        fits = jnp.where(fit, lam, trial.fits)
        fails = jnp.where(fit, trial.fails, lam)
        bracketed = (fits < jnp.inf) & (fails > 0)
        factor = jnp.exp2(jnp.exp2(trial.doublings))
        proposal = jnp.where(fit, lam / factor, lam * factor)
        done = bracketed & (fails >= fits / 2)
        if lazy:
            done |= fit & (trial.turns == 0)
        return _Trial(
            lam=jnp.where(bracketed, jnp.sqrt(fits * fails), proposal),
            fits=fits,
            fails=fails,
            point=jnp.where(fit, point, trial.point),
            gradient=jnp.where(fit, after, trial.gradient),
            doublings=trial.doublings + ~bracketed,
            turns=trial.turns + 1,
            # Outside of the range rounding decides: the last answer has to do.
            done=done | (lam < _LEAST) | (lam > _MOST),
            kept=kept,
        )

    zero = jnp.zeros((), center.dtype)
    start = _Trial(
        lam=jnp.asarray(first, center.dtype),
        fits=zero + jnp.inf,
        fails=zero,
        point=center,
        gradient=slope,
        doublings=zero,
        turns=jnp.zeros((), jnp.int32),
        done=jnp.zeros((), bool),
        kept=kept,
    )
    end = jax.lax.while_loop(lambda trial: ~trial.done, turn, start)
    found = jnp.where(end.fits < jnp.inf, end.fits, end.lam)
    return BallAnswer(end.point, found, end.turns, end.gradient), end.kept
