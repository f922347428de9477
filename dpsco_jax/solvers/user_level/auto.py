"""Chooses a user-level solver from public numbers: plans each candidate, and runs the best.

What it computes: the plan of every candidate for the same problem, budget and number of gradients; of each
the proven bound on its excess risk and a prediction (see ``_auto_predictions``); and the choice.

Source: own.

Which rank serves better: ``"prediction"``, the default. Predictions follow each plan on one nominal problem
(``_schedules.nominal_model``), a common yardstick; how near they come, and how good the choices are, is
measured by the study ``auto-choice`` (docs/experiments.md). The model takes rows for what those of tables are
like: with an intercept half of their size is common to all, and columns differ in scale. It prefers the
solvers that mind neither (``whitened_sgd``, and ``preconditioned_sgd`` for one-hot rows); where rows are like
those of a sphere others would do as well. But nothing is proven of most of what it likes: it counts on users'
gradients being near each other, and where users differ by nature, clipping may bias the result. ``"bound"``
is for those who need a theorem. ``"seconds"`` is for those who wait: of the candidates that predictions do
not tell from the best one, those within 1.3 of it, the one that takes least time at a given speed.

Formal guarantee: that of the chosen solver: (ε, δ)-DP for a user's whole data under REPLACE_ONE. Nothing
here reads data, so choosing costs nothing; all candidates are planned for REPLACE_ONE.

Cost: that of the plans, half a second of processor time; then that of the chosen solver.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import auto
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = auto.plan(made.problem(distance=5.0), Budget(1.0, 1e-5))
    >>> run = jax.jit(lambda key: auto.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count, checked, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _planning, plans
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import _auto_predictions as predict
from dpsco_jax.solvers.user_level import (
    item_group_privacy,
    momentum_sgd,
    phased_sgd,
    preconditioned_sgd,
    sgd,
    whitened_sgd,
    winsorized_erm,
)
from dpsco_jax.solvers.user_level._auto_predictions import Setting
from dpsco_jax.solvers.work import Speed, Work

__all__ = ["CANDIDATES", "Candidate", "Plan", "Row", "plan", "solve"]

_RANKS = ("bound", "prediction", "seconds")
_PASSES = 1000
_ALIKE = 1.3  # predictions within this factor do not tell which is better
_UNKNOWN = Work(products=math.inf)


class Candidate(NamedTuple):
    """A way to solve the problem.

    Attributes:
        name: shown, and how a plan finds its solver again.
        solver: a module with ``plan`` and ``solve``.
        settings: from the setting to arguments of ``plan``, beyond the problem and the budget. May raise
            ``ValueError``: the candidate does not apply.
        predict: from the setting and the plan to an excess risk; ``None`` for the plan's bound.
        nominal: whether the plan's bound rests on the nominal model; it is then not counted as proven.
        shorten: whether ``plan`` takes ``num_steps``, full batches, to fit a budget of gradients.
    """

    name: str
    solver: Any
    settings: Callable[[Setting], dict[str, Any]] = lambda p: {}
    predict: Callable[[Setting, Any], float] | None = None
    nominal: bool = False
    shorten: bool = False


class Row(NamedTuple):
    """What the table says of one candidate.

    Attributes:
        name: of the candidate.
        bound: its plan's ``excess_bound``, ``inf`` where nothing is proven but for the nominal model.
        prediction: expected excess risk on the data at hand, by the nominal model.
        item_gradients: of the run.
        operations: of the run, as its plan counts them; ``inf`` where it does not.
        seconds: that the run takes at the speed that was given; ``inf`` if none was, or they are not known.
        reason: why the candidate is out; empty if it is not.
    """

    name: str
    bound: float = math.inf
    prediction: float = math.inf
    item_gradients: float = math.inf
    operations: float = math.inf
    seconds: float = math.inf
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The chosen plan. A pytree whose leaves are those of ``chosen``.

    Attributes:
        choice: name of the chosen candidate.
        chosen: the plan of its solver.
        rows: one for each candidate, for the table; lost where JAX takes the pytree apart.
        title: first lines of the table, lost where JAX takes the pytree apart.
    """

    choice: str
    chosen: Any
    rows: tuple[Row, ...] = ()
    title: str = ""

    @property
    def excess_bound(self) -> float:
        """The proven bound on the expected excess risk of the chosen solver."""
        return self.chosen.excess_bound

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of the chosen solver costs; numbers may be traced."""
        return self.chosen.loss()

    def work(self, items_per_user: int | None = None, item_operations: float | None = None) -> Work:
        """What a run of the chosen solver costs; see its plan's ``work``."""
        found: Work = self.chosen.work(items_per_user, item_operations)
        return found

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the chosen solver by the tightest accountant."""
        return self.chosen.certificate()

    def __str__(self) -> str:
        numbers = ("bound", "prediction", "item gradients", "operations", "seconds")
        lines: list[tuple[str, ...]] = [("", "candidate", *numbers, "")]
        for row in self.rows:
            mark = "*" if row.name == self.choice else ""
            if row.reason:
                lines.append((mark, row.name, *["-"] * 5, row.reason))
                continue
            seconds = "-" if math.isinf(row.seconds) else f"{row.seconds:.2g}"
            costs = (f"{row.item_gradients:.3g}", f"{row.operations:.3g}", seconds)
            lines.append((mark, row.name, f"{row.bound:.3g}", f"{row.prediction:.3g}", *costs, ""))
        return "\n".join([self.title, *plans.aligned(lines), "", str(self.chosen)])


jax.tree_util.register_dataclass(
    Plan, data_fields=["chosen"], meta_fields=["choice"], drop_fields=["rows", "title"]
)


@checked
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    columns_per_row: Count | None = None,
    intercept: int | None = None,
    entry_bound: float | None = None,
    candidates: Sequence[Candidate] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    gradient_budget: int | None = None,
    rank_by: Annotated[str, one_of(*_RANKS)] = "prediction",
    speed: Speed | None = None,
) -> Plan:
    """Plans the candidates and chooses one. All arguments are public.

    Args:
        problem: what every candidate is planned for: the constants, domain and ridge of the objective, n ≥ 2,
            m, the number of parameters, and R, the distance from the start to a minimizer, which must be
            finite.
        budget: (ε, δ) of the run, δ > 0.
        columns_per_row: entries of a one-hot row; ``None`` for dense features.
        intercept: which column of dense rows is the constant 1, counted from 0; ``None`` if none is.
        entry_bound: no entry of a dense row is larger, as 1 for rows of ``tables.from_frame``; ``None`` if
            that is not known.
        candidates: records to choose from; ``CANDIDATES``, all of them, if left out.
        settings: by name of a candidate, further arguments of its ``plan``: what is known of the problem
            beyond the numbers above, all of it public.
        gradient_budget: item gradients that a run may take; 1000·n·m if left out.
        rank_by: ``"prediction"``: the smallest prediction. ``"bound"``: the smallest proven bound on the
            excess risk, on the data at hand, or on the population where the plan proves that. ``"seconds"``:
            of those whose prediction is at most 1.3 times the smallest, which predictions do not tell apart,
            the one that takes the fewest seconds.
        speed: of the machine, such as ``work.measured_speed()``; the table shows seconds then.

    Raises:
        ValueError: an argument is out of range, ``intercept`` or ``entry_bound`` is given where rows are not
            dense or there are none, there is no speed to rank seconds by, R is not finite, or no candidate is
            possible (with ``rank_by="bound"``: none with a finite bound); the message has the reasons.
    """
    problem, budget = _planning.require_request(problem, budget)
    problem = dataclasses.replace(problem, distance=problem.require_distance())
    settings = {} if settings is None else settings
    _checks.require_instance("settings", settings, Mapping)
    candidates = _checked(candidates)
    if rank_by == "seconds" or speed is not None:
        _checks.require_instance("speed", speed, Speed)
    _require_form(problem, columns_per_row, intercept, entry_bound)
    one_pass = problem.num_users * problem.items_per_user
    if gradient_budget is None:
        gradient_budget = _PASSES * one_pass
    gradient_budget = _checks.require_integer("gradient_budget", gradient_budget, one_pass)
    unit = privacy.certified_noise_multiplier(
        privacy.FullBatch(), 1, budget.epsilon, budget.delta, NeighboringRelation.REPLACE_ONE
    )
    passes = gradient_budget // one_pass
    setting = Setting(problem, budget, columns_per_row, passes, unit, intercept, entry_bound)

    if unknown := set(settings) - {candidate.name for candidate in candidates}:
        raise ValueError(f"settings must be of candidates, got {sorted(unknown)}")
    found = [
        planned_row(each, setting, gradient_budget, settings.get(each.name, {}), speed)
        for each in candidates
    ]
    rows = tuple(row for row, _ in found)
    ranks = _ranked(rows, rank_by)
    best = min(range(len(rows)), key=ranks.__getitem__, default=None)
    if best is None or not math.isfinite(ranks[best]):
        reasons = "; ".join(f"{row.name}: {row.reason or 'nothing is proven'}" for row in rows)
        raise ValueError(f"candidates must have a possible one, got {reasons}")
    title = (
        f"user-level solvers for {problem.num_users} users with {problem.items_per_user} items, "
        f"{problem.dim} parameters, by {rank_by}"
    )
    return Plan(rows[best].name, found[best][1], rows, title)


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    candidates: Sequence[Candidate] | None = None,
) -> Solution:
    """Runs the chosen plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with the planned number of users.
        params: the starting point; projected onto the domain.
        candidates: those of ``plan``; ``CANDIDATES`` if left out.

    Raises:
        ValueError: if the chosen solver refuses the data's sizes.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    candidates = _checked(candidates)
    solvers = {candidate.name: candidate.solver for candidate in candidates}
    _checks.require(plan.choice in solvers, "candidates", tuple(solvers), f"with {plan.choice!r}")
    return solvers[plan.choice].solve(key, plan.chosen, objective, data, params)


