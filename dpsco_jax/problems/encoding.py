"""From the columns of a table to features and a label, row by row, by a map that knows public numbers only.

What it computes: an intercept, numbers mapped from their public bounds to [-1, 1], categories as one-hot
columns of their public levels, a column that says that a value is missing, and the label of a loss.

Formal guarantee: ``Encoding.apply`` is a function of one row and of what was declared: no mean, no set of
levels, no column depends on the rows. Replacing the rows of one user therefore changes the encoded rows of
that user and no others, so neighbours stay neighbours. Every row has norm at most ``feature_bound`` =
√(features + 1 with an intercept): a number is in [-1, 1] and is 0 where its column for missing values is 1,
and of the columns of a category at most one is 1.

What raises: a schema that contradicts itself or the frame's columns and dtypes, always. An error that
depends on values is raised only where ``missing``, ``unknown`` or ``unlabelled`` is ``"error"``; it names the
column and shows no value. With the other choices every value has an image.

Cost: some passes over the frame, on the host.
"""

import dataclasses
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._checks import (
    require,
    require_choice,
    require_flag,
    require_undisclosed,
)
from dpsco_jax.problems._columns import (
    absent,
    require_bounds,
    require_columns,
    require_levels,
    require_numeric,
)
from dpsco_jax.problems._levels import codes

MISSING = ("indicator", "zero", "drop_row", "error")
UNKNOWN = ("error", "other")
UNLABELLED = ("error", "drop_row")


