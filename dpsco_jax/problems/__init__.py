"""What is optimized, on whose data: objectives, users, losses, synthetic and real problems.

``datasets`` needs the extra ``data``, ``parquet`` the extra of that name;
they are imported by their own names.
"""

from dpsco_jax.problems import (
    element_distance,
    elements,
    encoding,
    envelopes,
    fixtures,
    gaussian_smoothing,
    heavy_tailed,
    kmeans,
    labels,
    losses,
    nonconvex_losses,
    objective,
    partition,
    problem,
    reference,
    restricted_lipschitz,
    stored,
    streams,
    synthetic,
    synthetic_elements,
    tables,
    user_level_instances,
    users,
    value_instances,
)
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData

__all__ = [
    "ElementData",
    "Example",
    "Objective",
    "Problem",
    "StoredUsers",
    "UserData",
    "element_distance",
    "elements",
    "encoding",
    "envelopes",
    "fixtures",
    "gaussian_smoothing",
    "heavy_tailed",
    "kmeans",
    "labels",
    "losses",
    "nonconvex_losses",
    "objective",
    "partition",
    "problem",
    "reference",
    "restricted_lipschitz",
    "stored",
    "streams",
    "synthetic",
    "synthetic_elements",
    "tables",
    "user_level_instances",
    "users",
    "value_instances",
]
