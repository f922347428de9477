"""Problems on which ``auto-choice`` compares what ``auto`` predicts with what its candidates reach.

What it computes: for each name the data, the objective, the minimizer, and what is public: sizes, distance,
budget, the form of the rows. Synthetic ones differ in sizes, noise, loss and in how unlike columns and users
are; four are the tables to design with. Some were looked at while the predictions were made (``"fit"``), some
were kept to report, of which three were looked at in the end; nine are ``"fresh"``, written down when the
predictions were nearly done, or, with a rare class, after what was done for these (``auto_choice.md``).

Source: own; ``problems.synthetic`` and ``table_tasks``.

Formal guarantee: none; these are measurements. The tables to report are not read.

Cost: up to some seconds for a problem, once per process.

Example:
    >>> from experiments.studies import auto_problems
    >>> auto_problems.load("few users").problem.num_users
    300
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special

from dpsco_jax import Budget, Problem
from dpsco_jax._checks import require_choice
from dpsco_jax.problems import losses, reference, synthetic
from dpsco_jax.problems.objective import Example, Objective, OneHot
from dpsco_jax.problems.users import UserData
from experiments.studies import table_methods
from experiments.studies.table_tasks import load_optimum, load_table

DELTA = 1e-5
_RIDGE = 1e-4


class Case(NamedTuple):
    """A problem to choose a solver for.

    Attributes:
        problem: all that a plan may know of it, but for ``form``.
        budget: (ε, δ).
        form: what ``auto.plan`` is told of the rows: columns_per_row, intercept, entry_bound.
        data: of all users.
        minimizer: of the objective on these data, ``[dim]``.
    """

    problem: Problem
    budget: Budget
    form: dict[str, Any]
    data: UserData
    minimizer: np.ndarray


@dataclasses.dataclass(frozen=True)
class Entry:
    """How a problem is made.

    Attributes:
        part: ``"fit"``, ``"report"`` or ``"fresh"``.
        epsilon: of its budget.
        make: gives the case, for an ε.
    """

    part: str
    epsilon: float
    make: Callable[[float], Case]


@functools.cache
def load(name: str) -> Case:
    """A problem by name; kept for the process.

    Args:
        name: one of ``NAMES``.

    Raises:
        ValueError: if the name is unknown.
    """
    require_choice("name", name, NAMES)
    entry = ENTRIES[name]
    return entry.make(entry.epsilon)


def _of_instance(made: synthetic.Instance, distance: float, epsilon: float) -> Case:
    return Case(made.problem(distance), Budget(epsilon, DELTA), {}, made.data, made.minimizer)


def _library(
    generator: Callable[..., synthetic.Instance], distance: float, seed: int, *sizes: int, **dials: Any
) -> Callable[[float], Case]:  # fmt: skip
    """A problem of ``problems.synthetic``."""

    def make(epsilon: float) -> Case:
        return _of_instance(generator(jax.random.key(seed), *sizes, **dials), distance, epsilon)

    return make


def _table(name: str) -> Callable[[float], Case]:
    """A table to design with, as ``table-solvers`` has it."""

    def make(epsilon: float) -> Case:
        task = load_table(name)
        form = {"intercept": 0, "entry_bound": 1.0}
        public = table_methods.public_problem(task)
        return Case(public, Budget(epsilon, DELTA), form, task.train, load_optimum(name).params)

    return make


def _rows(
    kind: str, seed: int, num_users: int, items: int, numbers: int, levels: int = 0,
    tail: float = math.inf, alike: float = 0.5, bends: float = 1.0, ridge: float = _RIDGE,
    share: float | None = None,
) -> Callable[[float], Case]:  # fmt: skip
    """Rows as tables have them: a constant 1, numbers in [-1, 1] off the middle, and levels.

    Numbers have means and deviations of their own and are correlated. ``levels`` is the number of columns
    of one factor; its levels differ in how frequent they are. ``tail`` is the number of degrees of freedom of
    what makes the numbers, ``alike`` the share of their variance that the items of a user have in common,
    ``share`` the probability of the class 1 in the mean over rows, where it is not left to chance.
    """

    def make(epsilon: float) -> Case:
        rng = np.random.default_rng(seed)
        shape, dim = (num_users, items), 1 + numbers + levels
        mixing = np.eye(numbers) + 0.5 * rng.normal(size=(numbers, numbers)) / math.sqrt(numbers)
        own = rng.normal(size=(num_users, 1, numbers))
        each = rng.normal(size=(*shape, numbers))
        z = (math.sqrt(alike) * own + math.sqrt(1 - alike) * each) @ mixing
        if math.isfinite(tail):
            z /= np.sqrt(rng.chisquare(tail, size=(*shape, 1)) / tail)
        means = rng.uniform(-0.7, 0.7, numbers)
        spread = np.exp(rng.uniform(math.log(0.05), math.log(0.5), numbers))
        columns = [np.ones((*shape, 1)), np.clip(means + spread * z, -1, 1)]
        if levels:
            shares = 1 / np.arange(1, levels + 1)
            drawn = rng.choice(levels, size=shape, p=shares / shares.sum())
            columns.append(np.eye(levels)[drawn])
        x = np.concatenate(columns, axis=-1)
        slope = rng.normal(size=dim) * bends / math.sqrt(dim)
        slope[1 : 1 + numbers] /= 2 * spread
        margin = x @ slope - 0.5 * bends
        margin += 0.3 * rng.normal(size=(num_users, 1))
        if share is not None:
            margin += optimize.brentq(lambda b: special.expit(margin + b).mean() - share, -40, 40)
        bound = math.sqrt(2.0 if levels and not numbers else dim)
        objective, label = _labelled(kind, rng, margin, bound, ridge)
        data = UserData(Example(jnp.asarray(x, jnp.float32), jnp.asarray(label, jnp.float32)))
        minimizer = reference.solve(objective, data, dim).params
        problem = Problem(
            objective, num_users=num_users, items_per_user=items, dim=dim, distance=math.sqrt(dim)
        )  # fmt: skip
        form = {"intercept": 0, "entry_bound": 1.0}
        return Case(problem, Budget(epsilon, DELTA), form, data, minimizer)

    return make


def _one_hot(
    seed: int, num_users: int, items: int, sizes: tuple[int, ...], skew: float
) -> Callable[[float], Case]:
    """Sparse rows with one column of each field; level k of a field has frequency k^(-skew)."""

    def make(epsilon: float) -> Case:
        rng = np.random.default_rng(seed)
        columns = []
        for size, first in zip(sizes, np.cumsum((0, *sizes[:-1])), strict=True):
            shares = np.arange(1, size + 1) ** -skew
            shape = (num_users, items)
            columns.append(first + rng.choice(size, size=shape, p=shares / shares.sum()))
        x, dim, width = np.stack(columns, axis=-1), sum(sizes), len(sizes)
        slope = rng.normal(size=dim)
        margin = slope[x].sum(axis=-1) / math.sqrt(width) + 0.5 * rng.normal(size=(num_users, 1))
        objective, label = _labelled("logistic", rng, margin, 1.0, _RIDGE)
        data = UserData(Example(OneHot(jnp.asarray(x, jnp.int32)), jnp.asarray(label, jnp.float32)))
        minimizer = reference.solve(objective, data, dim).params
        problem = Problem(
            objective, num_users=num_users, items_per_user=items, dim=dim,
            distance=1.5 * math.sqrt(dim),
        )  # fmt: skip
        return Case(problem, Budget(epsilon, DELTA), {"columns_per_row": width}, data, minimizer)

    return make


def _labelled(
    kind: str, rng: np.random.Generator, margin: np.ndarray, bound: float, ridge: float
) -> tuple[Objective, np.ndarray]:
    """The objective of a kind, and labels for the margins."""
    if kind == "logistic":
        labels = rng.random(margin.shape) < 1 / (1 + np.exp(-margin))
        return losses.logistic(bound, ridge=ridge), labels
    if kind == "huber":
        # A tenth of the labels are far off.
        noise = 0.1 * rng.standard_t(2, size=margin.shape)
        return losses.huber(bound, delta=0.1, ridge=ridge), 0.3 * margin + noise
    noise = 0.2 * rng.normal(size=margin.shape)
    objective = losses.squared(bound, label_bound=1.0, radius=5.0, ridge=ridge)
    return objective, np.clip(0.3 * margin + noise, -1, 1)


ENTRIES: dict[str, Entry] = {
    "few users": Entry("fit", 8.0, _library(synthetic.logistic_regression, 5.0, 0, 300, 5, 3)),
    "falling variances": Entry(
        "report", 1.0, _library(synthetic.logistic_regression, 5.0, 1, 2000, 10, 20, decay=2.0)
    ),
    "least squares": Entry("fit", 2.0, _library(synthetic.linear_regression, 2.0, 2, 5000, 1, 10)),
    "ridge": Entry(
        "report", 1.0, _library(synthetic.logistic_regression, 3.0, 3, 2000, 5, 10, ridge=0.1)
    ),
    "mean": Entry("fit", 1.0, _library(synthetic.mean_estimation, 1.0, 4, 1000, 50, 30)),
    "median": Entry("report", 1.0, _library(synthetic.geometric_median, 1.0, 5, 1000, 10, 10)),
    "absolute": Entry("fit", 2.0, _library(synthetic.absolute_regression, 2.0, 6, 2000, 10)),
    "many items": Entry(
        "report", 2.0,
        _library(synthetic.logistic_regression, 5.0, 7, 500, 50, 10, heterogeneity=0.1),
    ),
    "uncentred": Entry("fit", 1.0, _rows("logistic", 8, 4000, 4, 14)),
    "heavy tails": Entry("report", 2.0, _rows("huber", 9, 3000, 1, 8, tail=2.0)),
    "mixed": Entry("fit", 2.0, _rows("logistic", 10, 1500, 8, 10, levels=20)),
    "wide": Entry("report", 8.0, _rows("squared", 11, 8000, 1, 60)),
    "many users": Entry("fit", 0.5, _rows("logistic", 12, 20_000, 1, 20)),
    "bent": Entry("report", 4.0, _rows("squared", 13, 2000, 3, 6, ridge=0.05)),
    "one-hot": Entry("fit", 2.0, _one_hot(14, 3000, 10, (10, 20, 30, 40), 0.5)),
    "one-hot, skewed": Entry("report", 4.0, _one_hot(15, 6000, 3, (5, 15, 80, 100), 1.2)),
    "one-hot, few": Entry("fit", 0.5, _one_hot(16, 2000, 1, (3, 5), 0.0)),
    "randhie": Entry("report", 2.0, _table("randhie")),
    "countymurders": Entry("fit", 1.0, _table("countymurders")),
    "egsingle": Entry("report", 4.0, _table("egsingle")),
    "wa_churn": Entry("fit", 1.0, _table("wa_churn")),
    "sphere, wide": Entry(
        "fresh", 4.0, _library(synthetic.logistic_regression, 5.0, 20, 3000, 2, 80)
    ),
    "long users": Entry("fresh", 8.0, _rows("logistic", 21, 300, 20, 6)),
    "tails, wide": Entry("fresh", 1.0, _rows("huber", 22, 10_000, 2, 25, tail=3.0)),
    "squares, levels": Entry("fresh", 2.0, _rows("squared", 23, 1500, 4, 5, levels=15)),
    "one-hot, long": Entry("fresh", 1.0, _one_hot(24, 800, 30, (8, 12, 20), 0.8)),
    "mean, one item": Entry("fresh", 4.0, _library(synthetic.mean_estimation, 1.0, 25, 6000, 1, 100)),
    "median, wide": Entry("fresh", 4.0, _library(synthetic.geometric_median, 1.0, 26, 1000, 4, 40)),
    "rare class": Entry("fresh", 2.0, _rows("logistic", 27, 20_000, 1, 10, share=0.02)),
    "rarer class": Entry("fresh", 1.0, _rows("logistic", 28, 50_000, 2, 6, share=0.004)),
}  # fmt: skip
"""By name: which half it belongs to, ε, and how it is made."""

NAMES = tuple(ENTRIES)
