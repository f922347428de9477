"""Accelerated phased ERM: its schedule and bound, phases after a halt, counts, the paper's numbers."""

import math

import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains, smoothing
from dpsco_jax.problems import losses
from dpsco_jax.rates import user_level
from dpsco_jax.solvers._schedules import accelerated as schedule
from dpsco_jax.solvers.means import Clipped, OutlierRemoved
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_strongly_convex,
)
from tests.support.planned import planned

SMOOTH = losses.logistic(feature_bound=1.0, domain=domains.ball(1.0))
ROUGH = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))
BUDGET = {
    "num_users": 20_000,
    "items_per_user": 10,
    "dim": 50,
    "epsilon": 2.0,
    "delta": 1e-6,
    "distance": 1.0,
}


def _plan(objective=SMOOTH, **changes):
    return planned(accelerated_phased_erm.plan, objective, **(BUDGET | changes))


@pytest.fixture(scope="module")
def clipped():
    return _plan(mean=Clipped)


@pytest.fixture(scope="module")
def robust():
    return _plan(batch_size=20_000)


def _setting(dim=50, epsilon=2.0, delta=1e-6, num_users=20_000):
    problem = Problem(SMOOTH, num_users=num_users, items_per_user=10, dim=dim, distance=1.0)
    return schedule.of_problem(problem, Budget(epsilon, delta), smoothing_radius=0.0)


@pytest.mark.parametrize("which", ["clipped", "robust"])
def test_phases(which, request):
    plan = request.getfixturevalue(which)
    users = [phase.num_users for phase in plan.parts]
    assert sum(users) == plan.num_users
    assert users[0] >= plan.num_users // 2
    for first, second in zip(plan.parts, plan.parts[1:], strict=False):
        assert second.num_users == pytest.approx(first.num_users / 2, abs=2)
        assert second.pull == pytest.approx(8 * first.pull)
    for phase in plan.parts:
        assert phase.batch_size <= phase.num_users
        assert phase.smoothness == pytest.approx(0.25 + phase.pull)
        certificate = phase.certificate()
        assert 0.99 * 2.0 < certificate.epsilon <= 2.0
    assert plan.certificate().epsilon <= 2.0
    steps_and_batches = sum(p.num_steps * p.batch_size for p in plan.parts)
    assert plan.user_gradients == steps_and_batches
    assert plan.item_gradients == 10 * steps_and_batches
    assert len(plan.parts) >= 2
    assert len(str(plan).split("\n")) > 12


def test_the_bound_is_that_of_the_chain(robust):
    nearness, total = 1.0, 0.0
    for phase in robust.parts:
        n, lam, k = phase.num_users, phase.pull, phase.batch_size
        spread = min(1.0, phase.radius**2 + phase.failure)
        variance = 50 * phase.noise_stddev**2 + spread * (n - k) / (n - 1) / k
        length = phase.stage_length
        gap = math.inf
        for stage in range(phase.num_steps // phase.stage_length):
            distance = min(1 / lam, 2.0) ** 2 if stage == 0 else 2 * gap / lam
            gap = 2 * (0.25 + lam) * distance / (length * (length + 1))
            gap += 2 * variance / (lam * (length + 1))
        assert phase.gap_bound == pytest.approx(gap)
        total += lam * nearness / 2 + 2 / (lam * n * 10)
        nearness = 2 * gap / lam
    failure = sum(phase.failure for phase in robust.parts)
    expected = total + math.sqrt(nearness) + 2.0 * failure
    assert robust.excess_bound == pytest.approx(expected)
    assert robust.excess_bound < 1.0


def test_no_other_first_regularizer_or_number_of_phases_proves_more(clipped):
    """For the noise of full batches, where the model of the schedule is exact."""
    least = _plan(mean=Clipped, batch_size=20_000).excess_bound
    first = clipped.parts[0].pull
    count = len(clipped.parts)
    changes = [{"regularization": f * first} for f in (0.25, 4.0)]
    changes += [{"num_phases": count - 1}, {"num_phases": count + 1}]
    for change in changes:
        other = _plan(mean=Clipped, batch_size=20_000, **change)
        assert least <= 1.02 * other.excess_bound
    # More privacy, users or items: a smaller bound.
    for better in ({"epsilon": 4.0}, {"num_users": 40_000}, {"items_per_user": 40}):
        assert _plan(mean=Clipped, batch_size=40_000, **better).excess_bound < least


def test_printed_numbers():
    setting = _setting()
    lam = schedule.base_regularization(setting)
    assert lam == pytest.approx(1 / math.sqrt(2e5) + math.sqrt(50) / (2 * 20_000 * math.sqrt(10)))
    sizes = schedule.printed(setting, ratio=1.0, num_phases=3)
    assert [size.num_users for size in sizes] == [5000, 2500, 1250]
    decay = 3 + 2.5 + math.log(10) / (2 * math.log(20_000))
    assert sizes[0].regularization == pytest.approx(lam * 2**decay)
    assert sizes[2].regularization == pytest.approx(lam * 2 ** (3 * decay))
    # Far more users a step than there are.
    few = schedule.printed_batch(2000, 10, 50, 2.0, math.log(1e5))
    many = schedule.printed_batch(100_000, 10, 2000, 2.0, math.log(1e6))
    assert few == pytest.approx(2.8e6, rel=0.01)
    assert many == pytest.approx(2.6e7, rel=0.01)
    # And more noise than needed by two orders of magnitude, in units of 2τ.
    setting = _setting(dim=10, delta=1e-5)
    size = schedule.Size(2000, 1.0, 50, 1, 2000)
    assert schedule.printed_stddev(setting, size, 1.0) / 2 == pytest.approx(20.7, rel=0.01)


@pytest.mark.parametrize("smoothness", [1.0, 100.0])
def test_printed_counts_grow_as_the_closed_form(smoothness):
    """mΣTK of the printed schedule, logarithms taken off, against the rate: the same power of n = d."""
    method = next(m for m in user_level.METHODS if m.name == "accelerated_phased_erm")
    counts, rates = [], []
    users = [10**9, 10**13]
    for n in users:
        setting = _setting(dim=n, epsilon=1.0, delta=1e-20, num_users=n)
        setting = setting._replace(smoothness=smoothness)
        sizes = schedule.printed(setting, ratio=1.0, num_phases=6, decay=3.0)
        logs = math.sqrt(math.log(n * n * 10)) * (2 * math.log(10 * n) + 1 + math.log(1e20))
        counts.append(10 * sum(s.num_steps * s.batch_size for s in sizes) / logs)
        rates.append(method.gradients(user_level.Setting(n, 10, n, smoothness=smoothness)))
    slope, expected = (math.log(x[1] / x[0]) / math.log(1e4) for x in (counts, rates))
    assert slope == pytest.approx(expected, abs=0.02)
    assert expected == pytest.approx(9 / 8, abs=0.01)


def test_the_papers_schedule_is_refused_with_numbers_and_runs_with_batches_that_exist():
    with pytest.raises(ValueError, match=r"phase 1 of 14 has 5000 users and draws \d{7,} of them"):
        _plan(constants="paper")
    settings = {"batch_size": 20_000, "num_phases": 2, "constants": "paper"}
    plan = _plan(**settings)
    assert [phase.batch_size for phase in plan.parts] == [5000, 2500]
    for phase in plan.parts:
        sigma = 1000 * math.log(20_000 * 500) / math.sqrt(10) * math.sqrt(phase.num_steps)
        sigma *= (math.log(phase.num_users * 50 / 1e-6) + 2) / (2 * phase.num_users)
        assert phase.noise_stddev == pytest.approx(sigma, rel=1e-6)
        # The certificate is of the printed noise, not of what was needed.
        assert phase.certificate().epsilon < 1.5
        assert phase.releases.keep_level == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match=r"noise_stddev must be .*at least"):
        _plan(mean=Clipped, **settings)


