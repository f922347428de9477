"""The plan of privately ball-accelerated ERM: what it budgets, what it refuses."""

import math

import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.privacy import resque
from dpsco_jax.problems import losses
from dpsco_jax.solvers.resque import _ball_accelerated_plan as planner
from tests.support.planned import planned

OBJECTIVE = losses.absolute(1.0)
ARGUMENTS = {
    "num_users": 4000,
    "dim": 2,
    "epsilon": 2.0,
    "delta": 1e-5,
    "distance": 1.0,
    "condition": 3.0,
}


def plan(**changes):
    return planned(planner.plan, OBJECTIVE, **{**ARGUMENTS, **changes})


@pytest.fixture(scope="module")
def simple():
    return plan()


def test_sizes_are_those_of_the_theorem(simple):
    smoothing = 1 / 3  # a linear model sees one direction of a shift
    np.testing.assert_allclose(simple.smoothing_radius, smoothing)
    np.testing.assert_allclose(simple.ball_radius, smoothing / 12)
    balls = (12 / smoothing) ** (2 / 3)
    assert simple.outer.num_iterations == math.ceil(2.5 * balls)
    assert (simple.num_queries, simple.outer.max_searches) == (512, 2)
    assert simple.budgeted == (2 * simple.outer.num_iterations,)
    np.testing.assert_allclose(simple.outer.regularization, balls**2 / 3, rtol=1e-6)
    noise = 2 / (simple.beta * 512) ** 2 + 1 / 512
    expected = math.sqrt(10 * noise) / simple.outer.regularization / simple.ball_radius
    np.testing.assert_allclose(simple.predicted_error, expected, rtol=1e-6)
    assert simple.predicted_error < 0.5


def test_a_condition_that_is_left_out_is_the_largest_with_harmless_answers():
    made = plan(num_users=50_000, condition=None)
    assert planner.GOOD_ERROR / 1.05 <= made.predicted_error <= planner.GOOD_ERROR
    assert made.outer.condition > 20
    same = plan(num_users=50_000, condition=made.outer.condition)
    assert same.predicted_error == pytest.approx(made.predicted_error, rel=1e-3)
    more = plan(num_users=50_000, condition=1.1 * made.outer.condition)
    assert more.predicted_error > planner.GOOD_ERROR
    fine = plan(num_users=50_000, condition=None, largest_error=0.15)
    assert 0.15 / 1.05 <= fine.predicted_error <= 0.15
    # Too few for 5: that is tried, or refused, as before.
    few = plan(num_users=2000, condition=None)
    assert few.outer.condition == pytest.approx(5.0)
    assert few.predicted_error > planner.GOOD_ERROR
    with pytest.raises(planner.Infeasible):
        plan(num_users=200, condition=None)


def test_every_call_is_accounted_and_the_budget_is_used(simple):
    made = resque.calls_epsilon(simple.calls, 1e-5)
    assert 0.999 * 2.0 < made <= 2.0
    assert f"{simple.certificate().epsilon:.3g}" in str(simple)
    counts = {call.num_queries: count for call, count in simple.calls}
    assert counts == dict.fromkeys((32, 64, 128, 256), 2 * simple.outer.num_iterations)
    assert max(call.beta for call, _ in simple.calls) > 3.9 * simple.beta
    assert all(call.radius_ratio < 12.0 for call, _ in simple.calls)
    assert simple.loss().rdp.dtype == np.float32


@pytest.mark.parametrize(("prox", "levels"), [("mlmc", 2), ("mlmc_extended", 6)])
def test_levels_of_the_prox_are_drawn_and_counted(simple, prox, levels, monkeypatch):
    monkeypatch.setattr(planner.accounting, "calibrated_beta", lambda *_: 0.5)
    own = simple.loss()
    monkeypatch.setattr(planner.accounting, "loss", lambda *_: own)
    made = plan(prox=prox, reuse=False, search_runs=3, levels_seed=1)
    iterations = made.outer.num_iterations
    assert made.max_level == made.copies == levels
    drawn = np.asarray(made.prox_levels)
    assert drawn.shape == (iterations, levels)
    counts = [iterations * (2 * 3 + 1) + drawn.size] + [0] * levels
    for level in drawn.ravel():
        if level:
            counts[level] += 1
            counts[level - 1] += 1
    assert made.budgeted == tuple(counts)
    assert made.kinds[0] == (512, 1.0, False)
    assert made.kinds[2] == (2048, 0.5, False)
    replacement = [replaced for size, _, replaced in made.kinds if size > 4000]
    assert all(replacement)
    total = sum(count for _, count in made.calls_at(0.1, made.radius_ratio))
    assert total == sum(
        count
        * len(planner.accounting.strongly_convex_calls(resque.ResqueCall(size, 0.1, 12.0, 10**6)))
        for count, (size, _, _) in zip(made.budgeted, made.kinds, strict=True)
    )


def test_the_levels_are_public_coins(simple, monkeypatch):
    monkeypatch.setattr(planner.accounting, "calibrated_beta", lambda *_: 0.5)
    own = simple.loss()
    monkeypatch.setattr(planner.accounting, "loss", lambda *_: own)
    first, same, other = (plan(prox="mlmc", reuse=False, levels_seed=seed) for seed in (0, 0, 1))
    assert first.budgeted == same.budgeted
    assert np.any(np.asarray(first.prox_levels) != np.asarray(other.prox_levels))


def test_a_plan_that_would_return_noise_is_refused_with_numbers(monkeypatch):
    # Calibration by a law like that of a large number of calls.
    def beta(calls_at, epsilon, delta, near=None):
        ((call, count), *_) = calls_at(1.0)
        return 1.3 * epsilon * call.population / call.num_queries / 16 / count

    monkeypatch.setattr(planner.accounting, "calibrated_beta", beta)
    with pytest.raises(
        ValueError, match=r"condition = 3 .* 400 users .* epsilon = 0.2.* users or eps"
    ):
        plan(num_users=400, epsilon=0.2)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"radius_ratio": 1.5}, "radius_ratio"),
        ({"num_queries": 3}, "num_queries"),
        ({"num_queries": 5000}, "num_queries"),
        ({"search": "adaptive"}, "search"),
        ({"prox": "mlmc", "reuse": False, "num_queries": 4000}, "num_queries"),
    ],
)
def test_bad_arguments_are_refused(changes, name):
    with pytest.raises(ValueError, match=name):
        plan(**changes)


def test_losses_without_a_proof_are_refused():
    with pytest.raises(ValueError, match="linear model"):
        planned(planner.plan, losses.geometric_median(domains.ball(1.0)), **ARGUMENTS)


def test_a_domain_bounds_the_distance(simple, monkeypatch):
    monkeypatch.setattr(planner.accounting, "calibrated_beta", lambda *_: 0.5)
    own = simple.loss()
    monkeypatch.setattr(planner.accounting, "loss", lambda *_: own)
    objective = losses.absolute(1.0, domain=domains.ball(0.5))
    made = planned(planner.plan, objective, **{**ARGUMENTS, "distance": None})
    assert float(made.outer.distance) == 1.0
