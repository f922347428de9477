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

_WORTH = 1.3


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
        reason: why the candidate is out; empty if it is not.
    """

    name: str
    bound: float = math.inf
    scope: str = "population"
    ranked: float = math.inf
    prediction: float = math.inf
    item_gradients: float = math.inf
    reason: str = ""


def planned_rows(
    candidates: Sequence[Candidate],
    setting: Setting,
    most: int,
    settings: Mapping[str, Mapping[str, Any]],
    only_hopeful: bool,
) -> list[tuple[Row, Any]]:
    """Row and plan of each candidate, in their order.

    Args:
        candidates: to be planned.
        setting: what for.
        most: item gradients that a run may take.
        settings: by name, further arguments of a candidate's ``plan``; it is always planned then.
        only_hopeful: whether those are left out that cannot win by prediction.
    """
    found: list[tuple[Row, Any]] = [(Row(""), None)] * len(candidates)
    promised = [
        candidate.least(setting)
        if only_hopeful and candidate.least is not None and candidate.name not in settings
        else 0.0
        for candidate in candidates
    ]
    winner = math.inf
    for index in sorted(range(len(candidates)), key=promised.__getitem__):
        candidate, promise = candidates[index], promised[index]
        if _WORTH * promise > winner:
            reason = f"not planned: its prediction would be at least {promise:.3g}"
            found[index] = Row(candidate.name, reason=reason), None
            continue
        found[index] = planned_row(candidate, setting, most, settings.get(candidate.name, {}))
        winner = min(winner, found[index][0].prediction)
    return found


def planned_row(
    candidate: Candidate, setting: Setting, most: int, settings: Mapping[str, Any]
) -> tuple[Row, Any]:
    """The candidate's row and plan; a row with a reason, and no plan, if it cannot be.

    Args:
        candidate: to be planned.
        setting: what for.
        most: item gradients that a run may take.
        settings: further arguments of its ``plan``.
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
    return Row(
        name=candidate.name,
        bound=bound,
        scope=scope,
        ranked=ranked,
        prediction=prediction,
        item_gradients=cost(made),
    ), made
