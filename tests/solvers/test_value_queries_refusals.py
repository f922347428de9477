"""What a run by value queries does not take on trust: shapes that broadcast, sets, declarations, edits."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Infeasible, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _user_losses, value_queries
from dpsco_jax.solvers.sampling._value_queries_plan import ends_of, setting_of

pytestmark = pytest.mark.usefixtures("float64")


@functools.cache
def planned(objective, dim=2, items=1):
    asked = Problem(objective, num_users=3, dim=dim, distance=1.0, items_per_user=items)
    return value_queries.plan(asked, Budget(1.0, 1e-2))


def setting(objective, dim):
    return setting_of(objective, 3, 1, dim, 2.0, None)


@pytest.mark.parametrize(
    "domain",
    [
        domains.box(
            np.array([-0.1]), np.array([0.1])
        ),  # of one entry it would be √d times too narrow
        domains.box(-0.1, 0.1),
        domains.box(np.zeros(3), np.ones(1)),
        domains.ball(0.1, np.array([0.2])),
    ],
)
def test_a_set_has_as_many_entries_as_there_are_parameters(domain):
    with pytest.raises(ValueError, match=r"objective\.domain must be of 3 entries"):
        setting(losses.logistic(1.0, domain), 3)


def test_a_set_stays_as_it_was_made():
    lower, upper = -np.ones(2), np.ones(2)
    domain = domains.box(lower, upper)
    lower[:] = -100.0
    np.testing.assert_array_equal(ends_of(losses.hinge(1.0, domain))[0], [-1.0, -1.0])
    np.testing.assert_array_equal(domain.project(jnp.full(2, -7.0)), [-1.0, -1.0])
    with pytest.raises(ValueError, match="read-only"):
        domains.proven_maker(domain)[1]["lower"][:] = -100.0


def test_the_extent_of_a_set_is_computed_in_float64():
    with jax.enable_x64(False):
        narrow = domains.box(np.array([2.0**24 - 1]), np.array([2.0**24 + 1]))
        tiny = domains.box(np.full(2, -1e-42), np.full(2, 1e-42))
    assert float(narrow.diameter) == 1.0  # of float32
    assert setting(losses.hinge(1.0, narrow), 1).diameter == pytest.approx(2.0)
    assert setting(losses.hinge(1.0, tiny), 2).diameter == pytest.approx(8**0.5 * 1e-42)
    long = setting(losses.hinge(1.0, domains.box(-np.ones(2), np.array([1.0, 3.0]))), 2)
    assert long.diameter == pytest.approx(20**0.5)
    # How large a point is, is of the farthest corner, and of the centre and the radius.
    near, away = np.array([0.05, -0.05]), np.array([1.0, -1.0])
    corner = losses.logistic(1.0, domains.box(near, near + 0.01))
    as_far = losses.logistic(1.0, domains.ball(math.hypot(0.06, 0.05)))
    assert setting(corner, 2).change == pytest.approx(setting(as_far, 2).change, rel=1e-9)
    shifted = losses.logistic(1.0, domains.ball(0.1, away))
    whole = losses.logistic(1.0, domains.ball(2**0.5 + 0.1))
    assert setting(shifted, 2).change == pytest.approx(setting(whole, 2).change)


SHAPES = {  # of the start, of features and labels, and what is refused
    # One user's loss would be the sum of three, √3 times as steep.
    "a matrix for a vector": (losses.logistic(1.0), (2, 3), (3, 1, 2), (3, 1), "params"),
    "a number for a vector": (losses.logistic(1.0), (), (3, 1, 1), (3, 1), "params"),
    # Items of a user would be taken for classes.
    "a vector for a matrix": (losses.softmax(1.0, 3), (6,), (3, 3, 6), (3, 3), "params"),
    "other classes": (losses.softmax(1.0, 3), (3, 2), (3, 1, 3), (3, 1), "params"),
    "an axis of features": (losses.logistic(1.0), (2,), (3, 1, 4, 2), (3, 1), "features"),
    "columns": (losses.logistic(1.0), (2,), (3, 1, 3), (3, 1), "features"),
    "an axis of labels": (losses.logistic(1.0), (2,), (3, 1, 2), (3, 1, 1), "label"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_axes_that_would_broadcast_are_refused(name):
    objective, start, features, labels, match = SHAPES[name]
    plan = planned(objective, math.prod(start), labels[1])
    data = UserData(Example(jnp.ones(features), jnp.zeros(labels)))
    with pytest.raises(ValueError, match=match):
        value_queries.solve(jax.random.key(0), plan, objective, data, jnp.zeros(start))


def test_columns_have_an_axis_of_their_own():
    objective = losses.logistic(1.0)
    data = UserData(Example(OneHot(jnp.zeros((3, 1), int)), jnp.zeros((3, 1))))
    with pytest.raises(ValueError, match="features"):
        value_queries.solve(jax.random.key(0), planned(objective), objective, data, jnp.zeros(2))


def test_labels_are_cut_whatever_is_said_of_their_range():
    absolute = losses.absolute(1.0)
    forged = absolute._replace(label_range=losses.hinge(1.0).label_range)
    data = UserData(Example(jnp.ones((2, 1, 2)), jnp.array([[1e300], [-1e300]])))
    sizes = _user_losses.Sizes(1000.0, 8.0)
    for objective in (absolute, forged):
        made = _user_losses.user_losses(
            objective, absolute.linear_model, data, jnp.zeros(2), sizes, 2.0, None
        )
        np.testing.assert_array_equal(made.records[2], [[8.0], [-8.0]])


def test_edits_of_what_is_static_cost_infinity():
    plan, on_ball = planned(losses.hinge(1.0)), planned(losses.hinge(1.0, domains.ball(1.0)))
    loss = jax.jit(lambda plan: plan.loss())
    for edited in (
        dataclasses.replace(plan, sizes=plan.sizes._replace(label_bound=math.inf)),
        dataclasses.replace(on_ball, ball_bounds=None),
    ):
        assert edited.certificate().epsilon == math.inf
        assert float(privacy.epsilon(loss(edited), 1e-2)) == math.inf
    # However short: nothing at all is proven.
    assert dataclasses.replace(edited, num_steps=1.0).chain.cap == 1.0


def test_sizes_that_float64_cannot_hold_are_named():
    asked = Problem(losses.hinge(1.0), num_users=3, dim=2, distance=1e20)
    with pytest.raises(Infeasible, match="units"):
        value_queries.plan(asked, Budget(1.0, 1e-2))
    endless = losses.hinge(1.0, domains.box(np.zeros(2), np.array([1.0, math.inf])))
    with pytest.raises(ValueError, match="finite"):
        value_queries.plan(Problem(endless, num_users=3, dim=2, distance=1.0), Budget(1.0, 1e-2))