def _ranked(rows: Sequence[Row], rank_by: str) -> list[float]:
    """What is compared of each row; ``inf`` for those that are out."""
    if rank_by == "bound":
        return [row.bound for row in rows]
    if rank_by == "prediction":
        return [row.prediction for row in rows]
    near = _ALIKE * min((row.prediction for row in rows), default=math.inf)
    return [row.seconds if row.prediction <= near else math.inf for row in rows]


def planned_row(
    candidate: Candidate,
    setting: Setting,
    most: int,
    settings: Mapping[str, Any],
    speed: Speed | None = None,
) -> tuple[Row, Any]:
    """The candidate's row and plan; a row with a reason, and no plan, if it cannot be.

    Args:
        candidate: to be planned.
        setting: what for.
        most: item gradients that a run may take.
        settings: further arguments of its ``plan``.
        speed: of the machine, for seconds.
    """
    items = setting.problem.items_per_user

    def cost(made: Any) -> float:
        user = getattr(made, "user_gradients", 0) * items
        return float(getattr(made, "item_gradients", user))

    try:
        given = candidate.settings(setting) | dict(settings)
        made = candidate.solver.plan(setting.problem, setting.budget, **given)
        if cost(made) > most and candidate.shorten:
            given["num_steps"] = setting.passes
            made = candidate.solver.plan(setting.problem, setting.budget, **given)
        if cost(made) > most:
            raise Infeasible(
                f"gradient_budget must be at least {cost(made):.3g}, got {most}",
                {"gradient_budget": cost(made)},
            )
    except ValueError as refusal:
        # That a solver is not for this problem is a reason; that the caller's settings are bad is not.
        if settings and not isinstance(refusal, Infeasible):
            raise
        return Row(candidate.name, reason=str(refusal)), None
    bound, predict = float(made.excess_bound), candidate.predict
    # A one-hot row is read at its columns only.
    columns = None if setting.columns_per_row is None else 4.0 * setting.columns_per_row
    work = made.work(items, columns) if hasattr(made, "work") else _UNKNOWN
    return Row(
        name=candidate.name,
        bound=math.inf if candidate.nominal else bound,
        prediction=bound if predict is None else float(predict(setting, made)),
        item_gradients=cost(made),
        operations=float(work.floating_point_operations),
        seconds=math.inf if speed is None else float(work.seconds(speed)),
    ), made


