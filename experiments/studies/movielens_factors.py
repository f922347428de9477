"""A recommender on MovieLens, raters as records: ghost sums against jax_privacy at equal ε.

What it computes: the root mean squared error, in stars, on hidden ratings of matrix factorization with
biases, genres and decades (``movielens_factors_model``), whose rows of films, genres and decades are learned
from 432 raters under user-level DP while a rater's own factor stays with the rater. "reported" are 134 raters
of whom nothing was used in training or tuning, with four fifths of their ratings known to themselves;
"trained" are the hidden ratings of those who were trained on. ``movielens_factors_methods`` has the methods.

Source: McMahan et al. 2018 (DP-SGD for users); Singhal et al. 2021 (local factors); jax_privacy 2.0.

Formal guarantee: (ε, δ)-DP for a rater with all ratings under ADD_OR_REMOVE_ONE, for one run with given
settings; the number of raters is public. Rate, clip norm, batch size and last point or average are chosen by
the error on 105 other raters, at no charge to ε, for all methods alike: tuned non-privately.

Cost: see ``movielens_factors.md``. Needs the extras ``bench`` (jax_privacy) and ``data`` (the ratings).
"""

import dataclasses
import functools
import itertools
import time
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.stats

from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import movielens_factors_data as data
from experiments.studies import movielens_factors_methods as methods
from experiments.studies import movielens_factors_model as model
from experiments.studies.movielens_factors_data import Ratings
from experiments.studies.movielens_factors_methods import MEANS, METHODS, NONE, OURS, PEER, Trial

TRIAL = ("rate", "clip_norm", "batch_size", "point")
POINTS = ("last", "average")
EPSILONS = ("0.5", "1", "2", "4", "8", "16", "inf")


