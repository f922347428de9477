"""Samplers need float64: a rounding that a test sees once is there in each of millions of tests."""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks, _float64
from dpsco_jax._float64 import require_x64 as require_x64


def float64_vector(name: str, value: Any) -> jax.Array:
    """The value as a vector of float64, not on a TPU; ``ValueError`` for other shapes and fewer bits."""
    _checks.require_number(name, value)
    kind = jnp.result_type(value)
    _checks.require(kind == jnp.float64, name, kind, "of float64")
    shape = jnp.shape(value)
    _checks.require(len(shape) == 1 and shape[0] >= 1, name, shape, "a vector [dim]")
    return _float64.exact("a sampler", jnp.asarray(value))
