"""Phases of winsorized means as turns of one loop: the runs one by one, in a program that does not grow."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _sequence, first_order
from dpsco_jax.solvers.user_level import phased_erm
from tests.support.planned import planned

SIZES, DIM = (19, 33, 24), 2
POINTS = Objective(
    loss=lambda w, z: 0.5 * jnp.sum((w - z) ** 2),
    lipschitz=2.0,
    smoothness=1.0,
    domain=domains.ball(1.0),
)


@functools.cache
def _plan(form="clipped", count=3):
    """Phases of which no two numbers are the same, and whose noise is about as large as what it hides."""
    made = planned(
        phased_erm.plan, POINTS, num_users=sum(SIZES[:count]), items_per_user=2, dim=DIM, epsilon=2.0,
        delta=1e-5, form="clipped", most_steps=2,
    )  # fmt: skip
    parts = []
    for t, users in enumerate(SIZES[:count]):
        part, up, steps = made.parts[0], 1 + 0.3 * t, 2 + t
        releases = dataclasses.replace(
            part.releases, num_users=users, num_queries=steps, form=form, bound=1.2 * up,
            coordinate_radius=0.2 * up, bin_width=0.1 * up, range_epsilon=0.9 * up,
            coarse_multiplier=0.5 * up, ball_radius=0.8 * up, noise_multiplier=0.3 + t,
        )  # fmt: skip
        part = part.replace(releases=releases, pull=0.2 * up, chunk_size=5,
            step_sizes=np.linspace(0.5, 0.2, steps) * up, shares=1 / np.arange(1.0, steps + 1),
        )  # fmt: skip
        parts.append(part)
    return dataclasses.replace(made, num_users=sum(SIZES[:count]), parts=tuple(parts))


def _data():
    rng = np.random.default_rng(0)
    items = np.float32(0.3 + 0.2 * rng.normal(size=(sum(SIZES), 2, DIM)))
    mask = np.ones(items.shape[:2], bool)
    mask[::7, 0] = False
    items[4] = np.nan
    # Beyond the first turn, and in the second.
    items[SIZES[0]] = np.inf
    items[SIZES[0] + 1] = 9.0
    return UserData(items, mask)


def _run(key, plan, together):
    turns = first_order.TURNS if together else None
    solver, start = first_order.solve, jnp.full(DIM, -0.4)
    found = _sequence.run(key, plan.parts, solver, POINTS, _data(), start, turns=turns)
    return found._replace(unprivate={"gradients": found.unprivate["gradients"]})


@pytest.mark.slow
@pytest.mark.parametrize("form", ["refined", "recentred"])
def test_turns_are_the_phases_one_by_one(form):
    plan = _plan(form, 2)
    turns = first_order.TURNS
    assert [len(group) for group in _sequence.groups(plan.parts, turns, _data())] == [2]
    run = jax.jit(lambda key: [_run(key, plan, how) for how in (True, False)])
    seen = []
    for seed in range(2):
        one, other = run(jax.random.key(seed))
        np.testing.assert_allclose(one.params, other.params, rtol=1e-5, atol=1e-6)
        seen.append(one.params)
        assert one.unprivate["gradients"] == other.unprivate["gradients"] < one.gradients
        for name in ("status", "gradients"):
            assert int(getattr(one, name)) == int(getattr(other, name))
        for found, wanted in zip(one.privacy, other.privacy, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert np.linalg.norm(seen[0] - seen[1]) > 0.01
    worst = max(float(privacy.epsilon(part.loss(), 1e-5)) for part in plan.parts)
    assert float(privacy.epsilon(one.privacy, 1e-5)) == pytest.approx(worst, rel=1e-4)


def test_turns_descend_on_their_own_users_around_their_own_starts():
    """Without noise to speak of, against float64: another user, step, share or pull would be seen."""
    plan, data = _plan(), _data()
    quiet = tuple(
        part.replace(releases=dataclasses.replace(part.releases, noise_multiplier=1e-6))
        for part in plan.parts
    )
    found = jax.jit(lambda key: _run(key, plan.replace(parts=quiet), True))(jax.random.key(0))
    point, first = np.full(DIM, -0.4), 0
    for part in plan.parts:
        users = slice(first, first + part.num_users)
        items, mask = np.asarray(data.items[users], np.float64), data.mask[users]
        start = average = point
        for step, share in zip(part.step_sizes, part.shares, strict=True):
            rows = np.where(mask[..., None], point - items, 0).sum(1) / mask.sum(1)[:, None]
            rows = np.where(np.all(np.isfinite(rows), axis=1, keepdims=True), rows, 0)
            length = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
            mean = (rows * np.minimum(1, part.releases.bound / length)).mean(0)
            point = point - step * (mean + part.pull * (point - start))
            point = point / max(1, np.linalg.norm(point))
            average = average + share * (point - average)
        point, first = average, first + part.num_users
    np.testing.assert_allclose(found.params, point, atol=1e-5)
    assert found.unprivate["gradients"] < found.gradients == plan.item_gradients
    for joint, each in zip(
        found.privacy, zip(*(part.loss() for part in quiet), strict=True), strict=True
    ):
        np.testing.assert_allclose(joint, np.max(each, axis=0), rtol=1e-4)


def _with(index, **changes):
    plan = _plan()
    parts = list(plan.parts)
    of_releases = {
        name: changes.pop(name) for name in list(changes) if name not in ("step_sizes", "shares")
    }
    releases = dataclasses.replace(parts[index].releases, **of_releases)
    parts[index] = parts[index].replace(releases=releases, **changes)
    return plan.replace(parts=tuple(parts))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"step_sizes": np.ones(3)}, "step_sizes must be of 4 steps"),
        ({"num_queries": 5}, "step_sizes must be of 5 steps"),
        ({"shares": np.full(4, 1.5)}, "shares must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"bound": -1.0}, "bound must be"),
        ({"num_users": 25}, "at most 76 users"),
    ],
)
def test_what_a_phase_alone_refuses_is_refused_of_a_later_turn(changes, named):
    with pytest.raises(ValueError, match=named):
        _run(jax.random.key(0), _with(2, **changes), True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ball_radius", 0.0), ("ball_radius", math.nan), ("coarse_multiplier", math.inf)],
)
def test_numbers_of_two_means_that_a_phase_alone_refuses_are_refused_of_a_turn(name, value):
    first, last = _plan("recentred", 2).parts
    last = last.replace(releases=dataclasses.replace(last.releases, **{name: value}))
    plan = _plan("recentred", 2).replace(parts=(first, last))
    with pytest.raises(ValueError, match=f"{name} must be"):
        _run(jax.random.key(0), plan, True)
    assert not np.isfinite(last.loss().rdp).any()


def test_phases_of_other_kinds_or_sizes_have_programs_of_their_own():
    def grouped(plan):
        groups = _sequence.groups(plan.parts, first_order.TURNS, _data(), 3)
        return [len(group) for group in groups]

    assert grouped(_plan()) == [3]
    assert grouped(_with(1, form="refined")) == [1, 1, 1]
    assert grouped(_with(2, form="refined")) == [2, 1]
    assert grouped(_with(2, num_users=11)) == [3]
    assert grouped(_with(2, num_users=10)) == [2, 1]
    nonconvex = _plan().parts[0].replace(reported="random")
    assert grouped(_plan().replace(parts=(nonconvex, nonconvex))) == [1, 1]
