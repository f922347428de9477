"""What is public of a problem before any data are read: the objective, the sizes, and how far to go.

What it holds: every ``plan`` of a solver takes a ``Problem`` first; its numbers are
checked here, once, and a plan for other sizes is that of ``dataclasses.replace(problem, num_users=...)``.

Source: the setting of stochastic convex optimization over users, thesis chapter 1, section 1.3.

Formal guarantee: no field may come from users' data. Under REPLACE_ONE the number of users is
public. Under ADD_OR_REMOVE_ONE the number of places is: data always have ``num_users`` of them, a user who is
absent is a place whose mask is False throughout, and how many places are taken stays secret.
"""

import dataclasses
import math

import numpy as np

from dpsco_jax import _checks
from dpsco_jax.problems.objective import CLIPPED_SUMS, Objective

__all__ = ["Problem"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """An objective, the sizes of the data, and a bound on the distance to go. All of it is public.

    Attributes:
        objective: the loss, with its constants, domain and ridge.
        num_users: n ≥ 1, length of the data's axis of users.
        dim: d ≥ 1, number of parameters.
        items_per_user: m ≥ 1, item slots of a user; for users with fewer or more the number that is typical,
            unless the solver says that it must be exact.
        distance: R > 0, bound on the Euclidean distance from the start to a minimizer. If ``None``, solvers
            take the diameter of the domain.

    Example:
        >>> from dpsco_jax import geometry, problems
        >>> loss = problems.losses.logistic(feature_bound=1.0, domain=geometry.ball(10.0))
        >>> problems.Problem(loss, num_users=1000, dim=5).farthest
        20.0
    """

    objective: Objective
    _: dataclasses.KW_ONLY
    num_users: int
    dim: int
    items_per_user: int = 1
    distance: float | None = None

    def __post_init__(self) -> None:
        _checks.require_instance("objective", self.objective, Objective)
        way = self.objective.clipped_sums
        known = isinstance(way, str) and way in CLIPPED_SUMS
        wanted = f"one of {', '.join(CLIPPED_SUMS)}"
        _checks.require(known, "objective.clipped_sums", way, wanted)
        for size in ("num_users", "dim", "items_per_user"):
            object.__setattr__(self, size, _checks.require_count(size, getattr(self, size)))
        if self.distance is not None:
            distance = _checks.require_real("distance", self.distance, 0)
            object.__setattr__(self, "distance", distance)

    @property
    def lipschitz(self) -> float:
        """L of the loss of an item."""
        return float(self.objective.lipschitz)

    @property
    def diameter(self) -> float:
        """The diameter of the domain; ``inf`` for one without end."""
        return float(np.asarray(self.objective.domain.diameter))

    @property
    def slope(self) -> float:
        """Lipschitz constant of loss and ridge together on the domain; ``inf`` where none is known."""
        return self.objective.slope

    @property
    def farthest(self) -> float:
        """R: the distance, or the diameter of the domain where none is given, which may be ``inf``."""
        return self.diameter if self.distance is None else self.distance

    def require_distance(self) -> float:
        """R, where a plan needs it to be finite.

        Raises:
            ValueError: if no distance is given and the domain has no end.
        """
        if math.isinf(self.farthest):
            raise ValueError(
                "problem.distance must be in (0, inf) where the domain is unbounded, a bound on the distance "
                "from the start to a minimizer; got None"
            )
        return self.farthest
