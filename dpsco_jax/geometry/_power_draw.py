"""Draws of w with density proportional to exp(tw - |w|^q), by rejection.

What it computes: with m = sign(t)·(|t|/q)^(1/(q-1)), the mode, and M the density there, every log-concave
density lies below M·min(1, exp(1 - M|w - m|)) (Devroye 1986, section VII.2.3): half of the proposals are
uniform within 1/M of m, the others exponential beyond. A trial is accepted with probability 1/4.

Source: T section 5.5.3 asks for these draws and leaves them to general samplers.

Formal guarantee: exact in real arithmetic: an M that is too small leaves the envelope one, and M is taken
1e-9 below its table. All of 256 trials fail with probability (3/4)^256 < 1.1e-32; the last proposal is
returned then.

Cost: 4 trials on average, a few dozen for the last of many. How many depends on chance alone, not on t.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax.geometry._power_laplace import log_power_laplace

TRIALS = 256
FAILURE = 0.75**TRIALS


def draw(key: Array, t: Float[Array, "*shape"], q: float) -> Float[Array, "*shape"]:
    """One w for each t.

    Args:
        key: a typed key.
        t: float64, of any shape.
        q: at least 2, a Python number.
    """
    size = jnp.abs(t)
    mode = (size / q) ** (1.0 / (q - 1.0))
    height = (1.0 - 1e-9) * jnp.exp((q - 1.0) * mode**q - log_power_laplace(t, q))

    def pending(carry: tuple[Array, Array, Array]) -> Array:
        return ~jnp.all(carry[1]) & (carry[2] < TRIALS)

    def trial(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        kept, done, count = carry
        place, coin = jax.random.split(jax.random.fold_in(key, count))
        flat, far = jax.random.uniform(place, (2, *t.shape), jnp.float64)
        signed = 2.0 * flat - 1.0
        # In units of 1/M: uniform in [-2, 2]; what is beyond 1 becomes an exponential tail there.
        inside = jnp.abs(signed) < 0.5
        tail = 1.0 - jnp.log1p(-far)
        offset = jnp.where(inside, 2.0 * signed, jnp.sign(signed) * tail)
        w = mode + offset / height
        lowered = jnp.where(inside, 0.0, 1.0 - tail)
        threshold = jnp.log1p(-jax.random.uniform(coin, t.shape, jnp.float64))
        accepted = threshold < _fall(w, mode, size, q) - lowered
        kept = jnp.where(done, kept, w)
        return kept, done | accepted, count + 1

    none = (jnp.zeros_like(t), jnp.zeros(t.shape, bool), jnp.zeros((), jnp.int32))
    found = jax.lax.while_loop(pending, trial, none)[0]
    return jnp.where(t < 0.0, -found, found)


def _fall(w: Array, mode: Array, size: Array, q: float) -> Array:
    """The logarithm of the density at w over that at the mode, without cancellation near it."""
    safe = jnp.where(mode > 0.0, mode, 1.0)
    ratio = (w - mode) / safe
    near = (mode > 0.0) & (jnp.abs(ratio) < 0.5)
    small = jnp.where(near, ratio, 0.0)
    close = mode**q * (q * small - jnp.expm1(q * jnp.log1p(small)))
    away = size * (w - mode) - jnp.abs(w) ** q + mode**q
    return jnp.where(near, close, away)
