"""The key of a fit: from the operating system, or from a seed that stays secret.

Source: ``docs/pitfalls.md``, "A key that is known or used twice".

Formal guarantee: none. Whoever knows the seed knows the noise, and a seed that can be guessed is known.
"""

import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax._checks import require_integer


def fresh(random_state: Any) -> jax.Array:
    """A typed key.

    Args:
        random_state: ``None`` for 64 bits from the operating system, as many as a key has; or an integer of
            at least 0, of any length, for a fit that can be repeated.

    Raises:
        ValueError: if it is no such number. A ``RandomState`` is none: its state can be read by others.
    """
    if random_state is None:
        words = [secrets.randbits(32) for _ in range(2)]
    else:
        # `jax.random.key` reads 32 bits of an integer unless x64 is enabled.
        seed = require_integer("random_state", random_state, 0)
        words = np.random.SeedSequence(seed).generate_state(2, np.uint32).tolist()
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl="threefry2x32")
