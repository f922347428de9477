"""dpsco_jax: accelerated optimizers for differentially private convex optimization, in JAX.

Rooms are imported when they are first asked for: ``import dpsco_jax`` and ``dpsco_jax.privacy`` is there.
"""

import importlib
from types import ModuleType

from dpsco_jax._infeasible import Infeasible

__version__ = "0.1.0"

_ROOMS = (
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

__all__ = ["Infeasible", "__version__", *_ROOMS]


def __getattr__(name: str) -> ModuleType:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
