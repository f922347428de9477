"""What ``auto`` knows of a problem: public numbers, and what follows from them alone.

What it computes: sizes, constants, the noise of one release of the whole budget, and the nominal problem.

Source: own.

Formal guarantee: none needed; nothing here reads data.

Cost: none.
"""

import math
from typing import NamedTuple

from dpsco_jax.privacy import Budget
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers._schedules.nominal_model import Nominal


class Setting(NamedTuple):
    """What a candidate may depend on; all of it is public.

    Attributes:
        problem: what is to be solved.
        budget: of the run.
        columns_per_row: entries of a one-hot row; ``None`` for dense features.
        passes: how often all items may be read.
        unit_noise: noise multiplier of one Gaussian release at this budget.
        intercept: which column of dense rows is the constant 1; ``None`` if none is.
        entry_bound: no entry of a dense row is larger; ``None`` if that is not known.
    """

    problem: Problem
    budget: Budget
    columns_per_row: int | None
    passes: int
    unit_noise: float
    intercept: int | None = None
    entry_bound: float | None = None

    @property
    def objective(self) -> Objective:
        """Constants, domain, ridge."""
        return self.problem.objective

    @property
    def num_users(self) -> int:
        """The number of users, n."""
        return self.problem.num_users

    @property
    def items_per_user(self) -> int:
        """Item slots of a user, m."""
        return self.problem.items_per_user

    @property
    def dim(self) -> int:
        """The number of parameters, d."""
        return self.problem.dim

    @property
    def distance(self) -> float:
        """R, from the start to a minimizer."""
        return self.problem.farthest

    @property
    def slope(self) -> float:
        """L."""
        return self.problem.lipschitz

    @property
    def nominal(self) -> Nominal:
        """The problem that predictions are made for."""
        return nominal_model.nominal(
            self.problem, self.columns_per_row, self.intercept, self.entry_bound
        )

    @property
    def typical_slope(self) -> float:
        """How long an item's gradient may be expected to be: twice that at zero, at most L."""
        if self.objective.vector_model is None:
            return self.slope
        bound = self.objective.vector_model.feature_bound
        return min(self.slope, 2 * nominal_model.at_zero(self.problem) * bound)

    @property
    def statistical(self) -> float:
        """L·R/√(nm), the error that no algorithm avoids on the population."""
        return self.slope * self.distance / math.sqrt(self.num_users * self.items_per_user)

    def enough_steps(self, most: int) -> int:
        """T at which C²/T is a quarter of the noise of all T steps, d·(2Cs/n)²; at most ``most``."""
        noise = self.dim * (2 * self.unit_noise / self.num_users) ** 2
        return max(1, min(most, math.ceil(4 / noise)))