@dataclasses.dataclass(frozen=True)
class MovieLensFactors:
    """Error of private matrix factorization for raters: the library's ghost sums against jax_privacy.

    Attributes:
        methods: names in ``METHODS``.
        ranks: numbers in a film's factor; with 0 only biases are left, all that film means have.
        epsilons: budgets, met by the certificate; ``inf`` is for "no privacy", and for it alone.
        rates: step sizes over the clip norm.
        shrinkages: what film means add to counts; they stand in the same column as rates.
        clip_norms: of a rater's gradient.
        bounds: of a rater's sums and counts, the clip norm of film means.
        batch_sizes: expected raters of a step; the largest is all of them, and film means take that.
        seeds: repetitions: another noise, and another choice of who is trained on and who tuned with.
        delta: the δ of all budgets, below 1/10 of 1/432.
        num_steps: of every run.
        popular: ratings that give a film a row of its own.
    """

    name: ClassVar[str] = "movielens-factors"
    version: ClassVar[int] = 1
    methods: tuple[str, ...] = axis(
        "method", (OURS, PEER, MEANS, NONE), static=True, choices=(*METHODS,)
    )
    ranks: tuple[int, ...] = axis("rank", (0, 4), static=True)
    epsilons: tuple[str, ...] = axis("epsilon", ("1", "2", "4", "8", "inf"), choices=EPSILONS)
    rates: tuple[float, ...] = axis("rate", (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0))
    shrinkages: tuple[float, ...] = axis("rate", (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0))
    clip_norms: tuple[float, ...] = axis("clip_norm", (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0))
    bounds: tuple[float, ...] = axis("clip_norm", (1.5, 3.0, 6.0, 12.0))
    batch_sizes: tuple[int, ...] = axis("batch_size", (108, data.TRAINED))
    seeds: int = axis("seed", 5)
    delta: float = 2e-4
    num_steps: int = 40
    popular: int = 50

    def cells(self) -> list[dict[str, Setting]]:
        made: list[dict[str, Setting]] = []
        for method, rank, epsilon in itertools.product(self.methods, self.ranks, self.epsilons):
            if (method == NONE) != (epsilon == "inf") or (method, rank) in _LEFT_OUT:
                continue
            rates = self.shrinkages if method == MEANS else self.rates
            clip_norms = self.bounds if method == MEANS else self.clip_norms
            sizes = self.batch_sizes
            if method == NONE:
                clip_norms = clip_norms[:1]
            if method in (MEANS, NONE):
                sizes = sizes[-1:]
            names = ("rate", "clip_norm", "batch_size", "seed")
            for point in itertools.product(rates, clip_norms, sizes, range(self.seeds)):
                given: dict[str, Setting] = {"method": method, "rank": rank, "epsilon": epsilon}
                made.append(given | dict(zip(names, point, strict=True)))
        return made

    def build(self, static: Settings) -> Program:
        method, rank = str(static["method"]), int(static["rank"])
        movies = data.load(self.popular)
        solve = METHODS[method](movies.films, rank, self.num_steps)

        def run(
            shared: tuple[Ratings, Ratings], key: jax.Array, inputs: Any
        ) -> dict[str, jax.Array]:
            (known, hidden), (split, trial) = shared, inputs

            def of(raters: Any) -> tuple[Ratings, Ratings]:
                return jax.tree.map(lambda x: x[raters], (known, hidden))

            points = solve(key, of(split.trained)[0], trial)
            found = {}
            for point, params in zip(POINTS, points, strict=True):
                for group in data.Split._fields:
                    there = of(getattr(split, group))
                    found[f"{group}_{point}"] = model.rmse(movies.films, params, *there)
            return found

        return Program(
            run,
            shared=(movies.known, movies.hidden),
            inputs=lambda cell: (data.split(int(cell["seed"])), _trial(self, cell)),
            known=lambda cell: _facts(self, cell),
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        frame = _by_point(frame)
        by = ("method", "rank", "epsilon", *TRIAL)
        facts = ("certified_epsilon", "noise_multiplier")
        summary = summarize(frame, by, (*data.Split._fields, *facts))
        summary.to_csv(folder / "summary.csv", index=False)
        best = best_trials(summary, self.seeds)
        best.to_csv(folder / "best.csv", index=False)
        best["model"] = [
            f"{m}, rank {r}" for m, r in zip(best["method"], best["rank"], strict=True)
        ]
        show(
            "best trial by the error on raters for tuning, all methods alike, non-privately "
            f"(δ = {self.delta:g}, ± is a 95 % interval over seeds)",
            {
                "model": best["model"],
                "ε": best["epsilon"].astype(float),
                "ε, certificate": best["certified_epsilon"],
                "noise": best["noise_multiplier"],
                **{name: best[name].astype(str) for name in TRIAL},
                "reported": _with_interval(best, "reported"),
                "trained": _with_interval(best, "trained"),
                "seeds": best["count"],
            },
        )
        show("without any release", unreleased(self.popular))
        _show_difference(frame, best)
        _draw(best, self, folder / "movielens_factors")


_LEFT_OUT = ((PEER, 0), (MEANS, 4))


def best_trials(summary: pd.DataFrame, seeds: int) -> pd.DataFrame:
    """Of each method, rank and ε the trial with the least error on raters for tuning.

    A trial that has fewer seeds, which was worse in those (``trial_search``), has no part.
    """
    whole = summary[summary["count"] == seeds]
    places = whole.groupby(["method", "rank", "epsilon"], sort=False)["tuning"].idxmin()
    return summary.loc[places].reset_index(drop=True)


def unreleased(popular: int) -> dict[str, Any]:
    """Errors on the reported raters without any model of others, and of one number for all of them."""
    movies, split = data.load(popular), data.split(0)
    trained = jax.tree.map(lambda x: x[split.trained], movies.known)
    known, hidden = (
        jax.tree.map(lambda x: x[split.reported], x) for x in (movies.known, movies.hidden)
    )
    mean = trained.stars.sum() / trained.there.sum()
    errors = (hidden.stars - mean) * hidden.there
    square = np.sum(np.square(errors)) / hidden.there.sum()
    found = {"mean of all who are trained on, not private": float(square**0.5)}
    measure = jax.jit(functools.partial(model.rmse, movies.films))
    for rank, name in ((0, "own mean, shrunk"), (4, "own fit to random factors of genres")):
        start = model.initial_params(movies.films, rank)
        found[name] = float(measure(start, known, hidden))
    return {"prediction": [*found], "reported": [*found.values()]}


def _trial(study: MovieLensFactors, cell: Settings) -> Trial:
    clip_norm, batch = float(cell["clip_norm"]), int(cell["batch_size"])
    return Trial(float(cell["rate"]), clip_norm, batch / data.TRAINED, _noise(study, cell))


def _noise(study: MovieLensFactors, cell: Settings) -> float:
    if cell["method"] == NONE:
        return 0.0
    return methods.noise_multiplier(
        str(cell["method"]),
        study.num_steps,
        int(cell["batch_size"]),
        float(cell["epsilon"]),
        study.delta,
    )


def _facts(study: MovieLensFactors, cell: Settings) -> dict[str, float]:
    noise = _noise(study, cell)
    if cell["method"] == NONE:
        return {"noise_multiplier": noise}
    epsilon = _certified(
        str(cell["method"]), study.num_steps, int(cell["batch_size"]), noise, study.delta
    )
    return {"certified_epsilon": epsilon, "noise_multiplier": noise}


@functools.cache
def _certified(method: str, steps: int, batch_size: int, noise: float, delta: float) -> float:
    made = methods.releases(method, steps, batch_size)
    return float(made.certificate(noise, delta).epsilon)


def _by_point(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each point of each cell: a run has two, either of which may be taken."""
    groups = data.Split._fields
    kept = frame.drop(columns=[f"{group}_{point}" for group in groups for point in POINTS])
    parts = [
        kept.assign(point=point, **{group: frame[f"{group}_{point}"] for group in groups})
        for point in POINTS
    ]
    return pd.concat(parts, ignore_index=True)


def _with_interval(table: pd.DataFrame, name: str) -> list[str]:
    pairs = zip(table[name], table[f"{name}_ci"], strict=True)
    return [f"{mean:.4f} ± {half:.4f}" for mean, half in pairs]


def _show_difference(frame: pd.DataFrame, best: pd.DataFrame) -> None:
    """Ours less the peer's on the same split, so that splits cancel."""
    rows = []
    for epsilon in best["epsilon"].unique():
        chosen = best[(best["epsilon"] == epsilon) & (best["rank"] > 0)]
        if not {OURS, PEER} <= {*chosen["method"]}:
            continue
        errors = []
        for method in (OURS, PEER):
            keys = chosen[chosen["method"] == method][["method", "rank", "epsilon", *TRIAL]]
            errors.append(frame.merge(keys).set_index("seed")["reported"])
        gaps = (errors[0] - errors[1]).dropna()
        half = scipy.stats.t.ppf(0.975, len(gaps) - 1) * gaps.std() / len(gaps) ** 0.5
        rows.append((epsilon, f"{gaps.mean():+.4f} ± {half:.4f}"))
    if rows:
        named = dict(
            zip(
                ("ε", f"{OURS} less {PEER}, reported"),
                map(list, zip(*rows, strict=True)),
                strict=True,
            )
        )
        show("pairs of runs on one split", named)


def seconds(
    popular: int = 50, rank: int = 4, steps: int = 10, repeats: int = 5
) -> dict[str, float]:
    """Processor seconds of a step on all raters: the least of several compiled runs that take turns."""
    movies = data.load(popular)
    raters = jax.tree.map(lambda x: jnp.asarray(x[data.split(0).trained]), movies.known)
    trial = Trial(1.0, 1.0, 1.0, 1.0)
    runs = {
        name: jax.jit(METHODS[name](movies.films, rank, steps))
        .lower(jax.random.key(0), raters, trial)
        .compile()
        for name in (OURS, PEER, NONE)
    }
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.process_time()
            jax.block_until_ready(run(jax.random.key(0), raters, trial))
            found[name].append((time.process_time() - begin) / steps)
    return {name: min(taken) for name, taken in found.items()}


def _draw(best: pd.DataFrame, study: MovieLensFactors, stem: Path) -> None:
    """Errors against ε, a line for each method and rank; dotted without privacy."""
    private = best[best["epsilon"] != "inf"].assign(epsilon=lambda t: t["epsilon"].astype(float))
    titles = {"reported": "raters who were not trained on", "trained": "raters who were"}
    with panels(1, 2, height=2.8) as (figure, axes):
        for panel, (group, title) in zip(np.ravel(axes), titles.items(), strict=True):
            error_bars(panel, private, "epsilon", group, "model", list(private["model"].unique()))
            for _, row in best[best["epsilon"] == "inf"].iterrows():
                panel.axhline(row[group], color="0.4", linestyle=":", linewidth=1)
                place = (private["epsilon"].min(), row[group])
                panel.annotate(row["model"], place, fontsize=6, va="bottom")
            panel.set_title(title, loc="left")
            log_ticks(panel.xaxis, sorted(private["epsilon"].unique()))
            panel.set_xlabel(f"ε of a rater (δ = {study.delta:g}); bars: 95 % over seeds")
        np.ravel(axes)[0].set_ylabel("RMSE of hidden ratings, stars")
        shared_legend(figure, list(np.ravel(axes)))
        save(figure, stem)
