"""Refusal of bad arguments, shared by geometry and problems.

Concrete numbers are checked when a factory is called; traced values cannot be, and are not.
"""

import math
from typing import Any

import jax
import numpy as np


def require(condition: Any, name: str, value: Any, working_range: str) -> None:
    """Raise ``ValueError`` unless the condition holds; a condition on traced values is skipped."""
    if not isinstance(condition, jax.core.Tracer) and not np.all(condition):
        raise ValueError(f"{name} must be {working_range}, got {value!r}")


def require_positive(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the (concrete) value is positive and finite."""
    if not isinstance(value, jax.core.Tracer):
        good = np.all(np.asarray(value) > 0) and np.all(np.asarray(value) < math.inf)
        require(good, name, value, "in (0, inf)")


def require_nonnegative(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the (concrete) value is nonnegative and finite."""
    if not isinstance(value, jax.core.Tracer):
        good = np.all(np.asarray(value) >= 0) and np.all(np.asarray(value) < math.inf)
        require(good, name, value, "in [0, inf)")