class Rows(NamedTuple):
    """Encoded rows, one for each row of the frame, in their order.

    Attributes:
        features: ``[rows, dim]`` in float32; zero in rows that are not kept.
        label: ``[rows]``: float32 0 or 1 for two classes, int32 class numbers for more, float32 in [-1, 1]
            for a label with bounds; ``None`` if labels were not asked for.
        kept: ``[rows]``, false where the caller's choice is to drop the row.
    """

    features: np.ndarray
    label: np.ndarray | None
    kept: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
    """What is declared of a table, and the map that follows from it. All of it is taken as public.

    Lists, arrays and mappings are copied: they can be changed afterwards without a change here.

    Attributes:
        feature_columns: of the frame, in the order of the features; not a set, which has no order.
        label_column: of the frame.
        bounds: (low, high) of every numeric column, and of a numeric label; values outside are clipped.
        categories: the levels of every categorical column, in the order of their columns.
        labels: (negative, positive), or the classes in the order of their numbers; ``None`` if the label is a
            number with bounds.
        intercept: whether the first column is the constant 1.
        missing: what a missing feature becomes: ``"indicator"``: zeros, and a 1 in a further column of its
            own; ``"zero"``: zeros, which is the middle of the bounds; ``"drop_row"``: the row is not kept;
            ``"error"``: an error.
        unknown: what a level that was not declared becomes: ``"error"`` or, in a further column, ``"other"``.
        unlabelled: what a row without a declared label becomes: ``"error"`` or ``"drop_row"``.

    Raises:
        ValueError: a declaration is missing or contradicts another.
    """

    feature_columns: Sequence[Hashable]
    label_column: Hashable
    bounds: Mapping[Hashable, tuple[float, float]] = dataclasses.field(default_factory=dict)
    categories: Mapping[Hashable, Collection[Hashable]] = dataclasses.field(default_factory=dict)
    labels: Collection[Hashable] | None = None
    intercept: bool = True
    missing: str = "indicator"
    unknown: str = "error"
    unlabelled: str = "error"

    def __post_init__(self) -> None:
        """Checks what is declared."""
        require_choice("missing", self.missing, MISSING)
        require_choice("unknown", self.unknown, UNKNOWN)
        require_choice("unlabelled", self.unlabelled, UNLABELLED)
        require_flag("intercept", self.intercept)
        # A set has another order in another process.
        many = isinstance(self.feature_columns, Iterable) and not isinstance(
            self.feature_columns, str | set | frozenset
        )
        listed = tuple(self.feature_columns) if many else ()
        once = all(isinstance(c, Hashable) for c in listed) and len(set(listed)) == len(listed) > 0
        require(once, "feature_columns", self.feature_columns, "a list of different columns")
        among = self.label_column not in listed
        require(among, "label_column", self.label_column, "no feature column")
        for name, declared in (("bounds", self.bounds), ("categories", self.categories)):
            require(isinstance(declared, Mapping), name, declared, "a mapping from columns")
        for column in listed:
            ways = (column in self.bounds) + (column in self.categories)
            text = "either bounds (low, high), if it is numeric, or categories (its levels)"
            what = f"{column!r} of feature_columns"
            require(ways == 1, what, "both" if ways else "neither", f"given {text}")
        label_ways = (self.label_column in self.bounds) + (self.labels is not None)
        what = "given as labels=(negative, positive) or a list of classes, or else by bounds"
        require(
            label_ways == 1,
            f"{self.label_column!r} of label_column",
            label_ways,
            f"{what}: one way",
        )
        for column, pair in self.bounds.items():
            require_bounds(f"bounds[{column!r}]", pair)
            used = column in listed or column == self.label_column
            require(used, "bounds", column, "for feature columns or the label column")
        for column, levels in self.categories.items():
            require_levels(f"categories[{column!r}]", levels, 1)
            require(column in listed, "categories", column, "for feature columns")
        if self.labels is not None:
            require_levels("labels", self.labels, 2)
        # Of their own: who sorts a list of levels after a fit would change what its coefficients mean.
        kept = {
            "feature_columns": listed,
            "bounds": {column: tuple(pair) for column, pair in self.bounds.items()},
            "categories": {column: tuple(levels) for column, levels in self.categories.items()},
            "labels": None if self.labels is None else tuple(self.labels),
        }
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        names = self.columns
        text = "such that the names of the columns they make differ"
        require(len(set(names)) == len(names), "feature_columns and categories", names, text)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the encoded columns, as many as the model has parameters."""
        names = ["intercept"] if self.intercept else []
        for column in self.feature_columns:
            if column in self.categories:
                names += [f"{column}={level}" for level in self.categories[column]]
                names += [f"{column} is other"] if self.unknown == "other" else []
            else:
                names.append(str(column))
            names += [f"{column} is missing"] if self.missing == "indicator" else []
        return tuple(names)

    @property
    def feature_bound(self) -> float:
        """The largest ℓ2 norm that a row can have, from the declaration alone."""
        return math.sqrt(len(self.feature_columns) + self.intercept)

    def apply(self, frame: Any, labelled: bool = True) -> Rows:
        """Encodes a frame, such as that of test users, by the same map.

        Args:
            frame: a ``pandas.DataFrame`` with the declared columns; others are not looked at.
            labelled: whether the frame has labels; if not, ``label`` is ``None``.

        Returns:
            As many rows as the frame has.

        Raises:
            ValueError: if a column is missing, is there twice, or has a dtype that contradicts what was
                declared; and, where ``"error"`` was chosen, if a value is missing or was not declared.
        """
        needed = [*self.feature_columns, *([self.label_column] if labelled else [])]
        require_columns(frame, needed)
        kept = np.ones(len(frame), bool)
        blocks = [np.ones((len(frame), 1), np.float32)] if self.intercept else []
        for column in self.feature_columns:
            missing = absent(frame[column])
            if self.missing == "error":
                require_undisclosed(
                    ~missing,
                    f"column {column!r}",
                    "present in every row, or missing= chosen otherwise",
                )
            elif self.missing == "drop_row":
                kept &= ~missing
            encode = self._one_hot if column in self.categories else self._scaled
            blocks.append(np.where(missing[:, None], np.float32(0), encode(frame[column], missing)))
            if self.missing == "indicator":
                blocks.append(missing[:, None].astype(np.float32))
        label = None
        if labelled:
            label, known = self.label(frame[self.label_column])
            kept &= known
        features = np.concatenate(blocks, axis=1)
        features[~kept] = 0.0
        return Rows(features, label, kept)

    def in_units(self, prediction: Any) -> Any:
        """A prediction of a label with bounds, in the units of the label's column.

        Args:
            prediction: numbers on the scale of ``Rows.label``, any shape.

        Raises:
            ValueError: if the label is a class.
        """
        bounded = self.labels is None
        require(bounded, "labels", self.labels, "None, for a label with bounds, to have units")
        low, high = map(float, self.bounds[self.label_column])
        return low + (prediction + 1.0) * ((high - low) / 2)

    def label(self, column: Any) -> tuple[np.ndarray, np.ndarray]:
        """The label of each row, ``[rows]``, and whether it has one that was declared; otherwise it is zero.

        Args:
            column: that of the labels, a ``pandas.Series``.

        Raises:
            ValueError: the column is one that ``apply`` refuses.
        """
        missing = absent(column)
        if self.labels is None:
            value, known = self._scaled(column, missing)[:, 0], ~missing
            label = np.where(known, value, np.float32(0))
        else:
            found = codes("labels", column, list(self.labels))
            known = (found >= 0) & ~missing
            label = np.where(known, found, 0)
            label = label.astype(np.float32 if len(self.labels) == 2 else np.int32)
        if self.unlabelled == "error":
            what = "a number" if self.labels is None else f"one of {list(self.labels)}"
            require_undisclosed(
                known,
                f"column {self.label_column!r}",
                f"{what} in every row, or unlabelled= chosen otherwise",
            )
        return label, known

    def _scaled(self, column: Any, missing: np.ndarray) -> np.ndarray:
        """``[rows, 1]`` in [-1, 1]; NaN where the value is missing."""
        require_numeric(column)
        low, high = map(float, self.bounds[column.name])
        with np.errstate(over="ignore"):  # of wider floats, whose infinities become bounds too
            if missing.any():
                value = np.full(len(column), np.nan)
                value[~missing] = column[~missing].to_numpy(np.float64)
            else:  # which copies nothing
                value = column.to_numpy(np.float64)
        # Clipped first: nothing can overflow then, and infinities become bounds.
        unit = (np.clip(value, low, high) - low) / (high - low)
        return np.clip(2.0 * unit - 1.0, -1.0, 1.0).astype(np.float32)[:, None]

    def _one_hot(self, column: Any, missing: np.ndarray) -> np.ndarray:
        """``[rows, levels]``, and one column more for levels that were not declared if that was chosen."""
        levels = list(self.categories[column.name])
        found = codes(f"categories[{column.name!r}]", column, levels)
        if self.unknown == "error":
            require_undisclosed(
                (found >= 0) | missing,
                f"column {column.name!r}",
                f"one of {levels} in every row, or unknown= chosen otherwise",
            )
        found = np.where(found < 0, len(levels), found)
        width = len(levels) + (self.unknown == "other")
        return (found[:, None] == np.arange(width)).astype(np.float32)
