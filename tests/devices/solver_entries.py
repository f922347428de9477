"""A run of every solver on users who are spread over devices: the rows of the table of recorded releases."""

from typing import Any

import jax
import jax.numpy as jnp

from tests.solvers.private_table import ROWS, Row

TIMES = 8
# One of each family, for the normal tests.
FAMILIES = ("sgd, poisson", "langevin", "accelerated_sgd, clipped", "resque_erm")


def solver_cases() -> list[tuple[str, Any, Any, Any]]:
    """(name, run, data, start) of every row that runs without 64 bits, with eight times its users."""
    return [_case(row) for row in ROWS if not row.float64]


def _case(row: Row) -> tuple[str, Any, Any, Any]:
    larger = row._replace(num_users=TIMES * row.num_users)
    plan = larger.new_plan()

    def run(key: jax.Array, params: Any, data: Any) -> Any:
        solution = larger.solve(key, plan, data, params)
        return solution.params, solution.status, solution.privacy

    return f"`{row.name}`", run, larger.data(), jnp.asarray(larger.start)
