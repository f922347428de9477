"""dpsco_jax: accelerated optimizers for differentially private convex optimization, in JAX.

Rooms are imported when they are first asked for: ``import dpsco_jax`` and ``dpsco_jax.privacy`` is there. So
are the two values that every ``plan`` takes, ``dpsco_jax.Problem`` and ``dpsco_jax.Budget``.

An argument that is of another kind than its annotation says, or out of the range that its docstring states,
is refused by a ``ValueError`` with its name, its value and the range that works. ``Raises`` in a docstring
lists what else is refused. Values that JAX traces cannot be looked at, and are not.
"""

import importlib
from typing import Any

from dpsco_jax._infeasible import Infeasible

__version__ = "0.1.0"

_ROOMS = (
    "estimators",
    "geometry",
    "mechanisms",
    "oracles",
    "privacy",
    "problems",
    "rates",
    "solvers",
    "sweeps",
    "transforms",
)

_VALUES = {"Budget": "privacy", "Problem": "problems"}

__all__ = ["Infeasible", "__version__", *_ROOMS, *_VALUES]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _VALUES:
        return getattr(importlib.import_module(f"{__name__}.{_VALUES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
