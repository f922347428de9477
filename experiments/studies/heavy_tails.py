"""Means and least squares when nobody knows a bound: who is how far off, against n, ρ and the clip level.

What it computes: the exact excess of the expected loss, ½‖x - E z‖² for means and ‖x - truth‖²/(2d) for
linear models, of laws whose moments of order k = 0.9·ν are known, and |x - mean| for the mean of the users of
three tables, where private methods end, all from public numbers alone:

- localize: ``population_localize``, of one copy; copies: of five;
- glm: ``phased_clipped_glm``, one pass, for linear models;
- auto: ``heavy_tailed.auto``, what it expects to be best;
- descent: plain clipped gradient descent (``user_level.sgd`` of everybody), 30 steps of half of what
  curvature allows, clipped at ``factor`` times C = G_k·(25n²ρ/(32d))^(1/(2k)), the planned level; "in
  hindsight" is the best factor of each cell, at no charge;
- centred: of means, ``mean_estimators`` "centred clipping", which is what CoinPress does: four releases, each
  clipped around the last, with the radius that Gaussian vectors of this spread would have;
- range: descent, clipped at what is publicly possible, for the tables.

Tables, one mean a user, in public units around a public guess: delays of aircraft from July to December, in
half hours, with G_3 from the months before, which are taken as public; expenses in units of $100, of which no
second moment exists; systolic blood pressures in 10 mmHg around 120, one of whose records is wrong. For the
last ``influence`` is how far the result moves if that record is put right, under the same noise.

Source: thesis, chapter 12, which lists a numerical evaluation as open.

Formal guarantee: every run is (ε, δ)-DP for a user under REPLACE_ONE, ε such that one Gaussian release of the
same noise is ρ-zCDP. What is measured, and the choice in hindsight, is not private.

Cost: half an hour on two busy cores as the page has it. Float64.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.problems import heavy_tailed, losses
from dpsco_jax.problems.datasets import amounts
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers import first_order
from dpsco_jax.solvers.heavy_tailed import auto, phased_clipped_glm, population_localize
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show
from experiments.studies import mean_estimators

LOCALIZE, COPIES, GLM, AUTO, DESCENT, CENTRED, RANGE = METHODS = (
    *("localize", "copies", "glm", "auto"),
    *("descent", "centred", "range"),
)
MEANS, LINEAR = DRAWN = ("means", "linear")
DELAYS, EXPENSES, PRESSURES = TABLES = ("delays", "expenses", "pressures")
_DELTA, _RADIUS, _STEPS = 1e-6, 2.0, 30
_USERS = {DELAYS: 3823, EXPENSES: 5912, PRESSURES: 7484}
_WRONG = 13_682.0


class Setup(NamedTuple):
    """A loss, all data sets of it, and what is public.

    Attributes:
        objective: the loss.
        data: of each data set, stacked in front.
        targets: the minimizer of each.
        start: where runs begin.
        curvature: of the loss.
        put_right: data without the wrong record, or nothing.
    """

    objective: Objective
    data: Any
    targets: np.ndarray
    start: np.ndarray
    curvature: float
    put_right: Any = ()


@functools.cache
def law(problem: str, family: str, index: float, dim: int) -> heavy_tailed.Population:
    """One of the laws."""
    if problem == MEANS:
        return heavy_tailed.means(heavy_tailed.Tail(family, index, dim), _RADIUS)
    return heavy_tailed.linear_model(heavy_tailed.Tail(family, index), dim, _RADIUS)


def _stacked(data: list[Any]) -> Any:
    return jax.tree.map(lambda *x: np.stack([np.asarray(each, np.float32) for each in x]), *data)


@functools.cache
def drawn(
    problem: str, laws: tuple[tuple[str, float], ...], dim: int, num_users: int, seeds: int
) -> Setup:
    """Data of all laws and seeds, those of a law together."""
    data, targets = [], []
    for family, index in laws:
        made = law(problem, family, index, dim)
        draw = jax.jit(lambda key, made=made: made.draw(key, num_users).items)
        data += [draw(jax.random.fold_in(jax.random.key(1), seed)) for seed in range(seeds)]
        targets += [made.minimizer] * seeds
    start = np.full(dim, -_RADIUS / math.sqrt(dim))
    curvature = 1.0 if problem == MEANS else 1.0 / dim
    return Setup(made.objective, _stacked(data), np.stack(targets), start, curvature)


class Table(NamedTuple):
    """Means of users in public units, and what is public of them.

    Attributes:
        means: of each user.
        put_right: the same without the wrong record, or the same.
        moments: of slopes on the ball of radius ``radius``.
        radius: within which the mean is.
        reach: within which every user is.
    """

    means: np.ndarray
    put_right: np.ndarray
    moments: Moments
    radius: float
    reach: float


@functools.cache
def table(name: str) -> Table:
    """One of the tables."""
    if name == DELAYS:
        made, radius, order = amounts.arrival_delays(), 2.0, 3.0
        halves = [
            amounts.Amounts(*(column[chosen] for column in made)).means() / 30.0
            for chosen in (made.part <= 6, made.part > 6)
        ]
        slopes = radius + np.abs(halves[0])
        highest, second, first = (float(np.mean(slopes**k) ** (1 / k)) for k in (order, 2.0, 1.0))
        return Table(halves[1], halves[1], Moments(order, highest, second, first), radius, 50.0)
    if name == EXPENSES:
        means = amounts.medical_expenses().means() / 100.0
        # A guess that is false: no second moment is finite.
        return Table(means, means, Moments(2.0, 10.0, 10.0, 6.0), 4.0, 500.0)
    made = amounts.blood_pressures()
    right = made._replace(values=np.where(made.values == _WRONG, 136.0, made.values))
    wrong, mended = ((each.means() - 120.0) / 10.0 for each in (made, right))
    return Table(wrong, mended, Moments(4.0, 8.0, 7.0, 6.0), 4.0, 18.0)


@functools.cache
def of_table(name: str) -> Setup:
    """A table as a problem in one dimension."""
    found = table(name)
    objective = losses.squared_distance(1e9, found.radius)
    data, right = ({"x": each[None, :, None, None]} for each in (found.means, found.put_right))
    target = found.put_right.mean()
    start = np.zeros(1)
    return Setup(objective, data["x"], np.full((1, 1), target), start, 1.0, right["x"])


@functools.cache
def budget(rho: float) -> Budget:
    """The (ε, δ) of a Gaussian release that is ρ-zCDP."""
    event = privacy.events.gaussian((2.0 * rho) ** -0.5)
    found = privacy.certificate(event, _DELTA, NeighboringRelation.REPLACE_ONE, ())
    return Budget(found.epsilon, _DELTA)


def planned_clip(moments: Moments, num_users: int, dim: int, rho: float) -> float:
    """C = G_k·(25n²ρ/(32d))^(1/(2k)), of Corollary 12.3.6."""
    ratio = 25.0 * num_users**2 * rho / (32.0 * dim)
    return moments.highest * ratio ** (0.5 / moments.order)


@dataclasses.dataclass(frozen=True)
class HeavyTails:
    """Error of private means and regressions under heavy tails.

    Attributes:
        problems: "means", "linear", "delays", "expenses", "pressures".
        methods: "localize", "copies", "glm", "auto", "descent", "centred", "range".
        families: "student", "pareto".
        indices: ν.
        dims: d.
        sizes: n.
        rhos: ρ of zCDP.
        epsilons: ε, of the tables in place of ρ.
        factors: the clip of descent in units of the planned one.
        seeds: data sets, and runs.
        most_steps: T of a phase of ``population_localize``.
    """

    name: ClassVar[str] = "heavy-tails"
    version: ClassVar[int] = 1
    x64: ClassVar[bool] = True
    problems: tuple[str, ...] = axis(
        "problem", (*DRAWN, *TABLES), static=True, choices=(*DRAWN, *TABLES)
    )
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    families: tuple[str, ...] = axis("family", heavy_tailed.FAMILIES, choices=heavy_tailed.FAMILIES)
    indices: tuple[float, ...] = axis("index", (2.5, 4.0, 8.0))
    dims: tuple[int, ...] = axis("dim", (5, 20), static=True)
    sizes: tuple[int, ...] = axis("size", tuple(2**i for i in range(10, 15)), static=True)
    rhos: tuple[float, ...] = axis("rho", (0.1, 1.0))
    epsilons: tuple[float, ...] = axis("epsilon", (0.25, 1.0, 4.0))
    factors: tuple[float, ...] = axis("factor", tuple(2.0**i for i in range(-8, 3)))
    seeds: int = axis("seed", 10)
    most_steps: int = 100

    @property
    def laws(self) -> tuple[tuple[str, float], ...]:
        """All of them, in the order of data sets."""
        return tuple((family, index) for family in self.families for index in self.indices)

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for problem in self.problems:
            real = problem in TABLES
            sizes = (_USERS[problem],) if real else self.sizes
            laws = (("", 0.0),) if real else self.laws
            without = {GLM} if problem != LINEAR else {CENTRED}
            without |= set() if real else {RANGE}
            for method in self.methods:
                if method in without:
                    continue
                found += [
                    {"problem": problem, "method": method, "family": family, "index": index,
                     "dim": dim, "size": size, "rho": rho, "epsilon": epsilon, "factor": factor,
                     "seed": seed}
                    for dim in ((1,) if real else self.dims)
                    for size in sizes
                    for family, index in laws
                    for rho in ((0.0,) if real else self.rhos)
                    for epsilon in (self.epsilons if real else (0.0,))
                    for factor in (self.factors if method == DESCENT else (1.0,))
                    for seed in range(self.seeds)
                ]  # fmt: skip
        return found

    def _public(self, cell: Settings) -> tuple[Problem, Moments, Budget, float]:
        """What a plan is made of, and ρ."""
        name, size, dim = str(cell["problem"]), int(cell["size"]), int(cell["dim"])
        if name in TABLES:
            found = table(name)
            problem = Problem(
                of_table(name).objective, num_users=size, dim=1, distance=found.radius
            )
            spent = Budget(float(cell["epsilon"]), _DELTA)
            return problem, found.moments, spent, _rho(spent, size)
        index, rho = float(cell["index"]), float(cell["rho"])
        made = law(name, str(cell["family"]), index, dim)
        problem = made.problem(size, distance=2.0 * _RADIUS)
        return problem, made.moments(0.9 * index), budget(rho), rho

    def _plan(self, method: str, cell: Settings) -> Any:
        problem, moments, spent, rho = self._public(cell)
        size, dim = problem.num_users, problem.dim
        if method in (LOCALIZE, COPIES):
            return population_localize.plan(
                problem,
                spent,
                moments=moments,
                num_steps=self.most_steps,
                num_copies=5 if method == COPIES else 1,
            )
        if method == GLM:
            return phased_clipped_glm.plan(problem, spent, moments=moments)
        if method == AUTO:
            return auto.plan(problem, spent, moments=moments)
        if method == CENTRED:
            # 99 per cent of Gaussian vectors with E‖z‖² = 1, or of a spread of the guess in a table.
            spread = float(moments.second) - problem.diameter / 2 if dim == 1 else 1.0
            radius = spread * (1.0 + math.sqrt(2.0 * math.log(100.0 * size) / dim))
            bound = problem.diameter + radius
            public = mean_estimators.Problem(size, dim, 4, radius, bound, spent.epsilon, _DELTA)
            return mean_estimators.plan(CENTRED_CLIPPING, public)
        clip = planned_clip(moments, size, dim, rho) * float(cell["factor"])
        if method == RANGE:
            found = table(str(cell["problem"]))
            clip = found.radius + found.reach
        return _descent(problem, spent, clip, of_setup(self, cell).curvature)

    def build(self, static: Settings) -> Program:
        method, name = str(static["method"]), str(static["problem"])
        setup = of_setup(self, static)
        solve: Any = phased_clipped_glm.solve if method == GLM else first_order.solve
        solve = population_localize.solve if method in (LOCALIZE, COPIES) else solve
        solve = auto.solve if method == AUTO else solve
        start = jnp.asarray(setup.start)

        @functools.cache
        def plan(*items: Any) -> Any:
            return self._plan(method, dict(items))

        def made(cell: Settings) -> Any:
            return plan(*((key, value) for key, value in cell.items() if key != "seed"))

        def inputs(cell: Settings) -> Any:
            place = 0
            if name in DRAWN:
                at = self.laws.index((str(cell["family"]), float(cell["index"])))
                place = at * self.seeds + int(cell["seed"])
            return made(cell), np.int32(place)

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            (data, targets, right), (plan, place) = shared, inputs

            def ended(data: Any) -> Any:
                items = jax.tree.map(lambda x: jnp.asarray(x[place], float), data)
                if method == CENTRED:
                    rows = items[:, 0] - start
                    done = mean_estimators.run(CENTRED_CLIPPING, key, plan, lambda step: rows, 4)
                    return setup.objective.domain.project(start + done.mean)
                users = UserData(Example(*items) if isinstance(items, Example) else items)
                return solve(key, plan, setup.objective, users, start).params

            params = ended(data)
            off = jnp.linalg.norm(params - targets[place])
            moved = jnp.linalg.norm(params - ended(right)) if name == PRESSURES else jnp.zeros(())
            return {"error": off, "excess": 0.5 * setup.curvature * off**2, "influence": moved}

        def known(cell: Settings) -> dict[str, float]:
            problem, moments, spent, rho = self._public(cell)
            clip = planned_clip(moments, problem.num_users, problem.dim, rho)
            return {"planned": clip, "certified": spent.epsilon}

        return Program(run, (setup.data, setup.targets, setup.put_right), inputs, known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        keys = ["problem", "method", "family", "index", "dim", "size", "rho", "epsilon", "factor"]
        means = (
            frame.groupby(keys)[["error", "excess", "influence", "planned"]].mean().reset_index()
        )
        means.to_csv(folder / "heavy_tails.csv", index=False)
        lines = _labelled(means)
        drawn_lines = lines[lines["problem"].isin(DRAWN)]
        if not drawn_lines.empty:
            _slopes(frame, means, folder)
            _figure(drawn_lines, means, folder)
        for name, part in lines[lines["problem"].isin(TABLES)].groupby("problem", sort=False):
            columns = ["method", "epsilon", "factor", "error", "influence", "planned"]
            show(str(name), {column: part[column].tolist() for column in columns})


CENTRED_CLIPPING = mean_estimators.CENTRED


def of_setup(study: HeavyTails, cell: Settings) -> Setup:
    """The data of a group of cells."""
    name = str(cell["problem"])
    if name in TABLES:
        return of_table(name)
    return drawn(name, study.laws, int(cell["dim"]), int(cell["size"]), study.seeds)


@functools.cache
def _rho(spent: Budget, size: int) -> float:
    """ρ of the Gaussian release that has this (ε, δ)."""
    relation = NeighboringRelation.REPLACE_ONE
    multiplier = privacy.certified_noise_multiplier(
        privacy.FullBatch(), 1, spent.epsilon, spent.delta, relation
    )
    return 0.5 * float(multiplier) ** -2


@functools.cache
def _unit_descent(problem: Problem, spent: Budget, curvature: float) -> Any:
    return sgd.plan(
        problem,
        spent,
        num_steps=_STEPS,
        sampling="full",
        clip_norm=1.0,
        step_size=0.5 / curvature,
        averaging="last",
    )


def _descent(problem: Problem, spent: Budget, clip: float, curvature: float) -> Any:
    made = _unit_descent(problem, spent, curvature)
    return made.replace(mean=dataclasses.replace(made.mean, clip_norm=clip))


def _labelled(means: pd.DataFrame) -> pd.DataFrame:
    """Descent at the planned clip, and at the best of each cell."""
    keys = ["problem", "family", "index", "dim", "size", "rho", "epsilon"]
    others = means[means["method"] != DESCENT]
    descent = means[means["method"] == DESCENT]
    planned = descent[descent["factor"] == 1.0].assign(method="descent, planned")
    best = descent.loc[descent.groupby(keys)["excess"].idxmin()]
    return pd.concat([others, planned, best.assign(method="descent, in hindsight")])


def _slopes(frame: pd.DataFrame, means: pd.DataFrame, folder: Path) -> None:
    """Exponents of n in the excess, a fit for each seed, and the ratio of both ρ."""
    keys = ["problem", "family", "index", "dim", "rho", "method"]
    best = _labelled(means)[["method", *keys[:5], "size", "factor"]]
    hindsight = best[best["method"] == "descent, in hindsight"].drop(columns="method")
    merged = frame[frame["method"] == DESCENT].merge(hindsight, on=[*keys[:5], "size", "factor"])
    rows = pd.concat(
        [
            frame[(frame["method"] != DESCENT) & frame["problem"].isin(DRAWN)],
            frame[(frame["method"] == DESCENT) & (frame["factor"] == 1.0)].assign(
                method="descent, planned"
            ),
            merged.assign(method="descent, in hindsight"),
        ]
    )
    rows = rows[rows["problem"].isin(DRAWN)]
    if rows["size"].nunique() < 2:
        return

    def slope(part: pd.DataFrame) -> float:
        return float(np.polyfit(np.log(part["size"]), np.log(part["excess"]), 1)[0])

    fits = rows.groupby([*keys, "seed"])[["size", "excess"]].apply(slope).rename("slope")
    table = fits.groupby(keys).agg(["mean", "sem"]).reset_index()
    table["1 - 1/k"] = 1.0 - 1.0 / (0.9 * table["index"])
    table.to_csv(folder / "heavy_tails_slopes.csv", index=False)
    for at, part in table.groupby(["problem", "dim", "rho"]):
        columns = ["method", "family", "index", "mean", "sem", "1 - 1/k"]
        title = f"slope of the excess in n: {at[0]}, d = {at[1]}, ρ = {at[2]}"
        show(title, {name: part[name].tolist() for name in columns})


def _figure(lines: pd.DataFrame, means: pd.DataFrame, folder: Path) -> None:
    """Excess against n, and against the clip level with the planned one marked."""
    dim, rho = lines["dim"].max(), lines["rho"].max()
    at = lines[(lines["dim"] == dim) & (lines["rho"] == rho) & (lines["family"] == "pareto")]
    indices = sorted(at["index"].unique())
    names = list(dict.fromkeys(at["method"]))
    problems = list(dict.fromkeys(at["problem"]))
    with panels(2 * len(problems), len(indices)) as (figure, axes):
        for row, problem in enumerate(problems):
            for column, index in enumerate(indices):
                panel = axes[2 * row, column]
                part = at[(at["problem"] == problem) & (at["index"] == index)]
                for i, method in enumerate(names):
                    line = part[part["method"] == method].sort_values("size")
                    style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
                    panel.plot(line["size"], line["excess"], label=method, **style)
                panel.set(xscale="log", yscale="log", xlabel="n")
                log_ticks(panel.xaxis, sorted(part["size"].unique()))
                panel.set_title(f"{problem}, ν = {index:g}", loc="left")
                below = axes[2 * row + 1, column]
                sweep = means[(means["method"] == DESCENT) & (means["problem"] == problem)]
                sweep = sweep[(sweep["dim"] == dim) & (sweep["family"] == "pareto")]
                sweep = sweep[(sweep["index"] == index) & (sweep["size"] == sweep["size"].max())]
                for i, (level, line) in enumerate(sweep.groupby("rho")):
                    mark: Any = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
                    below.plot(line["factor"], line["excess"], label=f"ρ = {level:g}", **mark)
                below.axvline(1.0, color="0.5", lw=0.6)
                below.set(xscale="log", yscale="log", xlabel="clip over the planned one")
            axes[2 * row, 0].set_ylabel("excess")
            axes[2 * row + 1, 0].set_ylabel("excess of descent")
            axes[2 * row + 1, 0].legend()
        shared_legend(figure, [axes[0, 0], axes[-2, 0]])
        save(figure, folder / "heavy_tails")
