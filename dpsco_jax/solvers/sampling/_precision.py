"""Whether JAX computes in float64, without which no sampler here is exact enough to be private.

Formal guarantee: none.

Cost: none.
"""

import jax.numpy as jnp

__all__ = ["require_x64"]


def require_x64() -> None:
    """``ValueError`` unless ``jax_enable_x64`` is on."""
    if jnp.result_type(float) != jnp.float64:
        raise ValueError(
            "jax_enable_x64 must be True for samplers: in float32 the rounding of their acceptance tests is "
            "no small part of delta; got False. Call jax.config.update('jax_enable_x64', True), or run under "
            "jax.enable_x64(True)"
        )
