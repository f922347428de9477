"""Plans as text: every number under its name, plans in order side by side, costs and assumptions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems import losses
from dpsco_jax.solvers import plans
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import sgd


@pytree
class Inner:
    size: int = static()
    step: Number


@pytree
class Outer:
    title: str = static()
    flag: bool = static()
    loss: Any = static()
    parts: tuple[Inner, ...]
    first: Inner
    radius: Number
    table: Number
    epsilon: Number = 2.0
    delta: Number = 1e-5

    num_steps = 7
    assumes = ("one thing", "another")


PLAN = Outer("hidden", True, abs, (Inner(3, 0.5), Inner(3, 0.25)), Inner(4, 1.0), None, np.ones(12))


def test_every_number_has_a_line_with_its_name():
    text = plans.describe("a title", PLAN, [("remark", "is kept")])
    lines = [line.split() for line in text.split("\n")]
    assert lines == [
        ["a", "title"],
        ["flag", "True"],
        ["parts", "2", "in", "order"],
        ["size", "3"],
        ["step", "0.5", "|", "0.25"],
        ["first", "Inner"],
        ["size", "4"],
        ["step", "1"],
        ["table", *["1,"] * 8, "..."],
        ["remark", "is", "kept"],
        ["num_steps", "7"],
        ["assumes", "one", "thing"],
        ["assumes", "another"],
        ["budget", "(2,", "1e-05)"],
    ]


def test_a_field_of_one_part_alone_is_missing_in_the_other():
    plan = dataclasses.replace(PLAN, parts=(PLAN.first, Inner(4, None)))
    assert ["step", "1", "|", "-"] in [line.split() for line in str(_shown(plan)).split("\n")]


def _shown(plan):
    return plans.describe("", plan)


def test_a_batch_of_plans_has_no_certificate_and_says_so():
    problem = Problem(losses.logistic(1.0), num_users=50, dim=2, distance=1.0)
    made = [
        sgd.plan(problem, Budget(epsilon, 1e-5), num_steps=3, sampling="full")
        for epsilon in (1.0, 2.0)
    ]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
    with pytest.raises(ValueError, match="noise_multiplier must be one number"):
        batch.certificate()
    assert "none: noise_multiplier must be one number" in str(batch)
    assert "certificate" in str(made[0])
    assert "none:" not in str(made[0])


@pytest.mark.parametrize("clip_norm", [1e-37, 1e-30])
def test_noise_that_float32_cannot_draw_is_no_plan(clip_norm):
    """With a clip norm of 1e-37 noise is flushed to zero: the result was exact, at a stated ε of 1."""
    problem = Problem(losses.geometric_median(), num_users=100, dim=1, distance=1.0)
    settings = {"num_steps": 1, "sampling": "full", "step_size": 1.0}
    with pytest.raises(ValueError, match="noise that float32 can draw"):
        sgd.plan(problem, Budget(1.0, 1e-5), clip_norm=clip_norm, **settings)
    good = sgd.plan(problem, Budget(1.0, 1e-5), clip_norm=1e-20, **settings)
    for edited in (clip_norm, 1e-45, 0.0, -1.0, 3e38, np.nan, np.inf):
        plan = good.replace(clip_norm=edited)
        assert np.all(np.isinf(plan.loss().rdp))
        with pytest.raises(ValueError, match="clip_norm must be"):
            plan.certificate()


def test_a_bound_above_what_the_start_has_is_called_vacuous():
    """L·R, with a ridge the slope of both; without one, and nothing that confines, at most β·R²/2."""
    budget, sizes = Budget(1.0, 1e-6), {"dim": 20, "distance": 3.0}
    absolute = losses.absolute(2.0)
    few, many = (
        private_ac_sa.plan(Problem(absolute, num_users=n, **sizes), budget) for n in (50, 200_000)
    )
    assert few.made_for.idle == many.made_for.idle == 6.0
    assert few.excess_bound >= 6.0 > many.excess_bound
    assert few.vacuous
    assert not many.vacuous
    assert "vacuous" in str(few)
    assert "an excess of at most 6" in str(few)
    assert "vacuous" not in str(many)
    assert not few.replace(made_for=None).vacuous
    assert not few.replace(excess_bound=np.inf).vacuous  # it states no bound
    logistic = losses.logistic(feature_bound=1.0)
    flat = private_ac_sa.plan(Problem(logistic, num_users=50, dim=20, distance=0.1), budget)
    assert flat.made_for.idle == pytest.approx(0.25 * 0.1**2 / 2, rel=0.1)
    batch = few.replace(excess_bound=np.array([1.0, 7.0]))
    assert list(batch.vacuous) == [False, True]
