"""The check that a key is a typed one."""

from typing import Any

import jax
import jax.numpy as jnp


def require_key(key: Any) -> None:
    """Raise ``ValueError`` unless the value is a single typed key (``jax.random.key``)."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key) or key.shape != ():
        raise ValueError(f"key must be a single typed key (jax.random.key), got {key!r}")
