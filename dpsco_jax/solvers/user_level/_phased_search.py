"""The search of phased SGD for sizes and steps: candidates, and how many groups there can be.

Source: F, Algorithm 1; see ``phased_sgd`` and ``_schedules.phased_sgd``.

Formal guarantee: every candidate is a plan with the noise that its sizes need; which one is taken depends on
public numbers only.

Cost: a calibration for each number of groups, milliseconds for each candidate.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.privacy import Budget
from dpsco_jax.privacy.concentrated import threshold_phase
from dpsco_jax.solvers import _sequence
from dpsco_jax.solvers._schedules import phased_sgd as schedule
from dpsco_jax.solvers.user_level._phased_plan import Plan, reach, with_noise


class Request(NamedTuple):
    """What was asked for; see ``phased_sgd.plan``, whose checked arguments these are.

    Attributes:
        setting: sizes and constants.
        budget: of each phase and so of all.
        step_size: of the first phase, or ``None``.
        step_ratio: of each phase to the one before.
        size_ratio: of the users of each phase to those of the one before.
        radius: one, one for each phase, or ``None``.
        failure: probability that honest groups are filtered or halt the run.
        printed: the paper's choices in place of all these, or ``None``.
        plain: noise multiplier of a mean of clipped averages.
    """

    setting: schedule.Setting
    budget: Budget
    step_size: float | None
    step_ratio: float
    size_ratio: float
    radius: float | Sequence[float] | None
    failure: float
    printed: schedule.Printed | None
    plain: float


def candidate(
    request: Request, groups: int, count: int, releases: Any
) -> tuple[float, Plan] | None:
    """The bound (without regard to a ridge) and the plan; ``None`` if some phase has too few users.

    Args:
        request: what was asked for.
        groups: C.
        count: l, the number of phases.
        releases: for this number of groups.
    """
    setting, printed = request.setting, request.printed
    radii: Sequence[float] | None
    if printed is not None:
        group_users, steps, radii = printed.group_users, printed.step_sizes, printed.radii
    else:
        sizes = _sequence.block_sizes(setting.num_users, request.size_ratio, count)
        group_users = tuple(size // groups for size in sizes)
        steps = tuple(request.step_ratio**i for i in range(count))
        radii = None if request.radius is None else _by_phase(request.radius, count)
    if min(group_users) < 1:
        return None
    lengths = [users * setting.items_per_user for users in group_users]

    def under(factor: float) -> list[schedule.Phase]:
        found = schedule.phases(setting, groups, lengths, [factor * s for s in steps], radii)
        return [with_noise(x, groups, setting.dim, releases, request.plain) for x in found]

    factor = request.step_size if printed is None else 1.0
    if factor is None:
        factor = schedule.best_step(
            lambda eta: schedule.excess_bound(setting, under(eta), 0.0),
            setting.distance / (setting.lipschitz * math.sqrt(lengths[0])),
        )
    found = under(factor)
    tested = [phase for phase in found if not phase.void]
    false_halt = len(tested) * releases.false_halt()
    apart = schedule.concentration_failure(setting, groups, tested)
    on_trust = apart > request.failure
    counted = min(1.0, false_halt + (0.0 if on_trust else apart))
    bound = schedule.excess_bound(setting, found, counted)
    plan = Plan(
        num_users=setting.num_users,
        items_per_user=setting.items_per_user,
        dim=setting.dim,
        group_users=group_users,
        constants="tight" if printed is None else "paper",
        clipped=tuple(phase.void for phase in found),
        reaches=tuple(reach(phase) for phase in found),
        releases=releases,
        noise_multiplier=request.plain,
        radii=tuple(phase.radius / 2 for phase in found),
        clip_norms=tuple(phase.farthest for phase in found),
        step_sizes=tuple(phase.step_size for phase in found),
        epsilon=request.budget.epsilon,
        delta=request.budget.delta,
        failure=false_halt,
        concentration_failure=apart,
        excess_bound=math.inf if setting.ridge else bound,
        assumed_concentration=float(on_trust),
    )
    return bound, plan


def best(
    request: Request,
    calibrate: Callable[[int], Any],
    num_groups: int | None,
    counts: Sequence[int],
) -> Plan:
    """The plan that proves most.

    Args:
        request: what was asked for.
        calibrate: the releases for a number of groups.
        num_groups: C; every number that the test allows, about, if left out.
        counts: numbers of phases to try.

    Raises:
        Infeasible: too few users, or too few groups, for the test or for the phases.
    """
    users = request.setting.num_users
    if num_groups is None:
        fewest = threshold_phase.fewest_users(calibrate)
        if fewest > users:
            raise Infeasible(
                f"num_users must be at least {fewest} here, got {users}", {"num_users": fewest}
            )
        choices = _geometric(fewest, users)
    else:
        choices = [num_groups]
        try:
            calibrate(num_groups)
        except Infeasible as refusal:
            least = refusal.needed.get("num_users")
            needed = {} if least is None else {"num_groups": least}
            raise Infeasible(str(refusal).replace("num_users", "num_groups"), needed) from None
    found = [
        made
        for groups, releases in ((groups, calibrate(groups)) for groups in choices)
        for count in counts
        if (made := candidate(request, groups, count, releases)) is not None
    ]
    if not found:
        raise Infeasible(
            f"num_users must be enough for {counts[0]} phases of {choices[0]} groups, got {users}"
        )
    return min(found, key=lambda made: made[0])[1]


def _by_phase(radius: float | Sequence[float], count: int) -> tuple[float, ...]:
    if isinstance(radius, int | float):
        radius = [radius] * count
    if len(radius) != count:
        raise ValueError(
            f"radius must be one number or {count}, one for each phase, got {radius!r}"
        )
    # Scores look at pairs.
    return tuple(2 * _checks.require_real("radius", value, 0) for value in radius)


def _geometric(first: int, last: int) -> list[int]:
    """Numbers from the first on, each larger by a third, up to the last."""
    numbers = [first]
    while (larger := math.ceil(4 * numbers[-1] / 3)) <= last:
        numbers.append(larger)
    return numbers
