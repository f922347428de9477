"""What the table of ``auto`` says of its candidates, and which of them are planned.

What it computes: a row and a plan for each candidate. By prediction those go first that cost little to plan;
of the others only those whose prediction may be lower than the best so far, by a factor of 1.3, are planned:
predictions that are nearer to each other do not tell which is better.

Source: own.

Formal guarantee: none needed; nothing here reads data.

Cost: that of the plans: 0.2 to 0.9 s by prediction for smooth losses, some 4 s for others; 4 to 15 s if all
are planned.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.solvers.user_level._auto_candidates import Candidate
from dpsco_jax.solvers.user_level._auto_setting import Setting
from dpsco_jax.solvers.work import Speed, Work

_WORTH = 1.3
_UNKNOWN = Work(products=math.inf)


class Row(NamedTuple):
    """What the table says of one candidate.

    Attributes:
        name: of the candidate.
        bound: its plan's ``excess_bound``, ``inf`` where nothing is proven.
        scope: what the bound is about: ``"population"``, the ``"data"`` at hand, or ``"nominal model"``,
            where it holds only if users are as near to each other as that model says.
        ranked: what ``rank_by="bound"`` compares: the bound on the data at hand.
        prediction: expected excess risk on the data at hand, by the nominal model.
        item_gradients: of the run.
        operations: of the run, as its plan counts them; ``inf`` where it does not.
        seconds: that the run takes at the speed that was given; ``inf`` if none was, or they are not known.
        reason: why the candidate is out; empty if it is not.
    """

    name: str
    bound: float = math.inf
    scope: str = "population"
    ranked: float = math.inf
    prediction: float = math.inf
    item_gradients: float = math.inf
    operations: float = math.inf
    seconds: float = math.inf
    reason: str = ""


def planned_rows(
    candidates: Sequence[Candidate],
    setting: Setting,
    most: int,
    settings: Mapping[str, Mapping[str, Any]],
    rank_by: str,
    speed: Speed | None = None,
) -> list[tuple[Row, Any]]:
    """Row and plan of each candidate, in their order.

    Args:
        candidates: to be planned.
        setting: what for.
        most: item gradients that a run may take.
        settings: by name, further arguments of a candidate's ``plan``; it is always planned then.
        rank_by: ``"bound"``, by which all are planned; ``"prediction"``, by which those are left out that
            cannot win; ``"seconds"``, by which those are that predictions tell from the winner.
        speed: of the machine, for seconds.
    """
    factor = 1 / _WORTH if rank_by == "seconds" else _WORTH
    found: list[tuple[Row, Any]] = [(Row(""), None)] * len(candidates)
    promised = [
        candidate.least(setting)
        if rank_by != "bound" and candidate.least is not None and candidate.name not in settings
        else 0.0
        for candidate in candidates
    ]
    winner = math.inf
    for index in sorted(range(len(candidates)), key=promised.__getitem__):
        candidate, promise = candidates[index], promised[index]
        if factor * promise > winner:
            reason = f"not planned: its prediction would be at least {promise:.3g}"
            found[index] = Row(candidate.name, reason=reason), None
            continue
        given = settings.get(candidate.name, {})
        found[index] = planned_row(candidate, setting, most, given, speed)
        winner = min(winner, found[index][0].prediction)
    return found


def ranked(rows: Sequence[Row], rank_by: str) -> list[float]:
    """What is compared of each row; ``inf`` for those that are out."""
    if rank_by == "bound":
        return [row.ranked for row in rows]
    if rank_by == "prediction":
        return [row.prediction for row in rows]
    near = _WORTH * min((row.prediction for row in rows), default=math.inf)
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

    def cost(made: Any) -> float:
        user = getattr(made, "user_gradients", 0) * setting.items_per_user
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
    bound = float(made.excess_bound)
    predict = candidate.predict
    prediction = bound if predict is None else float(predict(setting, made))
    ranked, scope = bound, "data"
    if candidate.nominal:
        ranked, scope = math.inf, "nominal model"
    elif candidate.population:
        scope = "population"
        if math.isfinite(bound):
            ranked -= float(getattr(made, "stability_bound", 0.0))
    # A one-hot row is read at its columns only.
    columns = setting.columns_per_row
    given_columns = None if columns is None else 4.0 * columns
    work = made.work(setting.items_per_user, given_columns) if hasattr(made, "work") else _UNKNOWN
    return Row(
        name=candidate.name,
        bound=bound,
        scope=scope,
        ranked=ranked,
        prediction=prediction,
        item_gradients=cost(made),
        operations=float(work.floating_point_operations),
        seconds=math.inf if speed is None else float(work.seconds(speed)),
    ), made
