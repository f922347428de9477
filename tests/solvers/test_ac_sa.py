"""AC-SA without privacy: schedules and their bounds, stage by stage; sampled, smoothed and composite runs."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy, transforms
from dpsco_jax.geometry import domains, prox
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.convex import ac_sa, ac_sa_stages
from dpsco_jax.solvers.convex.ac_sa_stages import Setting
from tests.support.planned import planned

ABSOLUTE = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))
LOGISTIC = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0), ridge=0.02)


def _quadratic(curvature, lipschitz=math.inf):
    """½ Σ_i h_i (w_i - z_i)² over z."""
    curvature = np.asarray(curvature, np.float32)
    return Objective(
        loss=lambda w, z: 0.5 * jnp.sum(curvature * jnp.square(w - z)),
        lipschitz=lipschitz,
        smoothness=float(curvature.max()),
        domain=domains.whole_space(),
        loss_strong_convexity=float(curvature.min()),
    )


# The schedules.


def test_lengths_and_bounds_of_the_stages():
    problem = Setting(smoothness=2.0, strong_convexity=0.1, gradient_variance=0.5, distance=3.0)
    first_gap = 0.5 * 0.1 * 9
    stages = ac_sa_stages.stages_to(problem, first_gap / 2**5 * 1.0001)
    for k, length in enumerate(stages.lengths, start=1):
        noise = 128 * 2**k * 0.5 / (3 * 0.1 * first_gap)
        assert length == math.ceil(max(4 * math.sqrt(40), noise))
        until_k = ac_sa_stages.convex_stages(problem, "multi_stage", stages.lengths[:k])
        assert until_k.excess_bound <= first_gap / 2**k
        assert until_k.smoothness[-1] >= 4.0
    # The recursion of proven bounds may need fewer stages than halvings, never more.
    assert len(stages.lengths) <= 5
    assert stages.excess_bound <= first_gap / 2**5 * 1.0001
    exact = ac_sa_stages.convex_stages(
        dataclasses.replace(problem, gradient_variance=0.0), "multi_stage", (26, 26)
    )
    assert exact.excess_bound <= first_gap / 8**2
    assert exact.smoothness.tolist() == [2.0, 2.0]


def test_one_stage_is_the_guarantee_of_the_transformation():
    problem = Setting(smoothness=2.0, strong_convexity=0.1, gradient_variance=0.5, distance=3.0)
    strong = ac_sa_stages.one_stage(problem, "strongly_convex", 50)
    assert strong.excess_bound == pytest.approx(2 * 2 * 9 / (50 * 51) + 2 * 0.5 / (0.1 * 51))
    convex = ac_sa_stages.one_stage(problem, "convex", 50)
    gamma = transforms.balanced_smoothness(2.0, 0.5, 50, 3.0)
    bound = 2 * gamma * 9 / (50 * 51) + 0.5 * 101 / (6 * gamma)
    assert convex.excess_bound == pytest.approx(bound)
    assert convex.strong_convexity == 0
    exact = dataclasses.replace(problem, gradient_variance=0.0)
    assert ac_sa_stages.one_stage(exact, "convex", 50).smoothness == 2.0
    with pytest.raises(ValueError, match="policy of one stage"):
        ac_sa_stages.one_stage(problem, "multi_stage", 50)


@pytest.mark.parametrize("objective", [LOGISTIC, ABSOLUTE, ABSOLUTE._replace(ridge=0.1)])
def test_an_excess_is_reached_in_the_fewest_steps(objective):
    settings = {"num_users": 400, "dim": 5, "batch_size": 100}
    plan = planned(ac_sa.plan, objective, excess=0.1, **settings)
    assert plan.excess_bound <= 0.1
    back = planned(ac_sa.plan, objective, num_steps=plan.num_steps, **settings)
    assert back.excess_bound <= plan.excess_bound * (1 + 1e-12)
    if len(plan.stages.lengths) == 1:
        fewer = planned(ac_sa.plan, objective, num_steps=plan.num_steps - 1, **settings)
        assert fewer.excess_bound > 0.1
    if objective.strong_convexity > 0:
        staged = planned(ac_sa.plan, objective, excess=0.1, policy="multi_stage", **settings)
        assert plan.num_steps <= staged.num_steps
        assert staged.excess_bound <= 0.1
        longer = planned(
            ac_sa.plan, objective, num_steps=staged.num_steps + 3, policy="multi_stage", **settings
        )
        assert longer.num_steps == staged.num_steps + 3


def test_smoothing_where_it_proves_more():
    assert planned(ac_sa.plan, ABSOLUTE, num_users=10, dim=4, num_steps=50).smoothed
    assert not planned(ac_sa.plan, LOGISTIC, num_users=10, dim=4, num_steps=50).smoothed
    rough = LOGISTIC._replace(smoothness=1e6)
    assert planned(ac_sa.plan, rough, num_users=10, dim=4, num_steps=50).smoothed
    # β + 4·c_d·G·R²/(r·T(T+1)) is smallest at the plan's radius, for full batches of many users.
    plan = planned(ac_sa.plan, ABSOLUTE, num_users=10**9, dim=3, num_steps=40)
    bias = 0.75 * plan.smoothing_radius
    assert bias == pytest.approx(4 * 1.5 * 4 / (plan.smoothing_radius * 40 * 41))
    assert plan.excess_bound == pytest.approx(2 * bias, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": None}, "one of num_steps and excess"),
        ({"excess": 0.1}, "one of num_steps and excess"),
        ({"num_steps": None, "excess": 1e-12, "batch_size": 5}, "excess must be reached in fewer"),
        ({"batch_size": 11}, r"batch_size must be an integer in \[1, 10\]"),
        ({"policy": "multi_stage", "num_steps": 3}, "num_steps must be at least 22"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    settings = {"num_users": 10, "dim": 4, "num_steps": 50}
    with pytest.raises(ValueError, match=message):
        planned(ac_sa.plan, LOGISTIC._replace(smoothness=0.28), **(settings | changes))
    for policy in ("multi_stage", "strongly_convex"):
        with pytest.raises(ValueError, match=r"strong_convexity must be in \(0, inf\)"):
            planned(ac_sa.plan, ABSOLUTE, policy=policy, **settings)
    neither = ABSOLUTE._replace(lipschitz=math.inf)
    with pytest.raises(ValueError, match="objective must be smooth or Lipschitz"):
        planned(ac_sa.plan, neither, **settings)


# The runs.


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kappa", [pytest.param(2.0, marks=SLOW), 10.0, pytest.param(100.0, marks=SLOW), 1000.0]
)
def test_every_stage_at_least_halves_the_gap_without_noise(kappa):
    curvature = np.geomspace(1 / kappa, 1.0, 12)
    objective = _quadratic(curvature)
    start = jnp.asarray(
        np.sqrt(2 / curvature / 12), jnp.float32
    )  # a gap of one, all coordinates alike
    distance = float(np.linalg.norm(start))
    length = math.ceil(4 * math.sqrt(2 * kappa))
    settings = {"num_users": 1, "dim": 12, "num_steps": 3 * length, "policy": "multi_stage"}
    plan = planned(ac_sa.plan, objective, distance=distance, **settings)
    assert plan.stages.lengths == (length,) * 3
    data = UserData(jnp.zeros((1, 1, 12)), None)
    solution = jax.jit(
        lambda w: ac_sa.solve(
            jax.random.key(0), plan, objective, data, w, trace=lambda w, state, estimate: w
        )
    )(start)
    ends = np.asarray(solution.unprivate["trace"], np.float64)[length - 1 :: length]
    gaps = np.append(1.0, 0.5 * np.sum(curvature * ends**2, axis=1))
    assert np.all(gaps[1:] <= gaps[:-1] / 8 + 1e-12)
    np.testing.assert_allclose(solution.params, ends[-1], rtol=1e-5, atol=1e-6)
    assert gaps[-1] <= plan.excess_bound
    assert solution.status == Status.OK
    assert solution.gradients == 3 * length
    assert privacy.epsilon(solution.privacy, 0.5) == math.inf


def test_sampled_stages_stay_below_their_bounds_on_average():
    rng = np.random.default_rng(0)
    users, dim, batch, runs = 20, 3, 2, 100
    curvature = np.array([0.2, 0.5, 1.0])
    points = np.float32(rng.normal(size=(users, dim)))
    # The deviation of a user's gradient from the mean does not depend on the point; its size stands for G.
    deviation = math.sqrt(np.sum(np.var(curvature * points, axis=0)))
    objective = _quadratic(curvature, deviation)
    best, start = points.mean(0), points.mean(0) + np.float32([30.0, -10.0, 10.0])
    settings = {"num_users": users, "dim": dim, "batch_size": batch, "policy": "multi_stage"}
    plan = planned(
        ac_sa.plan, objective, excess=0.3, distance=float(np.linalg.norm(start - best)), **settings
    )
    assert len(plan.stages.lengths) >= 3
    data = UserData(jnp.asarray(points[:, None]), None)
    run = jax.jit(
        jax.vmap(
            lambda key: ac_sa.solve(
                key, plan, objective, data, jnp.asarray(start), trace=lambda w, state, estimate: w
            )
        )
    )
    solutions = run(jax.random.split(jax.random.key(0), runs))
    ends = np.cumsum(plan.stages.lengths) - 1
    seen = np.asarray(solutions.unprivate["trace"], np.float64)[:, ends]
    gaps = 0.5 * np.sum(curvature * (seen - best) ** 2, axis=-1).mean(0)
    problem = Setting(1.0, 0.2, deviation**2 / batch * 18 / 19, plan.distance)
    for k, gap in enumerate(gaps, start=1):
        stages = ac_sa_stages.convex_stages(problem, "multi_stage", plan.stages.lengths[:k])
        assert gap <= stages.excess_bound
    assert stages.excess_bound == pytest.approx(plan.excess_bound)
    # Not idle: after the last stage the noise is what is left.
    assert 1e-4 < gaps[-1] < gaps[0]


def test_a_composite_term_over_the_domain():
    # ½Σ h_i(w_i - z_i)² + 0.3‖w‖₁ on a box: coordinates separate, the minimizer is known.
    curvature, point = np.array([0.5, 1.0, 0.8]), np.array([2.0, -0.7, 0.1])
    box = domains.box(jnp.full(3, -1.0), jnp.full(3, 0.5))
    objective = _quadratic(curvature)._replace(domain=box)
    data = UserData(jnp.float32(point)[None, None], None)
    plan = planned(ac_sa.plan, objective, num_users=1, dim=3, num_steps=60)
    solution = ac_sa.solve(
        jax.random.key(0), plan, objective, data, jnp.full(3, 9.0), term=prox.l1(0.3)
    )
    free = np.sign(point) * np.maximum(np.abs(point) - 0.3 / curvature, 0)
    np.testing.assert_allclose(solution.params, np.clip(free, -1, 0.5), atol=1e-4)
    away = objective._replace(domain=domains.ball(box.diameter / 2, jnp.ones(3)))
    with pytest.raises(ValueError, match="prox must be a term"):
        ac_sa.solve(jax.random.key(0), plan, away, data, jnp.zeros(3), term=prox.l1(0.3))
    with pytest.raises(ValueError, match=r"data must have plan\.num_users = 1 users"):
        ac_sa.solve(
            jax.random.key(0), plan, away, UserData(jnp.zeros((2, 1, 3)), None), jnp.zeros(3)
        )
