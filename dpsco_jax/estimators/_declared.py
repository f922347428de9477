"""What a person must declare of a table, because reading it off the table would not be private.

Nothing here sees a value of the table: names and number of the columns are its schema. A fact that is missing
is asked for by name; none is filled in from the data. What comes out are arguments of
``problems.tables.from_frame``.
"""

import enum
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._checks import (
    require,
    require_choice,
    require_count,
    require_flag,
    require_unmasked,
)
from dpsco_jax._redact import Words
from dpsco_jax.problems._columns import require_bounds
from dpsco_jax.problems.encoding import UNKNOWN, UNLABELLED

MISSING = ("indicator", "zero", "error")
_SHOWN = 5


class Added(enum.Enum):
    """Names that no column of a frame has, for the columns that a fit adds."""

    LABEL = "y"
    USER = "groups"

    def __repr__(self) -> str:
        return str(self.value)


LABEL, USER = Added.LABEL, Added.USER


class Declared(NamedTuple):
    """What is public of the features, as ``problems.encoding.Encoding`` takes it.

    Attributes:
        bounds: (low, high) by numeric column.
        categories: levels by other column.
    """

    bounds: dict[Hashable, tuple[float, float]]
    categories: dict[Hashable, Sequence[Hashable]]


def features(columns: Sequence[Hashable], bounds: Any, categories: Any) -> Declared:
    """Bounds or levels of every column, or a refusal that says which are missing and why.

    Args:
        columns: of the table, all of them features.
        bounds: a mapping from columns to (low, high), or one pair for all columns without levels.
        categories: a mapping from columns to levels, or ``None``.
    """
    levels = {} if categories is None else categories
    require(isinstance(levels, Mapping), "categories", levels, "a mapping from columns to levels")
    numeric = [column for column in columns if column not in levels]
    if bounds is None or isinstance(bounds, Mapping):
        pairs = dict(bounds or {})
    else:
        several = np.ndim(np.asarray(bounds, object)) > 1
        wanted = "a mapping from columns to (low, high), {0: (0, 1), ...} for an array, or one pair for all"
        require(not several, "bounds", bounds, wanted)
        require_bounds("bounds", bounds)
        pairs = {column: tuple(bounds) for column in numeric}
    unknown = [column for column in [*pairs, *levels] if column not in columns]
    require(not unknown, "bounds and categories", unknown, "for columns of X")
    lacking = [column for column in numeric if column not in pairs]
    if lacking:
        shown = ", ".join(map(repr, lacking[:_SHOWN]))
        shown += f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise ValueError(
            f"bounds must be given for each numeric column of X, and categories (its levels) for each other "
            f"one; got neither for {shown}. They must be public: the smallest and largest value found in the "
            "data, or the levels found, would be facts about single users, released without noise. Values "
            "outside of the bounds are clipped, so a guess that is too wide costs accuracy, never privacy"
        )
    for column, pair in pairs.items():
        require_bounds(f"bounds[{column!r}]", pair)
    return Declared(pairs, dict(levels))


def labels(classes: Any, least: int, most: int | None, instead: str) -> np.ndarray:
    """The classes in ascending order, as scikit-learn keeps them.

    Args:
        classes: the levels of the label.
        least: how few there may be.
        most: how many there may be; ``None`` for any number.
        instead: what to take for another number.

    Raises:
        ValueError: if they are missing, not different, of several kinds, or not as many.
    """
    if classes is None:
        raise ValueError(
            "classes must be given: all values that the label can have. They must be public: a class that is "
            "found in the data is known to be somebody's; got None"
        )
    listed = isinstance(classes, Sequence | np.ndarray) and not isinstance(classes, str | bytes)
    require(listed, "classes", classes, "a list of the values of the label")
    require_unmasked("classes", classes)
    array = np.asarray(classes)
    plain = array.ndim == 1 and array.dtype.kind in "biufU"
    same = plain and len({isinstance(level, str | np.str_) for level in classes}) == 1
    require(same, "classes", classes, "a list of numbers, or of texts")
    held = all(one == other for one, other in zip(array.tolist(), classes, strict=True))
    require(
        held,
        "classes",
        classes,
        f"such as NumPy holds as they are, which in {array.dtype} it does not",
    )
    found = np.unique(array)
    require(len(found) == len(array), "classes", classes, "different from each other")
    fits = least <= len(found) and (most is None or len(found) <= most)
    number = f"{least}" if least == most else f"at least {least}"
    require(fits, "classes", classes, f"{number} values, or else {instead}")
    return found


def label_bounds(pair: Any) -> tuple[float, float]:
    """(low, high) of a numeric label; ``ValueError`` if it is missing or no pair."""
    if pair is None:
        raise ValueError(
            "label_bounds must be given: (low, high) of the label, from public knowledge. The smallest and "
            "largest label of the data belong to two users, and would be released without noise; got None"
        )
    require_bounds("label_bounds", pair)
    low, high = pair
    return float(low), float(high)


def records(user_level: Any, max_items_per_user: Any, groups: Any) -> int:
    """How many rows a record can have, or a refusal: who is protected must be said twice, alike.

    Args:
        user_level: whether a record is all rows of a user, or each row one of its own.
        max_items_per_user: the public bound on the rows of a user.
        groups: what was given to ``fit``, or ``None``.
    """
    if not require_flag("user_level", user_level):
        what = (
            "None with user_level=False, where each row is a record of its own and protects no user"
        )
        require(groups is None, "groups", Words("identifiers"), what)
        require(max_items_per_user is None, "max_items_per_user", max_items_per_user, what)
        return 1
    if groups is None:
        raise ValueError(
            "groups must be given with user_level=True: to which user each row belongs, of shape (rows,). "
            "All rows of a user are one record then. If no two rows belong to one person, say "
            "user_level=False; got None"
        )
    if max_items_per_user is None:
        raise ValueError(
            "max_items_per_user must be given with user_level=True: how many rows a user keeps at most, a "
            "public number. The largest number of rows found in the data is a fact about one user; got None"
        )
    return require_count("max_items_per_user", max_items_per_user)


def unexpected(missing: Any, unknown: Any, unlabelled: Any) -> dict[str, str]:
    """The choices on values that were not expected, as arguments of an encoding."""
    return {
        "missing": require_choice("missing", missing, MISSING),
        "unknown": require_choice("unknown", unknown, UNKNOWN),
        "unlabelled": require_choice("unlabelled", unlabelled, UNLABELLED),
    }
