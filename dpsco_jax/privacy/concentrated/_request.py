"""What is asked of a phase, checked: the arguments of ``calibrate_concentrated`` and its refusals."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require,
    require_choice,
    require_within,
)
from dpsco_jax._infeasible import Infeasible

MOST_USERS = 2**24 - 1
"""Users of a step: a score is a float32 number whose grid has a step of 1 or less."""

TESTS = ("stream", "fresh")
SELECTIONS = ("weighted", "bernoulli")


class Request(NamedTuple):
    """What is asked of a phase; see ``calibrate_concentrated``. None stands for what is left to the search.

    Attributes:
        population: N, at least the batch.
        batch: K, at least 2.
        num_steps: T.
        epsilon: budget of the phase.
        delta: δ of that budget.
        selection: one of ``SELECTIONS``.
        relation: one of ``RELATIONS``.
        keep_level: θ.
        threshold_fraction: threshold of the score over K.
        false_halt_probability: of the whole phase, which sets the threshold where it is left to the search.
        shares: of ε for the tests; what is tried.
    """

    population: int
    batch: int
    num_steps: int
    epsilon: float
    delta: float
    selection: str
    relation: NeighboringRelation
    keep_level: float | None
    threshold_fraction: float | None
    false_halt_probability: float
    shares: Sequence[float] | None

    @property
    def rate(self) -> float:
        """Q = K/N."""
        return self.batch / self.population


def number(name: str, value: float | str, lower: float) -> float | None:
    """The number, which must be in (lower, 1); None for "auto"."""
    if isinstance(value, str):
        require(value == "auto", name, value, "a number or 'auto'")
        return None
    require_within(name, value, lower, 1.0, open_low=True, open_high=True)
    return float(value)


def shares(share: float | str) -> tuple[float, ...] | None:
    """The share of ε for the tests, alone; None for "auto"."""
    found = number("test_share", share, 0.0)
    return None if found is None else (found,)


def kinds(test: str) -> tuple[str, ...]:
    """The kinds of test to choose from."""
    return TESTS if require_choice("test", test, ("auto", *TESTS)) == "auto" else (test,)


def is_paper(constants: str) -> bool:
    """Whether the paper's constants are asked for."""
    return require_choice("constants", constants, ("tight", "paper")) == "paper"


def too_few(request: Request, is_feasible: Callable[[Request], bool]) -> Infeasible:
    """Says how many users are needed, where there are too few."""
    whole = request.batch == request.population

    def enough(size: int) -> bool:
        users = size if whole else max(request.population, size)
        return is_feasible(request._replace(population=users, batch=size))

    low, high = request.batch, 2 * request.batch
    while not enough(high):
        low, high = high, 2 * high
        if low > MOST_USERS:
            break
    while high - low > 1 and low <= MOST_USERS:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    if high > MOST_USERS:
        return Infeasible(
            "this budget, threshold and kind of test leave no room for any number of users"
        )
    name = "num_users" if whole else "batch_size"
    return Infeasible(
        f"{name} must be at least {high} for this budget and threshold, got {request.batch}",
        {name: high},
    )
