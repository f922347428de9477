"""Which element a row belongs to: the nearest of public centres.

What it computes: ``Partition``, centres that were chosen without a look at the data that they divide, and
the element of each row.

Source: E section 2.2 and sections 4.1 to 4.4, with correction N11.

Formal guarantee: the element of a row is a function of that row and of the centres alone, bit by bit: what is
computed in float32 decides only where rounding cannot, and the rest is compared in float64, coordinate by
coordinate, so that not even the place of a row among others can move it to another element. The centres must
be public. If they were learned from the data, changing one unit would move the borders, hence rows of other
units, and neighbours would differ everywhere: the relation itself would depend on the data.

Cost: rows × centres × dim; memory of one chunk of distances.

Example:
    >>> import numpy as np
    >>> from dpsco_jax.problems.partition import Partition, assign_elements
    >>> halves = Partition(np.array([[-1.0, 0.0], [1.0, 0.0]]), public=True)
    >>> assign_elements(halves, np.array([[0.5, 2.0], [-3.0, 1.0], [0.0, 7.0], [np.nan, 0.0]])).tolist()
    [1, 0, 0, 0]
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from dpsco_jax._checks import require, require_instance, require_integer, require_number
from dpsco_jax._given import plain
from dpsco_jax._redact import described

__all__ = ["Partition", "assign_elements"]


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Public centres; a row belongs to the nearest.

    Attributes:
        centres: ``[elements, dim]``, finite; held in float32.
        public: must be said, and be True: that no row that is to be protected had a part in the centres. Take
            them from public data, from domain knowledge, or from rows of users who then take no part at all.

    Raises:
        ValueError: if ``public`` is not ``True``, or the centres are no finite array ``[elements, dim]``.
    """

    centres: Float[np.ndarray, "elements dim"]
    _: dataclasses.KW_ONLY
    public: bool

    def __post_init__(self) -> None:
        require(
            self.public is True,
            "public",
            self.public,
            "True, said of centres that no protected row had a part in (a partition of private data is a "
            "release of it)",
        )
        require_number("centres", self.centres, "an array [elements, dim]")
        with np.errstate(over="ignore"):
            centres = plain("centres", self.centres).astype(np.float32)
        good = centres.ndim == 2 and min(centres.shape) >= 1 and bool(np.isfinite(centres).all())
        require(good, "centres", described(self.centres), "a finite array [elements, dim]")
        centres.setflags(write=False)
        object.__setattr__(self, "centres", centres)

    @property
    def num_elements(self) -> int:
        """K."""
        return len(self.centres)


def assign_elements(
    partition: Partition, rows: Any, memory: int = 2**28
) -> Int[np.ndarray, "rows"]:
    """The element of each row: the nearest centre, the lowest of several; 0 for a row that is not finite.

    Args:
        partition: public.
        rows: ``[rows, dim]``, read in float32.
        memory: bytes for the distances that are held at once, at least 1; one row takes 8·elements bytes.

    Raises:
        ValueError: if an argument is not of its kind or shape; never for the values of rows.
    """
    require_instance("partition", partition, Partition)
    memory = require_integer("memory", memory, 1)
    require_number("rows", rows, "an array [rows, dim]")
    centres = np.asarray(partition.centres)
    with np.errstate(over="ignore"):
        rows = plain("rows", rows).astype(np.float32)
    good = rows.ndim == 2 and rows.shape[1] == centres.shape[1]
    require(good, "rows", described(rows), f"an array [rows, {centres.shape[1]}]")
    finite = np.isfinite(rows).all(axis=1)
    nearest = np.zeros(len(rows), np.int32)
    size = max(1, memory // (8 * len(centres)))
    for start in range(0, len(rows), size):
        chunk = np.where(finite[start : start + size, None], rows[start : start + size], 0)
        nearest[start : start + size] = _nearest(chunk, centres)
    return np.where(finite, nearest, 0).astype(np.int32)


def _nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """By ‖c‖² - 2⟨x, c⟩ where rounding cannot change the answer, else by ``_by_coordinates``."""
    wide = centres.astype(np.float64)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    longest = np.sqrt(np.sum(wide**2, axis=1).max())
    with np.errstate(over="ignore", invalid="ignore"):
        scores = rows @ centres.T
        scores *= -2
        scores += np.sum(wide**2, axis=1).astype(np.float32)
        best = np.argmin(scores, axis=1)
        every = np.arange(len(rows))
        least = scores[every, best].astype(np.float64)
        scores[every, best] = np.inf
        gap = scores.min(axis=1).astype(np.float64) - least
        # A dot product of d terms, two roundings more, both distances: below 2·(d + 4)·2^-24·(|x| + |c|)².
        rounding = 4 * (rows.shape[1] + 4) * 2.0**-24 * (lengths + longest) ** 2 + 1e-30
        # A score that is too large for float32 may be that of the nearest: its row may be as large.
        doubtful = ~(np.isfinite(least) & np.isfinite(gap) & (gap > rounding))
    if len(centres) > 1 and doubtful.any():
        best[doubtful] = _by_coordinates(rows[doubtful].astype(np.float64), wide)
    return best


def _by_coordinates(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre by sums over coordinates in their order: no sum depends on a row's neighbours."""
    nearest = np.zeros(len(rows), np.int64)
    least = np.full(len(rows), np.inf)
    for element, centre in enumerate(centres):
        distance = np.zeros(len(rows))
        for coordinate, value in enumerate(centre):
            distance += (rows[:, coordinate] - value) ** 2
        nearer = distance < least
        nearest[nearer], least[nearer] = element, distance[nearer]
    return nearest
