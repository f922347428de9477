"""What is asked of a phase, checked: the arguments of ``calibrate_concentrated`` and its refusals.

Source: own.

Formal guarantee: none.

Cost: none; saying how many users are needed takes about thirty looks at the search grid.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, SupportsFloat

from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require,
    require_choice,
    require_integer,
    require_real,
    require_relation,
    require_within,
)
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.privacy.concentrated._mean_sensitivity import RELATIONS

TESTS = ("stream", "fresh")
SELECTIONS = ("weighted", "bernoulli")


class Problem(NamedTuple):
    """What is asked for; see ``calibrate_concentrated``."""

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


def problem(
    users: int,
    batch: int,
    num_steps: int,
    budget: tuple[SupportsFloat, SupportsFloat],
    selection: str,
    relation: NeighboringRelation,
    choices: tuple[float | str, float | str, float | str],
    false_halt_probability: SupportsFloat,
) -> Problem:
    """The arguments of ``calibrate_concentrated`` in one piece; ``ValueError`` for bad ones."""
    share, keep_level, threshold = choices
    users = require_integer("num_users", users, 2)
    batch = require_integer("batch_size", batch, 2, users)
    num_steps = require_integer("num_steps", num_steps, 1)
    require_relation("relation", relation, RELATIONS)
    return Problem(
        population=users,
        batch=batch,
        num_steps=num_steps,
        epsilon=require_real("epsilon", budget[0], 0.0),
        delta=require_real("delta", budget[1], 0.0, 1.0),
        selection=require_choice("selection", selection, SELECTIONS),
        relation=relation,
        keep_level=_number("keep_level", keep_level, 0.5),
        threshold_fraction=_number("threshold", threshold, 0.0),
        false_halt_probability=require_real(
            "false_halt_probability", false_halt_probability, 0.0, 1.0
        ),
        shares=None
        if isinstance(share, str) and share == "auto"
        else (_number("test_share", share, 0.0) or 0.0,),
    )


def _number(name: str, value: float | str, lower: float) -> float | None:
    """The number, which must be in (lower, 1); None for "auto"."""
    if isinstance(value, str):
        require(value == "auto", name, value, "a number or 'auto'")
        return None
    require_within(name, value, lower, 1.0, open_low=True, open_high=True)
    return float(value)


def kinds(test: str) -> tuple[str, ...]:
    """The kinds of test to choose from."""
    return TESTS if require_choice("test", test, ("auto", *TESTS)) == "auto" else (test,)


def is_paper(constants: str) -> bool:
    """Whether the paper's constants are asked for."""
    return require_choice("constants", constants, ("tight", "paper")) == "paper"


def too_few(problem: Problem, is_feasible: Callable[[Problem], bool]) -> Infeasible:
    """Says how many users are needed, where there are too few."""
    whole = problem.batch == problem.population

    def enough(size: int) -> bool:
        users = size if whole else max(problem.population, size)
        return is_feasible(problem._replace(population=users, batch=size))

    low, high = problem.batch, 2 * problem.batch
    while not enough(high):
        low, high = high, 2 * high
        if high > 2**34:
            return Infeasible(
                "this budget, threshold and kind of test leave no room for any number of users"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    name = "num_users" if whole else "batch_size"
    return Infeasible(
        f"{name} must be at least {high} for this budget and threshold, got {problem.batch}",
        {name: high},
    )