def _require_form(problem: Problem, columns_per_row: Any, intercept: Any, entry_bound: Any) -> None:
    """Refuses what is said of dense rows where there are none."""
    dense = columns_per_row is None and problem.objective.vector_model is not None
    given = {"intercept": intercept, "entry_bound": entry_bound}
    for name, value in given.items():
        form = "None but for dense rows of a linear model"
        _checks.require(dense or value is None, name, value, form)
    if intercept is not None:
        _checks.require_integer("intercept", intercept, 0, problem.dim - 1)
    if entry_bound is not None:
        entry_bound = _checks.require_real("entry_bound", entry_bound, 0)


def _checked(candidates: Any) -> Sequence[Candidate]:
    """The candidates, all of them if left out."""
    if candidates is None:
        return CANDIDATES
    _checks.require_instance("candidates", candidates, tuple | list)
    for candidate in candidates:
        _checks.require_instance("candidates", candidate, Candidate)
    return tuple(candidates)


def _full_steps(p: Setting) -> int:
    return p.enough_steps(p.passes)


def _tenth(p: Setting) -> int:
    return max(1, p.problem.num_users // 10)


def _near(p: Setting, multiple: float, worst: float) -> float:
    """A radius of users' gradients by the nominal model, where it is less than the worst case."""
    items, slope = p.problem.items_per_user, p.problem.lipschitz
    radius = multiple * slope / math.sqrt(items)
    if radius >= worst * slope:
        least = math.floor((multiple / worst) ** 2) + 1
        raise ValueError(f"items_per_user must be at least {least}, got {items}")
    return radius


def _small_clip(p: Setting) -> dict[str, Any]:
    """Users' gradients as near to zero as they are to each other, and steps for a smooth loss."""
    clip, steps = _near(p, 2.0, 1.0), _full_steps(p)
    settings = {"sampling": "full", "clip_norm": clip, "num_steps": steps}
    objective = p.problem.objective
    if objective.smoothness is not None:
        noise = math.sqrt(p.problem.dim) * 2 * clip * p.unit_noise / p.problem.num_users
        curvature = objective.smoothness + objective.ridge
        settings["step_size"] = 1 / (curvature + steps * noise / p.problem.farthest)
    return settings


def _typical_clip(p: Setting) -> float:
    """The length that a user's gradient may be expected to have: an item's, twice that at zero, over √m."""
    model, slope = p.problem.objective.vector_model, p.problem.lipschitz
    if model is not None:
        slope = min(slope, 2 * nominal_model.at_zero(p.problem) * model.feature_bound)
    return slope / math.sqrt(p.problem.items_per_user)


def _fast(p: Setting) -> dict[str, Any]:
    """Full batches for AC-SA, clipped where gradients are typically."""
    steps = min(100, p.passes)
    return {
        "num_steps": steps,
        "batch_size": p.problem.num_users,
        "clip_norm": _typical_clip(p),
    }


def _with_momentum(p: Setting) -> dict[str, Any]:
    """Full batches and steps for a smooth loss, clipped where gradients are typically."""
    steps, clip = min(200, p.passes), _typical_clip(p)
    settings = {"sampling": "full", "clip_norm": clip, "num_steps": steps}
    objective = p.problem.objective
    if objective.smoothness is not None:
        noise = math.sqrt(p.problem.dim * steps) * 2 * clip * p.unit_noise / p.problem.num_users
        curvature = objective.smoothness + objective.ridge
        settings["step_size"] = 1 / (curvature / 8 + math.sqrt(steps) * noise / p.problem.farthest)
    return settings


def _whitened(p: Setting) -> dict[str, Any]:
    """A run in time: at least half of the passes are for the two phases."""
    if p.columns_per_row is not None:
        raise ValueError(f"columns_per_row must be None, got {p.columns_per_row}")
    if p.problem.objective.vector_model is None:
        raise ValueError("objective must be a linear model whose parameters are a vector")
    start, radius = min(60, max(1, p.passes // 4)), min(30, max(1, p.passes // 16))
    before = 2 * radius + (0 if p.intercept is None else start)
    return {
        "intercept": p.intercept,
        "entry_bound": p.entry_bound,
        "num_steps": min(300, p.passes - before),
        "start_steps": start,
        "radius_steps": radius,
    }


def _preconditioned(p: Setting) -> dict[str, Any]:
    return {"columns_per_row": p.columns_per_row, "num_steps": min(200, p.passes)}


def _of_full_batches(p: Setting) -> dict[str, Any]:
    return {"sampling": "full", "num_steps": _full_steps(p)}


def _of_a_tenth(p: Setting) -> dict[str, Any]:
    steps = p.enough_steps(10 * p.passes)
    return {"sampling": "fixed", "batch_size": _tenth(p), "num_steps": steps}


def _of_drawn_items(p: Setting) -> dict[str, Any]:
    steps = p.enough_steps(min(20_000, 10 * p.passes * p.problem.items_per_user))
    return {"batch_size": _tenth(p), "num_steps": steps}


# Each is here because it has the best prediction, or the best bound that says anything, on some kind of
# problem where the others are more than 1.3 times worse (experiments/studies/auto_choice.md). A plain
# tuple: a further candidate is one more record.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate("sgd", sgd, _of_full_batches, predict.sgd),
    Candidate("sgd, a tenth of the users", sgd, _of_a_tenth, predict.sgd),
    Candidate("sgd, clipped at 2L/sqrt(m)", sgd, _small_clip, predict.sgd),
    # Both for their bounds; the second reads the data once.
    Candidate("private_ac_sa", private_ac_sa),
    Candidate("phased_sgd", phased_sgd),
    Candidate("private_ac_sa, full batches", private_ac_sa, _fast, predict.ac_sa),
    Candidate("momentum_sgd", momentum_sgd, _with_momentum, predict.momentum_sgd),
    Candidate("whitened_sgd", whitened_sgd, _whitened, predict.whitened_sgd),
    Candidate(
        "preconditioned_sgd", preconditioned_sgd, _preconditioned, predict.preconditioned_sgd
    ),
    Candidate("winsorized_erm", winsorized_erm, predict=predict.winsorized_erm, shorten=True),
    Candidate(
        "winsorized_erm, radius 1.2L/sqrt(m)",
        winsorized_erm,
        lambda p: {"radius": _near(p, 1.2, 2.0)},
        predict.winsorized_erm,
        nominal=True,
        shorten=True,
    ),
    Candidate("item_group_privacy, drawn", item_group_privacy, _of_drawn_items, predict.item_sgd),
)
