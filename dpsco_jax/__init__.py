"""dpsco_jax: accelerated optimizers for differentially private convex optimization, in JAX.

Rooms are imported when they are first asked for: ``import dpsco_jax`` and ``dpsco_jax.privacy`` is there. So
are the two values that every ``plan`` takes, ``dpsco_jax.Problem`` and ``dpsco_jax.Budget``.

An argument that is of another kind than its annotation says, or out of the range that its docstring states,
is refused by a ``ValueError`` with its name, its value and the range that works. ``Raises`` in a docstring
lists what else is refused. Values that JAX traces cannot be looked at, and are not.

``estimators`` needs the extra ``sklearn``, tables and figures of ``sweeps`` the extra ``sweeps``:
``pip install 'dpsco-jax[sklearn,sweeps]'``. ``dir`` and ``help`` leave out what is not there.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpsco_jax._extra import there
from dpsco_jax._infeasible import Infeasible

if TYPE_CHECKING:  # what a room imports is not for everybody
    from dpsco_jax import (
        estimators,
        geometry,
        mechanisms,
        oracles,
        privacy,
        problems,
        rates,
        solvers,
        sweeps,
        training,
        transforms,
    )
    from dpsco_jax.privacy import Budget
    from dpsco_jax.problems import Problem

__version__ = "0.1.0"

_VALUES = {"Budget": "privacy", "Problem": "problems"}

__all__ = [
    "Budget",
    "Infeasible",
    "Problem",
    "__version__",
    "estimators",
    "geometry",
    "mechanisms",
    "oracles",
    "privacy",
    "problems",
    "rates",
    "solvers",
    "sweeps",
    "training",
    "transforms",
]


def __getattr__(name: str) -> Any:
    if name in _VALUES:
        return getattr(importlib.import_module(f"{__name__}.{_VALUES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    without = set() if there("pandas", "sklearn") else {"estimators"}
    return sorted(set(__all__) - without)
