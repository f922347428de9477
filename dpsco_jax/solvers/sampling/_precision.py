"""Samplers need float64: a rounding that a test sees once is there in each of millions of tests."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _float64


def require_x64(name: str) -> None:
    """``ValueError`` unless float64 is switched on, for what the name says.

    Args:
        name: of what needs it, for the message.
    """
    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise ValueError(
            f"jax_enable_x64 must be True for {name}, which is exact up to roundings of float64, got "
            "False. Call jax.config.update('jax_enable_x64', True), or run under jax.enable_x64(True)"
        )


def float64_vector(name: str, value: Any) -> jax.Array:
    """The value as a vector of float64, not on a TPU; ``ValueError`` for other shapes and fewer bits."""
    _checks.require_number(name, value)
    kind = jnp.result_type(value)
    _checks.require(kind == jnp.float64, name, kind, "of float64")
    shape = jnp.shape(value)
    _checks.require(len(shape) == 1 and shape[0] >= 1, name, shape, "a vector [dim]")
    return _float64.exact("a sampler", jnp.asarray(value))
