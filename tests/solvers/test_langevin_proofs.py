"""What the privacy of ``langevin`` rests on: how steps shrink and differ, edits, and what is refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers._schedules import langevin as schedule
from dpsco_jax.solvers.item_level import langevin
from tests.support.edited_plans import everybody
from tests.support.langevin_cases import (
    DELTA,
    DIM,
    OBJECTIVES,
    USERS,
    edited,
    noiseless,
    plan_of,
    random_data,
    solver,
)


def test_points_stay_where_the_sensitivity_was_proven():
    """With noise that would carry them ten times as far, from a start that is not the origin."""
    objective, start = OBJECTIVES["whole space"], jnp.asarray([1.0, 0.0, -2.0])
    plan = plan_of(objective, num_steps=5, distance=0.5, step_size=1.0)
    plan = edited(plan, noise_multiplier=30 * float(plan.noise_multiplier))
    data = random_data(np.random.default_rng(0))
    ends = jax.jit(
        jax.vmap(lambda k: langevin.solve(k, plan, objective, data, start).params)
    )(jax.random.split(jax.random.key(0), 50))  # fmt: skip
    away = np.linalg.norm(np.asarray(ends) - np.asarray(start), axis=1)
    np.testing.assert_allclose(away, 0.5, rtol=1e-5)


def _adversarial(rng, kind):
    """Rows that make the sum as curved, as flat or as lopsided as they can."""
    rows = rng.normal(size=(USERS, 1, DIM))
    labels = rng.integers(0, 2, (USERS, 1)).astype(float)
    if kind == "one line":
        rows = np.broadcast_to(np.eye(DIM)[0], rows.shape) * 1e6
    elif kind == "one label":
        labels[:] = 1.0
    elif kind == "one user":
        rows[1:] = 0.0
    elif kind == "no number":
        rows[::2], labels[1] = np.nan, np.inf
    elif kind == "huge":
        rows, labels = 1e18 * rows, labels * 1e18
    return UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))


KINDS = ("random", "one line", "one label", "one user", "no number", "huge")


@pytest.mark.parametrize("name", ["ball", "huber"])
def test_a_step_shrinks_distances_whatever_the_data(name):
    """One step of the program, without noise, from pairs of starts; and the Hessian by power iteration."""
    objective, rng = OBJECTIVES[name], np.random.default_rng(3)
    planned_step = plan_of(objective, num_steps=1, regularization=0.0)
    longest = schedule.longest_step(objective.smoothness, objective.ridge)
    closest = 0.0
    for kind in KINDS:
        data = _adversarial(rng, kind)
        for step in (0.3 * longest, longest):
            plan = noiseless(edited(planned_step, step_size=step))
            c = 1 - float(plan.shrinkage)
            assert c == pytest.approx(1 - step * objective.ridge, abs=1e-5)
            for _ in range(6):
                a = rng.normal(size=DIM) * 0.2
                b = a + rng.normal(size=DIM) * 0.2
                ends = [
                    np.asarray(
                        solver(name)(jax.random.key(0), plan, data, jnp.float32(w)).params, float
                    )
                    for w in (a, b)
                ]
                ratio = np.linalg.norm(ends[0] - ends[1]) / np.linalg.norm(a - b)
                assert ratio <= c + 1e-5, kind
                closest = max(closest, ratio / c)
        hessian = jax.jit(jax.hessian(lambda w, data=data: mean_loss(objective)(w, data)))
        for size in (0.0, 0.3):
            found = np.asarray(hessian(jnp.float32(size * rng.normal(size=DIM))), float)
            v = rng.normal(size=DIM)
            for _ in range(50):
                v = found @ v
                v /= max(np.linalg.norm(v), 1e-30)
            assert v @ found @ v <= (objective.smoothness + objective.ridge) * (1 + 1e-5)
    assert closest >= 0.95


def _mover(objective, plan, start):
    """How far apart a run ends on two data sets."""
    run = jax.jit(lambda d: langevin.solve(jax.random.key(0), plan, objective, d, start).params)

    def moved(data, other):
        return float(np.linalg.norm(np.asarray(run(data), float) - np.asarray(run(other), float)))

    return moved


@pytest.mark.parametrize("objective", [losses.huber(2.0, 0.3), losses.logistic(2.0)])
def test_no_replaced_user_moves_a_step_by_more_than_the_sensitivity(objective):
    """Opposite rows, and the same row with the other label: 0.9 of it is reached at the start."""
    plan = noiseless(plan_of(objective, num_steps=1, distance=0.05, step_size=1e-3))
    rng, moved = np.random.default_rng(4), _mover(objective, plan, jnp.zeros(DIM))
    furthest = 0.0
    for trial in range(30):
        size = float(np.exp(rng.normal(0.0, 4.0)))
        rows, labels = rng.normal(size=(USERS, 1, DIM)), rng.normal(size=(USERS, 1)) * 3
        other_rows, other_labels = rows.copy(), labels.copy()
        if trial % 3 == 0:
            rows[0], labels[0], other_rows[0], other_labels[0] = size, 9.0, size, -9.0
        elif trial % 3 == 1:
            rows[0], labels[0], other_rows[0], other_labels[0] = size, 9.0, -size, 9.0
        else:
            other_rows[0] = [np.nan, np.inf, size][trial % 9 // 3]
            other_labels[0] = rng.normal() * size
        pair = [
            UserData(Example(jnp.asarray(r, jnp.float32), jnp.asarray(y, jnp.float32)))
            for r, y in ((rows, labels), (other_rows, other_labels))
        ]
        furthest = max(furthest, moved(*pair))
    assert 0.9 * float(plan.sensitivity) <= furthest <= float(plan.sensitivity)


def test_where_a_run_gets_to_no_user_moves_a_step_by_more_than_from_its_start():
    """A start that is not the origin may be in worse places: its steps have more noise."""
    objective = losses.logistic(1.0)
    plan = noiseless(plan_of(objective, num_steps=1, distance=0.05, step_size=1e-3))
    away = jnp.asarray([3.0, 0.0, 0.0])
    # Two rows that are both wrong with great confidence, on either side of the start.
    angle = math.radians(62.0)
    rows = np.zeros((2, USERS, 1, DIM), np.float32)
    rows[:, 0, 0, 0], rows[0, 0, 0, 1], rows[1, 0, 0, 1] = (
        -math.cos(angle), math.sin(angle), -math.sin(angle),
    )  # fmt: skip
    pair = [UserData(Example(jnp.asarray(r), jnp.ones((USERS, 1)))) for r in rows]
    moved = _mover(objective, plan, away)(*pair)
    assert float(plan.sensitivity) < moved <= float(plan.sensitivity_from(3.0))
    assert float(plan.sensitivity_from(1e2)) <= 2 * 1e-3 / USERS * (1 + 1e-4)


def _composed(plan):
    """μ by sums over steps, in NumPy."""
    c = 1 - float(plan.step_size) * (float(plan.regularization) + plan.proven_for.ridge)
    powers = c ** np.arange(plan.num_steps)
    return powers.sum() / math.sqrt(np.sum(powers**2)) / float(plan.noise_multiplier)


def test_a_plan_whose_numbers_are_edited_says_what_they_cost():
    plan = plan_of(OBJECTIVES["huber"], num_steps=20, regularization=0.3, step_size=0.5)
    assert 0.999 < plan.certificate().epsilon <= 1.0
    said = plan.certificate().epsilon
    for name, factor, dearer in [
        ("noise_multiplier", 0.5, True),
        ("noise_multiplier", 2.0, False),
        ("step_size", 0.5, True),
        ("step_size", 1.2, False),
        ("regularization", 0.1, True),
        ("regularization", 3.0, False),
        ("num_steps", 2, True),
    ]:
        other = edited(plan, **{name: getattr(plan, name) * factor})
        found = other.certificate().epsilon
        assert (found > 1.01 * said) == dearer, name
        assert found == pytest.approx(everybody(1 / _composed(other), 1, DELTA), rel=1e-4)
        assert float(privacy.epsilon(other.loss(), DELTA)) >= found
    # Beyond 2/(M + 2m) the shorter side of the map is what counts, up to 2/(M + m).
    long = edited(plan, step_size=1.35)
    assert float(long.shrinkage) == pytest.approx(2 - 1.35 * 1.4, rel=1e-4)
    for name, value in [
        ("noise_multiplier", 0.0),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", math.inf),
        ("step_size", 0.0),
        ("step_size", -0.5),
        ("step_size", 1.5),
        ("step_size", math.nan),
        ("regularization", -0.05),
        ("regularization", math.inf),
        ("regularization", math.nan),
    ]:
        other = edited(plan, **{name: value})
        assert other.certificate().epsilon == math.inf, (name, value)
        assert np.all(np.isinf(other.loss().rdp)), (name, value)
        traced = jax.jit(lambda p: p.loss().rdp)(jax.tree.map(jnp.float32, other))
        assert np.all(np.isinf(traced)), (name, value)


def test_losses_without_a_proof_of_contraction_are_refused():
    huber = losses.huber(1.0)
    for objective, named in [
        (losses.hinge(1.0), "objective must be smooth"),
        (losses.geometric_median(), "objective must be smooth"),
        (losses.squared(1.0, 1.0, 1.0), "objective must be globally_convex_lipschitz"),
        (losses.squared_distance(1.0, 1.0), "objective must be globally_convex_lipschitz"),
        (huber._replace(globally_convex_lipschitz=False), "globally_convex_lipschitz"),
        (huber._replace(loss=lambda w, z: jnp.sin(w[0])), r"a loss of problems\.losses"),
        (huber._replace(smoothness=0.5), "smoothness"),
        (huber._replace(lipschitz=0.5), "lipschitz"),
        (huber._replace(domain=domains.ball(1.0)._replace(project=lambda w: 3 * w)), "domain"),
    ]:
        with pytest.raises(ValueError, match=named):
            plan_of(objective)
    plan, data = plan_of(huber, num_steps=1), random_data(np.random.default_rng(0))
    for other in (losses.huber(1.0, delta=2.0), losses.huber(1.0, ridge=0.1)):
        with pytest.raises(ValueError, match="objective must be the one"):
            langevin.solve(jax.random.key(0), plan, other, data, jnp.zeros(DIM))
        with pytest.raises(ValueError, match=r"objective must have plan\.proven_for"):
            langevin.solve(
                jax.random.key(0), edited(plan, made_for=None), other, data, jnp.zeros(DIM)
            )
    logistic = losses.logistic(1.0)
    wider = edited(plan_of(logistic, num_steps=1), radius=50.0)
    with pytest.raises(ValueError, match=r"objective must have plan\.proven_for"):
        langevin.solve(jax.random.key(0), wider, logistic, data, jnp.zeros(DIM))


def test_bad_arguments():
    objective = OBJECTIVES["huber"]
    longest = 2 / (1.0 + 2 * (0.1 + 0.3))
    for name, value in [("step_size", 2 / 1.2), ("gradient_budget", USERS - 1)]:
        with pytest.raises(ValueError, match=f"{name} must be"):
            plan_of(objective, **{name: value})
    plan_of(objective, regularization=0.3, step_size=longest * (1 - 2**-15), num_steps=3)
    with pytest.raises(ValueError, match=r"step_size must be in \(0, 1\.111"):
        plan_of(objective, regularization=0.3, step_size=longest * (1 + 2**-20), num_steps=3)
    wide = plan_of(objective, precision="float64", num_steps=3)
    data = random_data(np.random.default_rng(0))
    with pytest.raises(ValueError, match="jax_enable_x64 must be on"):
        langevin.solve(jax.random.key(0), wide, objective, data, jnp.zeros(DIM))
    with jax.enable_x64(True), pytest.raises(ValueError, match="params must be"):
        langevin.solve(jax.random.key(0), wide, objective, data, jnp.zeros(DIM, jnp.float32))


def test_every_plan_keeps_its_budget_and_is_charged_for_it():
    """Sizes, budgets and constants over many powers of ten, half of the numbers given."""
    rng = np.random.default_rng(7)
    for trial in range(40):
        bound, ridge = 10.0 ** rng.uniform(-2, 2), float(rng.choice([0.0, 1e-6, 0.01, 1.0]))
        objective = [
            losses.logistic(bound, ridge=ridge),
            losses.huber(bound, 10.0 ** rng.uniform(-2, 2), ridge=ridge),
            losses.softmax(bound, 4, ridge=ridge),
        ][trial % 3]
        epsilon, delta = math.exp(rng.uniform(-4, 3.5)), 10.0 ** rng.uniform(-10, -1)
        given = {"num_steps": int(10 ** rng.uniform(0, 5))} if trial % 2 else {}
        plan = plan_of(
            objective, num_users=int(10 ** rng.uniform(0.4, 6)), dim=8, epsilon=epsilon, delta=delta,
            allow_large_delta=True, distance=10.0 ** rng.uniform(-2, 3), **given,
        )  # fmt: skip
        assert epsilon * (1 - 1e-4) <= plan.certificate().epsilon <= epsilon
        assert 0 < float(plan.predicted_excess) <= float(plan.excess_bound) < math.inf
        narrow = jax.tree.map(np.float32, plan)
        assert np.all(np.asarray(narrow.loss().rdp) <= np.asarray(plan.loss().rdp) * (1 + 1e-4))
