"""Section P of docs/corrections.md: the printed claim fails, ours holds."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems import losses
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _sequence
from dpsco_jax.solvers.combinators import localization, restarts
from dpsco_jax.solvers.item_level import _stages, private_ac_sa
from tests.support import exact_solver
from tests.support.planned import planned

BALL = exact_solver.quadratic(domain=domains.ball(3.0))
BUDGET = {"epsilon": 1.0, "delta": 1e-5, "allow_large_delta": True, "distance": 2.0}


def _certified(event):
    return privacy.certificate(event, 1e-5, NeighboringRelation.REPLACE_ONE).epsilon


def test_p1_printed_blocks_share_users():
    for users in (8, 64, 1000):
        printed = [
            {
                j
                for j in range(users + 1)
                if users - users / 2 ** (i - 1) <= j <= users - users / 2**i
            }
            for i in (1, 2, 3)
        ]
        assert printed[0] & printed[1]
        assert printed[1] & printed[2]
        data = UserData(jnp.arange(float(users))[:, None], None)
        start, seen = 0, []
        for size in _sequence.block_sizes(users, 0.5, 3):
            seen.append(np.asarray(_sequence.slice_users(data, start, size).items[:, 0]))
            start += size
        np.testing.assert_array_equal(np.concatenate(seen), np.arange(users))
    # Whoever is in two phases, each of which spends the whole budget, has spent more than it.
    plan = planned(localization.plan, exact_solver.planner(), BALL, num_users=1000, **BUDGET)
    assert _certified(plan.event) <= 1.0
    assert _certified(events.composed(*(part.event for part in plan.parts[:2]))) > 1.4


def test_p2_the_last_printed_phases_have_nobody():
    users = 1000
    sizes = [users // 2**i for i in range(1, math.ceil(math.log2(users)) + 1)]
    assert sizes[-1] == 0
    absolute = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))
    with pytest.raises(
        ValueError, match=r"sampling_fraction must be in \(0, 0.1\]|epsilon must be"
    ):
        planned(
            private_ac_sa.plan,
            absolute,
            num_users=sizes[6],
            dim=4,
            epsilon=0.5 / 2**7,
            delta=1e-5 / 2**7,
            constants="paper",
            regularization=1.0,
        )
    plan = planned(
        localization.plan,
        exact_solver.planner(),
        BALL,
        num_users=users,
        constants="paper",
        **BUDGET,
    )
    assert len(plan.parts) == 5
    assert "phases left out" in str(plan)
    # Enough phases: the term of the last one falls by 4 from each to the next.
    error = exact_solver.planner(lambda num_users, convexity, **rest: 16 / (convexity * num_users))
    for exponent in (10, 14, 18):
        users = 2**exponent
        plan = planned(localization.plan, error, BALL, num_users=users, **BUDGET)
        last = plan.parts[-1]
        term = 4 * math.sqrt(2 * last.excess_bound / last.regularization)
        assert term <= 4 * 2.0 / math.sqrt(users)


def test_p3_disjoint_phases_need_no_shares():
    users = 4000
    parallel = planned(localization.plan, exact_solver.planner(), BALL, num_users=users, **BUDGET)
    shared = planned(
        localization.plan,
        exact_solver.planner(),
        BALL,
        num_users=users,
        constants="paper",
        **BUDGET,
    )
    assert _certified(parallel.event) == pytest.approx(1.0, rel=1e-6)
    # With the printed shares, no user loses more than half of the budget.
    assert max(_certified(part.event) for part in shared.parts) <= 0.5
    assert shared.parts[2].multiplier > 5 * parallel.parts[2].multiplier
    # The minimizer of a phase: at most Gη_iN_i/2 = G/λ_i away, a quarter of the printed radius.
    rng, slope = np.random.default_rng(0), 4.0
    for strength in (0.5, 3.0):
        targets = rng.normal(size=100)
        w = np.linspace(-9, 9, 20_001)
        value = slope * np.abs(w[:, None] - targets).mean(1) + strength / 2 * (w - 9) ** 2
        assert abs(w[value.argmin()] - 9) <= slope / strength + 1e-3


def test_p4_the_ratio_of_stages_on_blocks():
    """The recursion of the proof with E_i/E_{i+1} = 8 ends at 16; with 32 it does not, in those units."""
    users, count, delta = 10**6, 6, 1e-6
    budgets = restarts.paper_stages(users, Budget(0.5, delta), count, True)

    def error(stage):
        return math.log(1 / stage.budget.delta) / (stage.budget.epsilon * stage.num_users) ** 2

    ratios = [error(a) / error(b) for a, b in itertools.pairwise(budgets)]
    assert 8 < min(ratios) <= max(ratios) <= 32
    for first in (1e6, 1e12, 1e24):
        ends = {}
        for ratio in (8, 32):
            gap, floor = first, 1.0
            for _ in range(math.ceil(math.log2(math.log2(first))) - 1):
                gap, floor = math.sqrt(gap * floor) + floor, floor / ratio
            ends[ratio] = gap / floor
        assert ends[8] <= 64 * 16
        assert 64 * 16 < ends[32] <= 1024 * 16


def test_p5_a_pass_in_every_stage():
    strong = BALL._replace(loss_strong_convexity=0.5)
    users = 10**5
    inner = exact_solver.planner(
        lambda distance, convexity, num_users, epsilon, **rest: (
            1e-6 / convexity / epsilon**2 + distance / num_users / epsilon
        )
    )
    request = {"num_users": users, **BUDGET}
    plan = planned(restarts.plan, inner, strong, constants="paper", **request)
    stages = math.ceil(math.log2(math.log2(users**3)))
    assert len(plan.parts) == stages == 6
    assert plan.user_gradients >= stages * 3 * users, "the claim: as many as one run"
    blocks = planned(restarts.plan, inner, strong, on_blocks=True, num_stages=6, **request)
    assert blocks.user_gradients <= 3 * users + 6


def test_p6_how_far_out_gradients_are_taken():
    users, dim, epsilon, delta, distance = 10**8, 1, 0.5, 1e-5, 1.0
    steps, batch = _stages.paper_population_sizes(users, dim, epsilon, delta)
    radius = distance * dim**0.25 / steps  # of the proof of Lemma 1.4.5
    zeta = 1 / users + dim * math.log(1 / delta) / (epsilon * users) ** 2
    assert radius > 2 * distance * math.sqrt(dim * math.log(1 / delta)) / (epsilon * users)
    assert radius <= distance * math.sqrt(zeta)
    absolute = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))
    plan = planned(
        private_ac_sa.plan,
        absolute,
        num_users=users,
        dim=dim,
        epsilon=epsilon,
        delta=delta,
        allow_large_delta=True,
        distance=distance,
        constants="paper",
        num_steps=steps,
        batch_size=batch,
        regularization=1.0,
    )
    assert plan.smoothing_radius == pytest.approx(radius)
    assert f"within {radius:.3g} of the domain" in plan.assumes[0]


def test_p7_the_printed_formulas():
    # The root: √(2Δ_i/μ + E_i/c) is not the sum of the two terms before it.
    gap, mu, c, a = 1.0, 0.5, 1.0, 1e-3  # a = G√(dℓ_i)/(ε_iN), so E = 2c²a²/μ
    before = c * a * math.sqrt(2 * gap / mu) + c * a**2 / mu
    error = 2 * c**2 * a**2 / mu
    assert math.sqrt(gap * error) + error / (2 * c) == pytest.approx(before)
    assert c * a * math.sqrt(2 * gap / mu + error / c) < before
    # The sign, and the mean over the block: F̂_i is least at ŵ_i, and λ_i = 2/(η_iN_i).
    plan = planned(
        localization.plan, exact_solver.planner(), BALL, num_users=100, step_size=0.3, **BUDGET
    )
    first = plan.parts[0]
    assert first.regularization == pytest.approx(2 / (0.3 / 4 * first.num_users))
    rng = np.random.default_rng(0)
    records, start = rng.normal(size=first.num_users), 2.0

    def value(w):
        term = (w - start) ** 2 / (0.3 / 4 * first.num_users)
        return 0.5 * np.square(w - records).mean() + term

    best = (records.mean() + first.regularization * start) / (1 + first.regularization)
    assert all(value(best) < value(best + step) for step in (-1e-3, 1e-3))
    # The induction of Lemma 1.4.6 starts below √x_1 + 1 if x_1 < 1.
    assert 2 * math.sqrt(0.1) < math.sqrt(0.1) + 1
