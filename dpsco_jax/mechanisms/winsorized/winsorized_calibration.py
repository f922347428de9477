"""How to spend a budget on winsorized means: intervals as cheap as they may be, noise with the rest.

What it computes: the numbers of ``WinsorizedReleases``. With ``constants="tight"``:

- the radius after rotation, τ' = τ·√(2 log(2ndT/γ)/d), bins of τ'/2, boxes of half-width h = 2.25·τ';
- η = (4/n)·log(T·d·bins/γ): the least with which all intervals of all queries hold, but for γ;
- the Gaussian noise that the budget leaves, by the Rényi curve of the whole composition;
- for the forms in two steps, the split of the noise between coarse and final mean that leaves least noise;
- ``form="auto"``: the form with the least noise.

With ``constants="paper"``: the printed numbers, Laplace noise and (nested) advanced composition, but for
the half-width 3·τ' (printed 2·τ'), which is needed for the interval to hold the values.

Source: L Theorems 2 and 3, Algorithm 6.

Formal guarantee: all queries together are (ε, δ)-DP under REPLACE_ONE, for any data; the radius, the bound
and γ bear on utility only. ``certificate()`` of the result confirms it.

Cost: some ten milliseconds.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._checks import (
    require,
    require_choice,
    require_count,
    require_each,
    require_inside,
    require_positive,
    require_real,
)
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import rotations
from dpsco_jax.mechanisms.winsorized import private_range as ranges
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases

FORMS = ("clipped", "winsorized", "refined", "recentred")
_LEDGER_ROUNDING = 2e-5
_MOST_OF_BUDGET = 0.9  # with less than a tenth of ε left for it, noise helps nobody
_SHARES = np.geomspace(1e-4, 0.7, 200)


def calibrate_winsorized(
    num_users: int,
    dim: int,
    num_queries: int,
    epsilon: float,
    delta: float,
    *,
    radius: float,
    bound: float,
    failure: float = 0.01,
    form: str = "auto",
    range_share: float | str = "auto",
    constants: str = "tight",
) -> WinsorizedReleases:
    """The releases of ``num_queries`` adaptive queries within (ε, δ). All arguments are public.

    Args:
        num_users: n ≥ 1 users in every query.
        dim: length of the vectors.
        num_queries: T ≥ 1.
        epsilon: budget of all queries, in (0, inf).
        delta: δ of that budget, in (0, 1).
        radius: τ: with high probability all vectors of a query lie within τ of some point.
        bound: B, to whose norm vectors are clipped first.
        failure: γ in (0, 1).
        form: ``"clipped"``, ``"winsorized"``, ``"refined"``, ``"recentred"`` or ``"auto"``; ``"paper"`` has
            one form.
        range_share: of the budget in zCDP that intervals take; in (0, 1), or ``"auto"`` (see above).
        constants: ``"tight"`` or ``"paper"``.

    Raises:
        ValueError: there are too few users for the intervals (the message has the least number), or ε is
            beyond what advanced composition gives (``"paper"``).
    """
    require_each(require_count, num_users=num_users, dim=dim, num_queries=num_queries)
    require_each(require_positive, epsilon=epsilon, radius=radius, bound=bound)
    require_each(require_inside, delta=delta, failure=failure)
    require_choice("form", form, ("auto", *FORMS))
    require_choice("constants", constants, ("tight", "paper"))
    automatic = isinstance(range_share, str) and range_share == "auto"
    if not automatic:
        range_share = require_real("range_share", range_share, 0.0, 1.0)
    blank = WinsorizedReleases(
        num_users=num_users,
        dim=dim,
        num_queries=num_queries,
        form="clipped",
        radius=float(radius),
        bound=float(bound),
        coordinate_radius=math.inf,
        bin_width=math.inf,
        range_epsilon=0.0,
        coarse_multiplier=math.inf,
        ball_radius=math.inf,
        noise_multiplier=math.inf,
        failure=float(failure),
        epsilon=float(epsilon),
        delta=float(delta),
    )
    if constants == "paper":
        require(form == "auto", "form", form, "'auto' for constants='paper'")
        return _as_printed(blank)

    exact = privacy.certified_noise_multiplier(
        privacy.FullBatch(), num_queries, epsilon, delta, NeighboringRelation.REPLACE_ONE
    )
    clipped = dataclasses.replace(blank, noise_multiplier=_above(exact))
    found = [clipped, _in_two_steps(clipped, "recentred")]
    boxed = ("winsorized", "refined")
    if form in boxed or (form == "auto" and _could_have_less_noise(blank, exact, found)):
        boxes = _with_boxes(blank, None if automatic else float(range_share), exact)
        if boxes is None and form != "auto":
            least = _least_users(blank)
            raise Infeasible(
                f"num_users must be at least {least} for the intervals of {num_queries}"
                f" queries in {blank.padded} coordinates at epsilon = {epsilon:g}, got {num_users}",
                {"num_users": least},
            )
        found += [] if boxes is None else [boxes, _in_two_steps(boxes, "refined")]
    of_form = [r for r in found if form in ("auto", r.form)]
    return min(of_form, key=lambda releases: releases.noise_stddev)


def _could_have_less_noise(
    blank: WinsorizedReleases, exact: float, found: list[WinsorizedReleases]
) -> bool:
    """Whether intervals would help if they cost no privacy, so that the noise were that without them."""
    free = dataclasses.replace(_box(blank), noise_multiplier=_above(exact))
    least = min(free.noise_stddev, _in_two_steps(free, "refined").noise_stddev)
    return bool(least < min(releases.noise_stddev for releases in found))


def _with_boxes(
    blank: WinsorizedReleases, share: float | None, gaussian_multiplier: float
) -> WinsorizedReleases | None:
    """The winsorized form, or ``None`` if the intervals take too much of the budget."""
    releases = _box(blank)
    target, delta = (1 - _LEDGER_ROUNDING) * blank.epsilon, blank.delta
    if share is None:
        releases = dataclasses.replace(releases, range_epsilon=_needed_epsilon(releases))
        intervals = privacy.bounded_range(releases.range_epsilon)
        intervals = privacy.scale(intervals, releases.padded * releases.num_queries)
        if privacy.epsilon(intervals, delta) > _MOST_OF_BUDGET * blank.epsilon:
            return None
        # As ``releases.loss()``, but the curve of the intervals is computed once.
        multiplier = privacy.calibrate(
            lambda m: privacy.compose(
                intervals, privacy.scale(privacy.gaussian(m), blank.num_queries)
            ),
            target,
            delta,
            0.5 * gaussian_multiplier,
            1e4 * gaussian_multiplier,
        )
        return dataclasses.replace(releases, noise_multiplier=_above(multiplier))

    def at(scale: Any) -> WinsorizedReleases:
        """Budget 1/scale² in zCDP, split as asked."""
        per_query = releases.num_queries**0.5 * scale
        return dataclasses.replace(
            releases,
            range_epsilon=float(np.float32((8 * share / releases.padded) ** 0.5 / per_query)),
            noise_multiplier=_above(per_query / (2 * (1 - share)) ** 0.5),
        )

    guess = 2 * math.sqrt(math.log(1 / delta)) / blank.epsilon + 1
    return at(privacy.calibrate(lambda s: at(s).loss(), target, delta, guess / 50, 50 * guess))


def _box(blank: WinsorizedReleases) -> WinsorizedReleases:
    """With radius and bins after the rotation."""
    radius = rotations.largest_coordinate(
        blank.radius, blank.num_users, blank.dim, blank.failure / blank.num_queries
    )
    radius = _above(float(radius))
    return dataclasses.replace(
        blank,
        form="winsorized",
        coordinate_radius=radius,
        bin_width=float(ranges.default_bin_width(radius)),
    )


def _needed_epsilon(releases: WinsorizedReleases) -> float:
    """The least η with which all intervals hold, but for γ."""
    bins = ranges.num_bins(releases.bound, releases.bin_width)
    intervals = releases.num_queries * releases.padded
    return _above(4 / releases.num_users * math.log(intervals * bins / releases.failure))


def _in_two_steps(once: WinsorizedReleases, form: str) -> WinsorizedReleases:
    """The Gaussian budget of a form split into a coarse mean of it and a final one: 1/σ² adds."""
    coarse = once.noise_multiplier / np.sqrt(_SHARES)
    final = once.noise_multiplier / np.sqrt(1 - _SHARES)
    tail = math.sqrt(2 * math.log(once.num_queries / once.failure))
    # The mean of independent vectors, and the coarse noise on it, each off by so much.
    off = once.radius * (1 + tail) / math.sqrt(once.num_users)
    off = off + coarse * once.sensitivity * (math.sqrt(once.dim) + tail)
    best = int(np.argmin(final * (once.radius + off)))
    return dataclasses.replace(
        once,
        form=form,
        coarse_multiplier=_above(coarse[best]),
        ball_radius=_above(once.radius + off[best]),
        noise_multiplier=_above(final[best]),
    )


def _least_users(blank: WinsorizedReleases) -> int:
    """The least number of users for which the intervals leave room for noise."""

    def enough(users: int) -> bool:
        releases = _box(dataclasses.replace(blank, num_users=users))
        intervals = privacy.bounded_range(_needed_epsilon(releases))
        intervals = privacy.scale(intervals, releases.padded * releases.num_queries)
        return bool(privacy.epsilon(intervals, blank.delta) <= _MOST_OF_BUDGET * blank.epsilon)

    low = high = blank.num_users
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _as_printed(blank: WinsorizedReleases) -> WinsorizedReleases:
    """Theorems 2 and 3: pure DP per coordinate by advanced composition, nested for several queries."""
    users, padded, queries = blank.num_users, blank.padded, blank.num_queries
    epsilon, delta = blank.epsilon, blank.delta
    if queries > 1:
        epsilon, delta = (
            epsilon / (2 * math.sqrt(2 * queries * math.log(2 / delta))),
            delta / (2 * queries),
        )
        spent = queries * epsilon * math.expm1(epsilon) + blank.epsilon / 2
        require(
            spent <= blank.epsilon,
            "epsilon",
            blank.epsilon,
            f"small enough that advanced composition gives it (it gives {spent:.4g})",
        )
    most = 8 * math.log(1 / delta)
    require(epsilon <= most, "epsilon", epsilon, f"at most 8·log(1/delta) = {most:.4g}")
    each = epsilon / math.sqrt(8 * padded * math.log(1 / delta))
    log_term = math.log(padded * users * queries / blank.failure)
    radius = _above(10 * blank.radius * math.sqrt(log_term / padded))
    return dataclasses.replace(
        blank,
        form="laplace",
        coordinate_radius=radius,
        bin_width=2 * radius,
        range_epsilon=float(np.float32(each / 2 * (1 - 2.0**-22))),
        noise_multiplier=_above(2 / each),
    )


def _above(value: float) -> float:
    """A float32 number above the value by 2 to 4 units in the last place."""
    return float(np.float32(value * (1 + 3 * 2.0**-23)))
