"""Simulated logistic regression with an element of a user, or a user whole, as the record.

What it computes: the distance ‖w - w*‖ of the last point of 200 steps from the slope that labels were
drawn from, against ε. A user has 50 points around k of 10 public centres, in 10 dimensions; a step takes
a tenth of the units, or users, by coins of their own; updates are clipped to 1 and divided by k; η_t =
α₀/√(t + 1). Every seed has data of its own. δ = n^(-1.1).

Source: E section 4.2 and Figure 3. ``clip norm 1``, the division by k and the last point are not stated
there.

- "element": ``element_level.sgd``; a record is one of a user's elements;
- "user": the same solver where a user is a single element, which is user-level DP-SGD: the user's own
  mean gradient is clipped;
- "user, printed": the baseline of E Corollary 3.2: the update of "element", with noise for a user of whom
  all 10 elements change;
- "users sampled" and "users sampled, cap 2": element level again, and users are drawn with all of their
  elements, as in the paper, at the ε that this is worth (correction N3); the cap bounds a user's summed
  update;
- "element, plan" and "user, plan": clip norm, steps and average of the plans, which see public sizes and
  ‖w*‖ = 1.

Formal guarantee: (ε, δ)-DP of each run for the record under REPLACE_ONE by the certificate of its plan;
that a user has at most k elements is public. The best α₀ of four for each method, k and ε is chosen by
the error itself, at no charge: tuned non-privately, every method alike. Errors are measurements of a
study.

Cost: see ``element_logistic.md``.
"""

import dataclasses
import functools
import itertools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax import Budget, Problem
from dpsco_jax.solvers.element_level import sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies.element_logistic_data import (
    CAP,
    CAPPED,
    DIM,
    ELEMENT,
    ELEMENT_LEVEL,
    INFINITE,
    METHODS,
    NUM_ELEMENTS,
    OBJECTIVE,
    PRINTED,
    SAMPLED,
    UNTUNED,
    USER,
    USER_PLAN,
    Data,
    data_sets,
    rearranged,
)


