"""Factors of films that are shared and private, factors of raters that never leave them.

What it computes: a film i has the row v_i = (b_i, q_i) = film's own row + rows of its genres + row of its
decade, with ``rank`` numbers in q_i. A rater fits (a, p) to the own known ratings, in closed form: least
squares of stars - 3.5 - b_i on (1, q_i) with a ridge. The prediction is 3.5 + b_i + a + ⟨q_i, p⟩.

Source: Koren, Bell and Volinsky 2009 (factors, biases, side features); Singhal et al. 2021 (part of the model
is local, "federated reconstruction"): with that part at its minimum, the gradient in the rest is partial.

Formal guarantee: none by itself. A rater's loss is a function of the rater's own ratings and of the shared
rows, so that a bound on its gradient bounds what the rater can move. Predictions for a rater use (a, p),
which the rater computes from what is released.

Cost: a rater's fit is a system of rank + 1 equations.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.geometry import whole_space
from dpsco_jax.problems.objective import Objective
from experiments.studies import movielens_factors_data as data
from experiments.studies.movielens_factors_data import Films, Ratings

CENTRE = 3.5
OFFSET_RIDGE, FACTOR_RIDGE = 1.0, 10.0
_SPREAD = 0.3  # of the genres' factors at the start, which are drawn without data


def initial_params(films: Films, rank: int) -> dict[str, jax.Array]:
    """The public start: biases zero, and random factors of genres that the other factors are added to."""
    genres = films.genres.shape[1]
    drawn = _SPREAD * np.random.default_rng(5).standard_normal((genres, rank + 1))
    drawn[:, 0] = 0.0
    return {
        "films": jnp.zeros((films.num_rows, rank + 1)),
        "genres": jnp.asarray(drawn, jnp.float32),
        "decades": jnp.zeros((data.DECADES, rank + 1)),
    }


def film_rows(films: Films, params: Any, numbers: jax.Array) -> jax.Array:
    """(b_i, q_i) of films by their numbers, ``[slots, rank + 1]``."""
    rows, genres, decades = (jnp.asarray(x) for x in (films.rows, films.genres, films.decades))
    own = params["films"][rows[numbers]]
    return own + genres[numbers] @ params["genres"] + params["decades"][decades[numbers]]


def local_part(rows: jax.Array, rater: Ratings) -> jax.Array:
    """(a, p) of a rater, ``[rank + 1]``: the minimizer of the ridge problem over the own ratings."""
    inputs = rows.at[:, 0].set(1.0) * rater.there[:, None]
    targets = (rater.stars - CENTRE - rows[:, 0]) * rater.there
    ridges = jnp.full(rows.shape[1], FACTOR_RIDGE).at[0].set(OFFSET_RIDGE)
    return jnp.linalg.solve(inputs.T @ inputs + jnp.diag(ridges), inputs.T @ targets)


def errors(rows: jax.Array, local: jax.Array, rater: Ratings) -> jax.Array:
    """Stars less predictions, zero where there is no rating."""
    return (rater.stars - CENTRE - rows[:, 0] - local[0] - rows[:, 1:] @ local[1:]) * rater.there


def rater_loss(films: Films, params: Any, rater: Ratings) -> jax.Array:
    """½·Σ errors²/√(number of ratings): gradients of all raters are then of about the same norm.

    The local part is that of these parameters; as it is a minimizer (of this and its ridge, which does not
    depend on them), nothing is differentiated through it.
    """
    rows = film_rows(films, params, rater.films)
    local = jax.lax.stop_gradient(local_part(rows, rater))
    number = jnp.maximum(jnp.sum(rater.there), 1.0)
    return 0.5 * jnp.sum(jnp.square(errors(rows, local, rater))) / jnp.sqrt(number)


def objective(films: Films) -> Objective:
    """Users with one item each, which is all that a rater has given."""
    return Objective(
        loss=lambda params, rater: rater_loss(films, params, rater),
        lipschitz=math.inf,
        smoothness=None,
        domain=whole_space(),
    )


def rmse(films: Films, params: Any, known: Ratings, hidden: Ratings) -> jax.Array:
    """Root of the mean squared error on hidden ratings of raters who fit their part to the known ones."""

    def of_rater(known: Ratings, hidden: Ratings) -> jax.Array:
        local = local_part(film_rows(films, params, known.films), known)
        return jnp.sum(jnp.square(errors(film_rows(films, params, hidden.films), local, hidden)))

    total = jnp.sum(jax.vmap(of_rater)(known, hidden))
    return jnp.sqrt(total / jnp.sum(hidden.there))