@pytest.mark.slow
def test_radii_of_smoothing():
    rough = _plan(ROUGH, mean=Clipped, batch_size=20_000)
    least = schedule.printed_smoothing(_setting().problem, 2.0)
    radius = float(rough.parts[0].smoothing_radius)
    assert math.log(radius / least, 4) == pytest.approx(round(math.log(radius / least, 4)))
    assert least <= radius <= 1.0
    ball = smoothing.ball_smoothness(1.0, radius, 50)
    assert rough.parts[0].smoothness == pytest.approx(ball + rough.parts[0].pull)
    # Within a tenth of the bound of the least radius, at fewer steps.
    smallest = _plan(ROUGH, mean=Clipped, smoothing_radius=least, batch_size=20_000)
    assert rough.excess_bound <= 1.11 * smallest.excess_bound
    assert rough.user_gradients < smallest.user_gradients / 3
    assert _plan(mean=Clipped).parts[0].smoothing_radius is None
    with pytest.raises(ValueError, match="privacy resolves"):
        _plan(ROUGH, num_users=40, mean=Clipped, epsilon=0.01)


RIDGE = SMOOTH._replace(ridge=0.5)


def test_strongly_convex_blocks():
    settings = BUDGET | {"mean": Clipped, "batch_size": 20_000}
    plan = planned(accelerated_strongly_convex.plan, RIDGE, **settings)
    users = [block.num_users for block in plan.parts]
    assert sum(users) == 20_000
    assert len(users) == math.ceil(math.log2(math.log2(200_000)))
    assert users[-1] >= 10_000
    distances = [float(block.distance) for block in plan.parts]
    assert distances[0] == 1.0
    # The first block is small: it may end farther away than the start is said to be.
    reached = [math.sqrt(2 * block.excess_bound / 0.5) for block in plan.parts]
    assert distances[1:] == pytest.approx([min(r, 2.0) for r in reached[:-1]])
    assert distances[1] > 1.0
    assert distances[1:] == sorted(distances[1:], reverse=True)
    assert plan.excess_bound == plan.parts[-1].excess_bound < plan.parts[0].excess_bound
    assert plan.certificate().epsilon <= 2.0
    assert plan.item_gradients == 10 * plan.user_gradients
    assert "strongly convex" in str(plan)
    with pytest.raises(ValueError, match="strong_convexity must be"):
        planned(accelerated_strongly_convex.plan, SMOOTH, **settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decay": 2.0}, r"decay must be in \(2, inf\)"),
        ({"batch_size": [5], "num_phases": 2}, "batch_size must be one for each of 2 phases"),
        ({"outlier_share": 0.3}, r"outlier_share must be in \[0, 0.2\)"),
        ({"num_users": 100, "mean": OutlierRemoved}, "num_users must be at least"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _plan(**({"mean": Clipped} | changes))
