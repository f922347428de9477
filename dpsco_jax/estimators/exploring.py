"""How many people, and which ε: a private fit tried on tables that are made up from what is declared.

What it computes: tables of the declared columns and of a linear effect of the stated strength, fits of the
estimator to them at each number of records and each ε, and their scores on fresh rows beside that of the
model that made the tables, which no fit can be expected to exceed.

Source: own.

Formal guarantee: none is needed: nothing but the declarations enters, which are public, so that looking at
as many results as one likes costs nothing.

Cost: a compilation for each number of records, and a fit for each ε and repetition: about a minute for ten
thousand records and the values of ε that are tried by default.

Example:
    >>> from dpsco_jax.estimators import PrivateRegression, explore
    >>> model = PrivateRegression(delta=1e-6, bounds={"age": (16, 46), "hours": (0, 80)}, missing="error",
    ...                           label_bounds=(0, 4), max_items_per_user=4)
    >>> found = explore(model, 500, epsilons=(0.5, 8.0), repetitions=1)
    >>> list(found.table.columns)
    ['records', 'epsilon', 'score', 'standard_error', 'attainable']
    >>> bool(found.table["score"].iloc[1] <= found.table["attainable"].iloc[1] + 0.02)
    True
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from dpsco_jax._checks import (
    require,
    require_count,
    require_inside,
    require_instance,
    require_integer,
    require_positive,
)
from dpsco_jax._extra import needs
from dpsco_jax.estimators._base import PrivateEstimator
from dpsco_jax.problems.encoding import Encoding

__all__ = ["Exploration", "explore"]

_FRESH_ROWS = 5_000
_WIDTHS = 6.0  # of the standard deviation, between bounds as a person would round them


class Exploration(NamedTuple):
    """What was found; prints as a table.

    Attributes:
        table: a row for each number of records and ε: ``score`` of the estimator on fresh rows (R², or the
            share of classes that are right), its ``standard_error`` over repetitions, and ``attainable``, the
            score of the model that made the rows.
    """

    table: pd.DataFrame

    def __str__(self) -> str:
        return str(self.table.to_string(index=False, float_format="{:.3g}".format))

    def plot(self, ax: Any = None) -> Any:
        """Scores against ε, a line for each number of records, below what is attainable.

        Args:
            ax: matplotlib axes; a new figure is made if left out.

        Returns:
            The axes.
        """
        if ax is None:
            with needs("sklearn"):
                from matplotlib import pyplot
            ax = pyplot.subplots(figsize=(6, 4), layout="constrained")[1]
        for records, rows in self.table.groupby("records"):
            errors = rows["standard_error"].fillna(0.0)
            ax.errorbar(
                rows["epsilon"], rows["score"], errors, label=f"{records:,} records", marker="o"
            )
        ax.axhline(self.table["attainable"].mean(), color="0.5", linestyle="--", label="attainable")
        ax.set_xscale("log")
        ax.set_xlabel("ε")
        ax.set_ylabel("score on fresh rows; bars: standard errors")
        ax.legend()
        return ax


def explore(
    estimator: PrivateEstimator,
    num_records: int | Sequence[int],
    epsilons: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    *,
    columns: int | Sequence[Hashable] | None = None,
    signal: float = 0.3,
    repetitions: int = 3,
    seed: int = 0,
) -> Exploration:
    """Tries an estimator on made-up tables of the declared columns.

    Numbers are normal around the middle of their bounds, with a sixth of the width as standard deviation, and
    clipped; levels are equally frequent; every encoded column has an effect of the same size and of a random
    sign. Real tables have rarer levels and correlated columns, for which more people are needed.

    Args:
        estimator: not fitted, with all declarations; its ``epsilon`` is not read. It is not changed.
        num_records: numbers of users (rows, with ``user_level=False``), 2 or more each. Every user has
            ``max_items_per_user`` rows.
        epsilons: positive numbers.
        columns: of the table, or how many: needed where ``bounds`` is one pair for all columns.
        signal: the share of the label's variance, or of a class's latent score, that the columns explain,
            in (0, 1).
        repetitions: tables for each number of records, with a fit at each ε.
        seed: of the tables, at least 0. The noise of the fits is drawn anew.

    Returns:
        Scores by number of records and ε.

    Raises:
        ValueError: an argument is out of range, or a declaration is missing.
    """
    require_instance("estimator", estimator, PrivateEstimator)
    sizes = [num_records] if isinstance(num_records, int) else list(num_records)
    sizes = [require_integer("num_records", size, 2) for size in sizes]
    for epsilon in epsilons:
        require_positive("epsilons", epsilon)
    require(bool(sizes), "num_records", num_records, "one number of records or more")
    require(len(epsilons) > 0, "epsilons", epsilons, "one value or more")
    require_inside("signal", signal)
    repetitions, seed = require_count("repetitions", repetitions), require_integer("seed", seed, 0)
    names = _columns(estimator, columns)
    encoding = estimator._encoding(names)
    rows = 1 if not estimator.user_level else estimator.max_items_per_user
    rows = require_count("max_items_per_user", rows)
    cells = []
    for size in sizes:
        scores: dict[float, list[float]] = {epsilon: [] for epsilon in epsilons}
        best = []
        for repetition in range(repetitions):
            rng = np.random.default_rng([seed, size, repetition])
            world = _World(estimator, encoding, signal, rng)
            table, label, _ = world.draw(size * rows)
            fresh, truth, known = world.draw(_FRESH_ROWS)
            best.append(world.score(truth, known))
            users = {"groups": np.repeat(np.arange(size), rows)} if estimator.user_level else {}
            for epsilon in epsilons:
                own = estimator.get_params(deep=False) | {"epsilon": epsilon, "random_state": None}
                fitted = type(estimator)(**own).fit(table, label, **users)
                scores[epsilon].append(fitted.score(fresh, truth))
        for epsilon, found in scores.items():
            error = stats.sem(found) if repetitions > 1 else math.nan
            cells.append((size, epsilon, np.mean(found), error, np.mean(best)))
    names = ["records", "epsilon", "score", "standard_error", "attainable"]
    return Exploration(pd.DataFrame(cells, columns=names))


def _columns(estimator: PrivateEstimator, columns: Any) -> list[Hashable]:
    """Of the made-up tables."""
    levels = {} if estimator.categories is None else estimator.categories
    if columns is None:
        both = isinstance(levels, Mapping) and isinstance(estimator.bounds or {}, Mapping)
        wanted = "the columns of the table, or their number, where bounds are not given by column"
        require(both, "columns", columns, wanted)
        return [*(estimator.bounds or {}), *levels]
    if isinstance(columns, int):
        return list(range(require_count("columns", columns)))
    return list(columns)


class _World:
    """A law of rows and labels, of which tables are drawn."""

    def __init__(
        self,
        estimator: PrivateEstimator,
        encoding: Encoding,
        signal: float,
        rng: np.random.Generator,
    ):
        self._estimator, self._encoding, self._rng, self._signal = estimator, encoding, rng, signal
        features = self._features(self._frame(_FRESH_ROWS))
        self._mean, spread = features.mean(axis=0), features.std(axis=0)
        self._outputs = 1
        if hasattr(estimator, "classes") and len(estimator.classes) > 2:
            self._outputs = len(estimator.classes)
        # What never occurs, as an indicator of what is missing, has no effect.
        effects = np.where(spread > 0.0, 1.0 / np.where(spread > 0.0, spread, 1.0), 0.0)
        signs = rng.choice([-1.0, 1.0], (len(spread), self._outputs))
        margins = (features - self._mean) @ (effects[:, None] * signs)
        self._effects = effects[:, None] * signs / margins.std(axis=0)

    def draw(self, rows: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
        """Rows, their labels, and what the model that makes labels predicts of them."""
        frame, rng, signal = self._frame(rows), self._rng, self._signal
        margins = (self._features(frame) - self._mean) @ self._effects
        if hasattr(self._estimator, "classes"):
            classes = np.unique(np.asarray(self._estimator.classes))
            # The noise of a latent score is logistic, and of a difference of two Gumbel ones the same.
            logits = margins * math.sqrt(signal / (1.0 - signal)) * math.pi / math.sqrt(3.0)
            logits = logits if self._outputs > 1 else np.concatenate([0.0 * logits, logits], axis=1)
            drawn = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
            return frame, classes[drawn], classes[np.argmax(logits, axis=1)]
        low, high = self._estimator.label_bounds
        unit = (high - low) / _WIDTHS
        known = (low + high) / 2 + unit * math.sqrt(signal) * margins[:, 0]
        noise = unit * math.sqrt(1.0 - signal)
        label = np.clip(known + noise * rng.normal(size=rows), low, high)
        shift = (
            stats.norm.ppf(self._estimator.quantile) if self._estimator.loss == "quantile" else 0.0
        )
        return frame, label, known + noise * shift

    def score(self, truth: np.ndarray, known: np.ndarray) -> float:
        """That of the model that makes labels, by the measure of the estimator."""
        if hasattr(self._estimator, "classes"):
            return float(np.mean(truth == known))
        return float(1.0 - np.mean((truth - known) ** 2) / np.var(truth))

    def _frame(self, rows: int) -> pd.DataFrame:
        made: dict[Hashable, Any] = {}
        for column in self._encoding.feature_columns:
            if column in self._encoding.categories:
                levels = list(self._encoding.categories[column])
                made[column] = [levels[i] for i in self._rng.integers(len(levels), size=rows)]
            else:
                low, high = self._encoding.bounds[column]
                middle, deviation = (low + high) / 2, (high - low) / _WIDTHS
                made[column] = np.clip(self._rng.normal(middle, deviation, rows), low, high)
        return pd.DataFrame(made)

    def _features(self, frame: pd.DataFrame) -> np.ndarray:
        rows = self._encoding.apply(frame, labelled=False)
        return np.asarray(rows.features[:, int(self._encoding.intercept) :], np.float64)
