"""Calls that work, by rooms: values and kinds where the common vocabulary of names is not enough."""

from collections.abc import Callable
from typing import Any

from tests.support.good_calls import (
    estimators,
    geometry,
    mechanisms,
    online,
    oracles,
    privacy,
    problems,
    rates,
    runs,
    sampling,
    solvers,
    sweeps,
    training,
    transforms,
)

_ROOMS = (
    *(estimators, geometry, mechanisms, online, oracles, privacy, problems),
    *(rates, runs, sampling, solvers, sweeps, training, transforms),
)

GOOD: dict[str, dict[str, Any]] = {
    path: call for room in _ROOMS for path, call in room.GOOD.items()
}
"""By function: argument to a value, a kind, or both."""

EXEMPT: dict[tuple[str, str], str] = {
    key: why for room in _ROOMS for key, why in room.EXEMPT.items()
}
"""By function and argument ("*": all of them): why bad values are not tried."""

SCHEMES: dict[str, Callable[..., Any]] = privacy.SCHEMES
"""What is tried beside the functions: methods that take what their object was made of."""
