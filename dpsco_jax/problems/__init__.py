"""What is optimized, on whose data: objectives, users, losses, synthetic and real problems.

``dpsco_jax.problems.datasets`` needs the extra ``data`` and is imported by its own name.
"""

from dpsco_jax.problems import (
    encoding,
    envelopes,
    gaussian_smoothing,
    labels,
    losses,
    objective,
    problem,
    reference,
    restricted_lipschitz,
    synthetic,
    tables,
    users,
    value_instances,
)
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData

__all__ = [
    "Example",
    "Objective",
    "Problem",
    "UserData",
    "encoding",
    "envelopes",
    "gaussian_smoothing",
    "labels",
    "losses",
    "objective",
    "problem",
    "reference",
    "restricted_lipschitz",
    "synthetic",
    "tables",
    "users",
    "value_instances",
]