@dataclasses.dataclass(frozen=True)
class ElementLogistic:
    """Error of logistic regression against ε: elements as records, users as records.

    Attributes:
        elements: k, elements of a user.
        methods: names in ``METHODS``.
        epsilons: budgets of the record, met by the certificate.
        first_steps: α₀, of which the best is shown.
        seeds: data sets and runs.
        num_users: n.
        items_per_user: points of a user.
        num_steps: T.
        batch_size: users of a step, or as many users' worth of units.
        non_private: whether to run at ε = ∞, too.
        fewer_seeds: seeds of all methods but "element" and "user", which take longer or are asides.
        fewer_epsilons: and their budgets, of those above; ε = ∞ besides.
    """

    name: ClassVar[str] = "element-logistic"
    version: ClassVar[int] = 1
    elements: tuple[int, ...] = axis("elements", (2, 5, 8), static=True)
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    epsilons: tuple[float, ...] = axis("epsilon", (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0))
    first_steps: tuple[float, ...] = axis("first_step", (0.3, 1.0, 3.0, 10.0))
    seeds: int = axis("seed", 20)
    num_users: int = 1000
    items_per_user: int = 50
    num_steps: int = 200
    batch_size: int = 100
    non_private: bool = True
    fewer_seeds: int = 5
    fewer_epsilons: tuple[float, ...] = (0.5, 1.0, 3.0)

    def cells(self) -> list[dict[str, Setting]]:
        given = product(self)
        if self.non_private:
            given += [c | {"epsilon": INFINITE} for c in given if c["epsilon"] == self.epsilons[0]]
        given = [c for c in given if self._runs(c)]
        tuned = [c for c in given if c["method"] not in UNTUNED]
        planned = [c for c in given if c["method"] in UNTUNED]
        first = self.first_steps[0]
        # Zero: there is nothing to choose.
        return tuned + [c | {"first_step": 0.0} for c in planned if c["first_step"] == first]

    def _runs(self, cell: dict[str, Setting]) -> bool:
        if cell["method"] == CAPPED and float(cell["elements"]) <= CAP:
            return False  # where no cap is reached
        few = int(cell["seed"]) < self.fewer_seeds
        few = few and cell["epsilon"] in (*self.fewer_epsilons, INFINITE)
        return few or cell["method"] in (ELEMENT, USER)

    @property
    def delta(self) -> float:
        """n^(-1.1)."""
        return float(self.num_users) ** -1.1

    def build(self, static: Settings) -> Program:
        slots, method = int(static["elements"]), str(static["method"])

        def run(shared: Data, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            plan, seed = inputs
            data = rearranged(jax.tree.map(lambda leaf: leaf[seed], shared.units), method)
            found = sgd.solve(key, plan, OBJECTIVE, data, jnp.zeros(DIM)).params
            return {"error": jnp.linalg.norm(found - shared.slopes[seed])}

        @functools.cache
        def prepared(epsilon: float) -> tuple[sgd.Plan, dict[str, float]]:
            return make_plan(self, slots, method, epsilon)

        def inputs(settings: Settings) -> tuple[sgd.Plan, int]:
            plan, _ = prepared(float(settings["epsilon"]))
            if method not in UNTUNED:
                count = 1 if method == USER else slots
                size = float(settings["first_step"]) / count
                plan = plan.replace(step_size=size)
            return plan, int(settings["seed"])

        return Program(
            run,
            shared=data_sets(slots, self.seeds, self.num_users, self.items_per_user),
            inputs=inputs,
            known=lambda settings: prepared(float(settings["epsilon"]))[1],
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        frame = frame.assign(epsilon=frame["epsilon"].astype(float))
        # What is stored must be finite: without noise there is no ε.
        spent = ["certified_epsilon", "user_epsilon"]
        frame[spent] = frame[spent].fillna(math.inf)
        by = ("elements", "method", "epsilon", "first_step")
        summary = summarize(frame, by, ("error", "certified_epsilon", "user_epsilon", "stddev"))
        summary.to_csv(folder / "summary.csv", index=False)
        best = best_steps(summary)
        best.to_csv(folder / "best.csv", index=False)
        for slots, rows in best.groupby("elements", sort=True):
            _print_table(int(str(slots)), rows, self)
        for line in verdicts(best):
            show("what was expected", {"claim": [line[0]], "holds": [line[1]]})
        _draw(best, self, folder / "element_logistic")


def make_plan(
    study: ElementLogistic, slots: int, method: str, epsilon: float
) -> tuple[sgd.Plan, dict[str, float]]:
    """The plan of a method, and what it guarantees for a record and for a user of ``slots`` elements."""
    problem = Problem(
        OBJECTIVE,
        num_users=study.num_users,
        items_per_user=study.items_per_user,
        dim=DIM,
        distance=1.0,
    )
    tuned: dict[str, Any] = {
        "clip_norm": 1.0,
        "step_size": 1.0,
        "step_decay": "sqrt",
        "averaging": "last",
    }
    how: dict[str, dict[str, Any]] = {
        PRINTED: {"sampling": "user", "protects": "user"},
        SAMPLED: {"sampling": "user"},
        CAPPED: {"sampling": "user", "cap": CAP},
    }
    count = {USER: 1, USER_PLAN: 1, PRINTED: NUM_ELEMENTS}.get(method, slots)
    finite = epsilon < math.inf
    plan = sgd.plan(
        problem,
        Budget(epsilon if finite else max(study.epsilons), study.delta),
        num_steps=study.num_steps,
        elements_per_user=count,
        batch_size=study.batch_size,
        # As many users' worth of units as a step hardly ever exceeds: it then takes one chunk.
        chunk_size=math.ceil(study.batch_size + 3 * math.sqrt(study.batch_size)) * count,
        **({} if method in UNTUNED else tuned),
        **how.get(method, {}),
    )
    if not finite:
        return plan.replace(noise_multiplier=0.0), {"stddev": 0.0}
    made = plan.certificate().epsilon
    facts = {
        "certified_epsilon": made,
        "user_epsilon": plan.user_certificate().epsilon if method in ELEMENT_LEVEL else made,
        "stddev": float(plan.noise_stddev * plan.batch_size),
    }
    return plan, facts


def best_steps(summary: pd.DataFrame) -> pd.DataFrame:
    """For each k, method and ε the row of the α₀ with the least mean error."""
    groups = summary.groupby(["elements", "method", "epsilon"], sort=False)
    return summary.loc[groups["error"].idxmin()].reset_index(drop=True)


def verdicts(best: pd.DataFrame) -> list[tuple[str, str]]:
    """The three claims, and where they fail."""
    table = best[best["epsilon"] < math.inf].set_index(["method", "elements", "epsilon"])["error"]
    counts, epsilons = sorted(set(best["elements"])), sorted({e for *_, e in table.index})
    methods = {m for m, *_ in table.index}

    def said(failures: list[str]) -> str:
        return "; ".join(failures) or "everywhere"

    claims = []
    if ELEMENT in methods:
        rising = [
            f"not at ε = {e:g}, k = {a} to {b}"
            for e in epsilons
            for a, b in itertools.pairwise(counts)
            if not table[ELEMENT, b, e] < table[ELEMENT, a, e]
        ]
        claims.append(("element: error falls in k", said(rising)))
    if USER in methods:
        spread = [
            f"{max(row) / min(row):.2f} at ε = {e:g}"
            for e in epsilons
            if max(row := [table[USER, k, e] for k in counts]) > 1.3 * min(row)
        ]
        claims.append(("user: largest over least error in k is at most 1.3", said(spread)))
    if {ELEMENT, USER, PRINTED} <= methods:
        above = [
            f"not below {m} at ε = {e:g}, k = {k}"
            for m in (USER, PRINTED)
            for e in epsilons
            for k in counts
            if (m, k, e) in table.index and not table[ELEMENT, k, e] < table[m, k, e]
        ]
        claims.append(("element below both users", said(above)))
    return claims


def _print_table(slots: int, rows: pd.DataFrame, study: ElementLogistic) -> None:
    title = f"{slots} elements a user, best of {len(study.first_steps)} first steps, tuned non-privately"
    pairs = zip(rows["error"], rows["error_ci"], strict=True)
    steps = ["plan" if step == 0 else f"{step:g}" for step in rows["first_step"]]
    show(
        f"{title} (δ = {study.delta:.3g}, ± is a 95 % interval)",
        {
            "method": rows["method"],
            "ε of a record": rows["epsilon"],
            "ε of a user": rows["user_epsilon"],
            "stddev of noise on the sum": rows["stddev"],
            "α₀": steps,
            "error": [f"{mean:.3f} ± {half:.3f}" for mean, half in pairs],
            "seeds": rows["count"],
        },
    )


def _draw(best: pd.DataFrame, study: ElementLogistic, stem: Path) -> None:
    """A row of panels: error against the record's ε, error against the user's ε; a column for each k."""
    counts, finite = sorted(set(best["elements"])), best[best["epsilon"] < math.inf]
    with panels(2, len(counts), sharey=True) as (figure, axes):
        for column, slots in enumerate(counts):
            rows = finite[finite["elements"] == slots]
            for panel, x in zip(axes[:, column], ("epsilon", "user_epsilon"), strict=True):
                error_bars(panel, rows, x, "error", "method", METHODS)
                log_ticks(panel.yaxis)
            ends = best[(best["elements"] == slots) & (best["epsilon"] == math.inf)]
            if not ends.empty:
                floor = ends["error"].min()
                axes[0, column].axhline(floor, color="black", ls=":", label="best without noise")
            log_ticks(axes[0, column].xaxis, [e for e in study.epsilons if e != 3.0])
            log_ticks(axes[1, column].xaxis, [0.3, 1, 3, 10, 30, 100])
            axes[0, column].set_title(f"{slots} elements a user", loc="left")
            axes[0, column].set_xlabel("ε of a record (element, or user)")
            axes[1, column].set_xlabel("ε that follows for a user whole")
        for panel in axes[:, 0]:
            panel.set_ylabel("‖w - w*‖")
        shared_legend(figure, axes[0])
        save(figure, stem)
