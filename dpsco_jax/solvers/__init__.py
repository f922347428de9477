"""Whole algorithms: ``plan(...)`` turns theory into numbers, ``solve(...)`` runs as pure JAX.

One file per algorithm, in folders by setting. A plan is a frozen dataclass and a pytree: sizes are static,
numbers (noise multiplier, step size, ...) are leaves, so that ``solve`` maps over a batch of plans and a
new number compiles nothing. ``print(plan)`` shows what will be done, what it costs and what is assumed.
"""

from dpsco_jax.solvers import (
    convex,
    element_level,
    heavy_tailed,
    item_level,
    nonconvex,
    online,
    sampling,
    user_level,
)
from dpsco_jax.solvers.solution import Solution, Status

__all__ = [
    "Solution",
    "Status",
    "convex",
    "element_level",
    "heavy_tailed",
    "item_level",
    "nonconvex",
    "online",
    "sampling",
    "user_level",
]
