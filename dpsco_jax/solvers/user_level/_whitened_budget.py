"""How whitened SGD divides its budget among its releases.

What it computes: the noise multiplier of each kind of release, from the shares of those that are made and how
often each is; and whether second-moment matrices can show anything at the sizes of a problem.

Source: own. The shares were chosen on the tables to design with of ``experiments/studies/table_solvers.md``.

Formal guarantee: Gaussian releases compose to one, 1/σ² adds up: whatever the shares, as long as they sum to
one all releases together are as private as one of the multiplier that is divided.

Cost: none.
"""

import math

from dpsco_jax import _checks
from dpsco_jax.oracles import row_moments
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _planning

_SHARES = {
    "start": 0.02,
    "means": 0.02,
    "squares": 0.02,
    "matrix": 0.14,
    "check": 0.02,
    "radius": 0.03,
    "warm": 0.15,
    "covariance": 0.06,
}
_MATRICES = 2  # of second moments, and as many for a covariance


def shows(problem: Problem, columns: int, whole: float, matrix: bool | None) -> bool:
    """Whether matrices of second moments are to be released.

    Args:
        problem: for its sizes.
        columns: of a row.
        whole: the multiplier of one release that takes all of the budget.
        matrix: as asked; ``None`` where it follows from the sizes.

    Raises:
        ValueError: if they are asked for and users have too many items for them.
    """
    covered = row_moments.rounding_covered(problem.items_per_user, columns)
    if matrix is not None:
        _checks.require_flag("matrix", matrix)
        most = f"False for {problem.items_per_user} items a user: rounding of their sums is not covered"
        _checks.require(covered or not matrix, "matrix", matrix, most)
        return matrix
    # Eigenvalues within the edge of the noise cannot be told apart; all of them sum to about their number.
    multiplier = whole * math.sqrt(_MATRICES / _SHARES["matrix"])
    edge = 2.0 * math.sqrt(columns) * columns * multiplier / problem.num_users
    return covered and edge < columns


def multipliers(
    whole: float, counts: dict[str, int], *, intercept: bool, matrix: bool, covariance: bool
) -> dict[str, float | None]:
    """The multiplier of each kind of release, ``None`` where it is not made; "noise" has what is left.

    Args:
        whole: the multiplier of one release that takes all of the budget.
        counts: how often "start", "radius", "warm" and "noise" are released.
        intercept: whether columns are centred.
        matrix: whether matrices of second moments are released.
        covariance: whether that of the result is.
    """
    left_out = [] if intercept else ["start", "means"]
    left_out += [] if matrix else ["matrix", "check"]
    left_out += [] if covariance else ["covariance"]
    shares = {name: share for name, share in _SHARES.items() if name not in left_out}
    shares["noise"] = 1.0 - sum(shares.values())
    often = counts | {"matrix": _MATRICES, "covariance": _MATRICES}
    made = {
        name: _planning.float32_above(whole * math.sqrt(often.get(name, 1) / share))
        for name, share in shares.items()
    }
    return made | dict.fromkeys(left_out)
