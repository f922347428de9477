"""The recommender at small sizes: groups of raters, a rater's own part, methods that do the same steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpsco_jax.oracles import clipped_sums
from dpsco_jax.problems.users import UserData
from experiments.studies import movielens_factors as study
from experiments.studies import movielens_factors_data as data
from experiments.studies import movielens_factors_methods as methods
from experiments.studies import movielens_factors_model as model
from experiments.studies.movielens_factors import MovieLensFactors
from experiments.studies.movielens_factors_data import Films, Ratings
from experiments.studies.movielens_factors_methods import MEANS, METHODS, NONE, OURS, PEER, Trial
from tests.experiments.finished import reported

# jax_privacy calls a function that newer versions of optax have renamed.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")

FILMS = Films(
    np.array([0, 1, 2, 2, 2], np.int32),
    np.array([[1, 0], [0, 1], [1, 0], [0.5, 0.5], [0, 1]], np.float32),
    np.array([0, 3, 3, 9, 11], np.int32),
    3,
)


def raters(number: int, seed: int = 0) -> Ratings:
    rng = np.random.default_rng(seed)
    films = np.stack([rng.permutation(5)[:4] for _ in range(number)]).astype(np.int32)
    there = (rng.random((number, 4)) < 0.8).astype(np.float32)
    there[:, 0] = 1.0
    stars = rng.integers(1, 11, (number, 4)).astype(np.float32) / 2 * there
    return Ratings(films, stars, there)


def params(rank: int, seed: int = 1) -> dict:
    rng = np.random.default_rng(seed)
    start = model.initial_params(FILMS, rank)
    return jax.tree.map(
        lambda x: jnp.asarray(0.5 * rng.standard_normal(x.shape), jnp.float32), start
    )


def test_no_rating_is_both_known_and_hidden_and_no_rater_in_two_groups():
    movies = data.load(50)
    for number in range(data.RATERS):
        mine = [r.films[number][r.there[number] > 0] for r in (movies.known, movies.hidden)]
        assert len(np.unique(np.concatenate(mine))) == len(mine[0]) + len(mine[1]) >= 20
    assert movies.known.there.sum() == 46_218
    assert movies.films.num_rows == 454
    np.testing.assert_allclose(np.sum(movies.films.genres**2, axis=1), 1.0, rtol=1e-6)
    seen = [data.split(seed) for seed in (0, 1)]
    for split in seen:
        assert [len(group) for group in split] == [data.TRAINED, data.TUNING, data.REPORTED]
        assert len(np.unique(np.concatenate(split))) == data.RATERS
    np.testing.assert_array_equal(seen[0].reported, seen[1].reported)
    assert {*seen[0].trained} != {*seen[1].trained}
    assert data.TRAINED % methods.CHUNK == 0


def _profile(given: dict, rater: Ratings) -> tuple[float, float]:
    """½·(Σ errors² + ridge)/√number at the minimum over the local part, by least squares; and Σ errors²."""
    rows = (
        given["films"][FILMS.rows]
        + FILMS.genres @ given["genres"]
        + given["decades"][FILMS.decades]
    )
    kept = rater.there > 0
    rows = rows[rater.films[kept]]
    inputs = np.concatenate([np.ones((len(rows), 1)), rows[:, 1:]], axis=1)
    targets = rater.stars[kept] - 3.5 - rows[:, 0]
    ridges = np.sqrt([model.OFFSET_RIDGE] + [model.FACTOR_RIDGE] * (rows.shape[1] - 1))
    stacked = np.concatenate([inputs, np.diag(ridges)])
    wanted = np.concatenate([targets, np.zeros(len(ridges))])
    local = np.linalg.lstsq(stacked, wanted, rcond=None)[0]
    errors = targets - inputs @ local
    whole = np.sum((wanted - stacked @ local) ** 2)
    return float(whole / 2 / np.sqrt(kept.sum())), float(errors @ errors)


def test_the_gradient_is_that_of_the_minimum_over_the_local_part():
    """Differences of a float64 least squares, written apart: the fit need not be differentiated."""
    given, everybody = params(2), raters(3)
    one = jax.tree.map(lambda x: x[1], everybody)
    found = jax.jit(jax.grad(lambda w: model.rater_loss(FILMS, w, one)))(given)
    wide = {name: np.asarray(x, np.float64) for name, x in given.items()}
    step = 1e-5
    for name, leaf in wide.items():
        for place in np.ndindex(leaf.shape):
            ends = []
            for sign in (1, -1):
                moved = leaf.copy()
                moved[place] += sign * step
                ends.append(_profile(wide | {name: moved}, one)[0])
            slope = (ends[0] - ends[1]) / (2 * step)
            assert float(found[name][place]) == pytest.approx(slope, abs=2e-4)
    squares = [_profile(wide, jax.tree.map(lambda x, i=i: x[i], everybody))[1] for i in range(3)]
    expected = np.sqrt(sum(squares) / everybody.there.sum())
    assert float(model.rmse(FILMS, given, everybody, everybody)) == pytest.approx(
        expected, rel=1e-4
    )


def test_ghost_sums_are_chosen_for_the_model():
    users = UserData(jax.tree.map(lambda x: x[:, None], raters(6)))
    assert clipped_sums.choice(model.objective(FILMS), users, params(2)).way == "ghost"


def test_film_means_are_sums_over_counts():
    everybody = raters(7)
    trial = Trial(rate=2.0, clip_norm=1e3, probability=1.0, noise_multiplier=1e-9)
    solve = jax.jit(METHODS[MEANS](FILMS, 0, 1))
    found = solve(jax.random.key(0), everybody, trial).last["films"][:, 0]
    sums, counts = np.zeros(3), np.zeros(3)
    for films, stars, there in zip(*everybody, strict=True):
        mean = stars[there > 0].mean()
        for film, star in zip(films[there > 0], stars[there > 0], strict=True):
            sums[FILMS.rows[film]] += star - mean
            counts[FILMS.rows[film]] += 1
    np.testing.assert_allclose(found, sums / (counts + 2.0), atol=1e-5)


def test_cells_are_those_that_the_study_needs():
    cells = MovieLensFactors().cells()
    of = {method: [c for c in cells if c["method"] == method] for method in METHODS}
    assert {c["rank"] for c in of[PEER]} == {4}
    assert {c["rank"] for c in of[MEANS]} == {0}
    assert {c["epsilon"] for c in of[NONE]} == {"inf"}
    # The peer has as many trials as ours, at every ε and seed.
    as_ours = [c | {"method": OURS} for c in of[PEER]]
    assert as_ours == [c for c in of[OURS] if c["rank"] == 4]


def test_the_study_runs_and_reports(tmp_path, capsys):
    small = MovieLensFactors(
        methods=(MEANS,), ranks=(0,), epsilons=("8",), shrinkages=(100.0,), bounds=(6.0,), seeds=2,
    )  # fmt: skip
    table = reported(small, tmp_path, "movielens_factors")
    means = table[table["method"] == MEANS]
    assert means["certified_epsilon"].between(7.9, 8.0).all()
    assert "reported" in capsys.readouterr().out


def test_a_trial_is_chosen_by_raters_for_tuning_among_those_with_all_seeds():
    """The first has the least reported error, the last the least for tuning but a seed alone."""
    names = ["method", "rank", "epsilon", "rate", "tuning", "reported", "count"]
    trials = [(0.5, 0.9, 0.5, 5), (1.0, 0.8, 0.6, 5), (2.0, 0.1, 0.9, 1)]
    summary = pd.DataFrame([(OURS, 4, "8", *trial) for trial in trials], columns=names)
    assert study.best_trials(summary, 5)["rate"].tolist() == [1.0]


@pytest.mark.slow
def test_without_noise_all_methods_end_at_the_same_point():
    pytest.importorskip("jax_privacy")
    movies = data.load(50)
    chosen = data.split(0).trained
    known = jax.tree.map(lambda x: jnp.asarray(x[chosen]), movies.known)
    trial = Trial(rate=400.0, clip_norm=20.0, probability=1.0, noise_multiplier=1e-9)
    ends = [
        jax.jit(METHODS[method](movies.films, 2, 4))(jax.random.key(0), known, given)
        for method, given in (
            (OURS, trial), (PEER, trial), (NONE, trial._replace(rate=20.0)),
        )
    ]  # fmt: skip
    start = model.initial_params(movies.films, 2)
    assert float(jnp.max(jnp.abs(ends[0].last["films"] - start["films"]))) > 0.01
    for other in ends[1:]:
        for a, b in zip(*map(jax.tree.leaves, (ends[0], other)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.slow
def test_both_clip_a_rater_and_take_the_same_noise():
    """With steps of nothing but noise their spreads agree; a sample of raters moves both by the clip norm."""
    pytest.importorskip("jax_privacy")
    known = raters(48)
    quiet = known._replace(there=np.zeros_like(known.there), stars=np.zeros_like(known.stars))
    trial = Trial(rate=1.0, clip_norm=0.5, probability=0.5, noise_multiplier=3.0)
    spreads = []
    for method in (OURS, PEER):
        solve = jax.jit(jax.vmap(METHODS[method](FILMS, 2, 1), in_axes=(0, None, None)))
        start = model.initial_params(FILMS, 2)
        ends = solve(jax.random.split(jax.random.key(3), 500), quiet, trial).last
        moves = np.concatenate(
            [
                np.ravel(a - b)
                for a, b in zip(jax.tree.leaves(ends), jax.tree.leaves(start), strict=True)
            ]
        )
        spreads.append(moves.std())
    # One step of rate/clip·(1 - 0.9)·T/(T + 1), with noise of 3·clip over half of the raters.
    expected = 1.0 * 0.1 * 0.5 * 3.0 / 24
    np.testing.assert_allclose(spreads, expected, rtol=0.03)


@pytest.mark.slow
def test_both_accountants_ask_for_about_the_same_noise():
    pytest.importorskip("jax_privacy")
    for batch in (108, data.TRAINED):
        ours, peer = (methods.noise_multiplier(m, 40, batch, 2.0, 2e-4) for m in (OURS, PEER))
        assert peer == pytest.approx(ours, rel=5e-3)
        assert methods.releases(OURS, 40, batch).certificate(ours, 2e-4).epsilon <= 2.0


@pytest.mark.slow
def test_private_methods_at_toy_size(tmp_path):
    pytest.importorskip("jax_privacy")
    small = dataclasses.replace(
        MovieLensFactors(), ranks=(4,), epsilons=("8", "inf"), rates=(2.0,), clip_norms=(1.0,),
        batch_sizes=(data.TRAINED,), seeds=2, num_steps=3,
    )  # fmt: skip
    table = reported(small, tmp_path, "movielens_factors")
    assert study.unreleased(50)["reported"][0] > table["reported_last"].max()
