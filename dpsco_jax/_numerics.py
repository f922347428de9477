"""Arithmetic shared by the curves: which array library computes, in what precision, on what ranges.

Python and NumPy numbers are computed at once, by NumPy, in float64: this is what plans, certificates
and calibrations on the host use. JAX arrays (also tracers inside ``jit``, ``vmap``, ``grad`` and
``scan``) are computed by JAX in their own floating dtype. One body of code serves both.
"""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import jax.typing
import numpy as np
import scipy.special

Array = jax.Array | np.ndarray
Scalar = jax.typing.ArrayLike


def array_namespace(*values: Any) -> ModuleType:
    """``jax.numpy`` if any of the values is a JAX array or a tracer, else ``numpy``."""
    return jnp if any(isinstance(v, jax.Array) for v in jax.tree.leaves(values)) else np


def special_namespace(xp: ModuleType) -> ModuleType:
    """The special functions that go with an array namespace."""
    return scipy.special if xp is np else jax.scipy.special


def as_floats(*values: Any) -> tuple[ModuleType, list[Any]]:
    """The namespace of the values, and the values as floating arrays of one dtype in it.

    The dtype is float64 on the host; in JAX the widest floating dtype among the values, at least float32.
    """
    xp = array_namespace(*values)
    if xp is np:
        return xp, [np.asarray(v, np.float64) for v in values]
    dtype = jnp.promote_types(jnp.result_type(*values, jnp.float32), jnp.float32)
    return xp, [jnp.asarray(v, dtype) for v in values]


def at_least_float32(dtype: Any) -> Any:
    """The floating dtype, or float32 where it is narrower: JAX itself widens none of 8 bits."""
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.dtype(jnp.float32)


def wide_number(value: Any) -> Any:
    """A number to compute with: one of NumPy in float64, an array of JAX in at least float32.

    What is formed of a narrow one is rounded as it is, and a sensitivity may be below the true one by that:
    2/115 by a third of a per cent in bfloat16. In uint8 twice 200 is 144.

    Args:
        value: an array of one number, which may be traced, or a number of Python, which stays what it is.
    """
    return as_floats(value)[1][0] if hasattr(value, "dtype") else value


def known_zero(value: Any) -> np.ndarray:
    """Which numbers are zero for certain: none in JAX, which reads what is below its normal ones as zero."""
    return np.asarray(not isinstance(value, jax.Array) and np.equal(value, 0), bool)


def round_up(value: Any, ulps: float) -> Any:
    """A nonnegative value moved up by ``ulps`` units of its own relative precision.

    Privacy parameters are reported on the safe side of what floating-point arithmetic did to them.
    """
    xp = array_namespace(value)
    eps = xp.finfo(value.dtype).eps
    return value * (1.0 + ulps * eps)


def exp_remainder(xp: ModuleType, y: Any) -> Any:
    """``exp(y) - 1 - y`` for y at most about 80, without cancellation near zero."""
    small = xp.abs(y) < 0.5
    z = xp.where(small, y, 0.0)
    series = xp.ones_like(z)
    for k in range(15, 2, -1):
        series = 1.0 + z / k * series
    far = xp.where(small, 1.0, y)
    return xp.where(small, 0.5 * z * z * series, xp.expm1(far) - far)


def float32_above(value: float) -> float:
    """A float32 number above a positive value by 2 to 4 units in the last place."""
    return float(np.float32(value * (1 + 3 * 2.0**-23)))
