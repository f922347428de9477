"""Localized SGD: disjoint blocks, parallel accounting, the number of blocks, the last block's law."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.problems import losses
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.user_level import localized_sgd
from tests.support.planned import planned

USERS, ITEMS, DIM, DELTA, EPSILON = 150, 4, 2, 1e-3, 20.0
POINTS = losses.squared_distance(point_bound=1.0, radius=1.0)
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "delta": DELTA}


def _plan(**changes):
    settings = {"epsilon": EPSILON, "num_blocks": 2, "num_steps": 6, "radius": 0.6} | SIZES
    return planned(localized_sgd.plan, POINTS, **(settings | changes))


def _uneven():
    """Blocks of other numbers of steps."""
    return _with(_plan(), 0, num_steps=4)


def _data(seed=0, spread=0.2):
    rng = np.random.default_rng(seed)
    points = [0.3, -0.1] + spread * rng.normal(size=(USERS, ITEMS, DIM))
    return UserData(jnp.asarray(points, jnp.float32))


@jax.jit
def _run(key, plan, data):
    return localized_sgd.solve(key, plan, POINTS, data, jnp.zeros(DIM))


def test_number_of_blocks_of_the_paper():
    printed = localized_sgd.printed_num_blocks
    found = [printed(2**x, 1) for x in (2, 4, 5, 8, 9, 16, 17, 32, 33)]
    assert found == [1, 2, 3, 3, 4, 4, 5, 5, 6]
    assert printed(20_000, 100) == 5
    assert printed(655, 100) == 4
    assert printed(256, 256) == 4
    with pytest.raises(ValueError, match="at least 4"):
        printed(3, 1)
    sizes = {"num_users": 8000, "items_per_user": 8, "delta": 1e-4, "num_steps": 2}
    plan = _plan(num_blocks=None, constants="paper", radius=0.5, **sizes)
    assert [block.num_users for block in plan.parts] == [500, 1000, 2000, 4000]


def test_distances_follow_from_the_proven_bounds():
    def made(num_users=20_000, **given):
        sizes = {"items_per_user": 10_000, "dim": 5, "epsilon": 4.0, "delta": 1e-6}
        return planned(localized_sgd.plan, POINTS, num_users=num_users, **sizes, **given)

    plan = made(num_blocks=4)
    assert sum(block.num_users for block in plan.parts) == 20_000
    assert plan.distances[0] == 2.0, "the diameter; 2G/μ = 4 is larger"
    for before, block, distance in zip(
        plan.distances, plan.parts, plan.distances[1:], strict=False
    ):
        assert distance == pytest.approx(np.sqrt(2 * block.excess_bound))
        assert distance < before / 2
    assert plan.excess_bound == plan.parts[-1].excess_bound < plan.parts[0].excess_bound / 100
    # Better than all users at once for the whole distance, and the default finds it.
    assert made().excess_bound <= plan.excess_bound
    assert len(made(300).parts) == 1, "two blocks have too few users for the test"


def _with(plan, index, **numbers):
    """The plan with other numbers in the releases of one block."""
    blocks = list(plan.parts)
    releases = dataclasses.replace(blocks[index].releases, **numbers)
    blocks[index] = blocks[index].replace(releases=releases)
    return plan.replace(parts=tuple(blocks))


def test_a_user_of_the_second_block_does_not_touch_the_first():
    plan, data, key = _uneven(), _data(), jax.random.key(0)
    first = plan.parts[0].num_users
    other = data._replace(items=data.items.at[first + 3].set(-1.0))
    # No score reaches this threshold: the second block halts, and the first one's point is returned.
    stopped = _with(plan, 1, threshold=1e9)
    points = [_run(jax.random.clone(key), stopped, d) for d in (data, other)]
    assert points[0].status == Status.HALTED
    assert np.linalg.norm(points[0].params) > 0.01
    np.testing.assert_array_equal(points[0].params, points[1].params)
    ends = [_run(jax.random.clone(key), plan, d) for d in (data, other)]
    assert np.any(ends[0].params != ends[1].params)

    # The loss is one block's, not two.
    joint = privacy.epsilon(ends[0].privacy, DELTA)
    blocks = [privacy.epsilon(block.loss(), DELTA) for block in plan.parts]
    np.testing.assert_allclose(joint, max(blocks), rtol=1e-3)
    assert plan.certificate().epsilon <= EPSILON
    assert ends[0].gradients == (4 * 50 + 6 * 100) * ITEMS == plan.item_gradients
    assert ends[0].status == Status.OK


def test_once_a_block_halts_nothing_moves():
    """The first block's users disagree: the run ends where it has started, whatever the others hold."""
    plan, data = _uneven(), _data(spread=0.0)
    first = plan.parts[0].num_users
    camps = jnp.where(jnp.arange(first)[:, None, None] % 2 == 0, 1.0, -1.0)
    torn = UserData(data.items.at[:first].set(camps / np.sqrt(DIM)))
    solution = _run(jax.random.key(1), plan, torn)
    assert solution.status == Status.HALTED
    np.testing.assert_array_equal(solution.params, np.zeros(DIM))
    assert solution.gradients == plan.item_gradients, "what is computed and thrown away is counted"


def test_a_block_that_halts_midway_returns_its_start():
    """Scores near the threshold pass some tests; what was moved until then is of no account."""
    plan, data, ends = _uneven(), _data(), []
    first = plan.parts[0].num_users
    near = _with(_with(plan, 1, threshold=1e9), 0, threshold=first - 1.0, test_epsilon=2.0)
    for seed in range(12):
        solution = _run(jax.random.key(seed), near, data)
        assert solution.status == Status.HALTED
        ends.append(np.linalg.norm(solution.params))
    # Either the first block has come to its end, or nothing has moved.
    moved = np.asarray(ends) > 0.1
    assert 0 < np.sum(moved) < 12
    np.testing.assert_array_equal(np.asarray(ends)[~moved], 0.0)


def test_without_noise_the_minimizer_of_the_last_block_is_found():
    plan, data = _uneven(), _data()
    lengths = (0.7, 0.4)
    parts = [
        part.replace(step_size=length) for part, length in zip(plan.parts, lengths, strict=True)
    ]
    quiet = plan.replace(parts=tuple(parts))
    for index in range(2):
        quiet = _with(quiet, index, noise_stddev=0.0, threshold=-1e9)
    solution = _run(jax.random.key(0), quiet, data)
    # Contraction by a factor a step towards each block's mean, then averages over its steps.
    at, first = np.zeros(DIM), 0
    for block, length in zip(plan.parts, lengths, strict=True):
        shrink = np.mean((1 - length) ** np.arange(1, block.num_steps + 1))
        center = np.asarray(data.items[first : first + block.num_users]).mean((0, 1))
        at, first = center + shrink * (at - center), first + block.num_users
    np.testing.assert_allclose(solution.params, at, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 8}, "num_blocks must be"),
        ({"num_blocks": 7}, "num_users must be"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _plan(**changes)


def test_other_losses_are_refused():
    settings = {"epsilon": EPSILON} | SIZES
    with pytest.raises(ValueError, match="strong_convexity must be"):
        planned(localized_sgd.plan, POINTS._replace(loss_strong_convexity=0.0), **settings)
    with pytest.raises(ValueError, match="must be smooth if it has a ridge"):
        planned(localized_sgd.plan, losses.hinge(1.0, ridge=0.1), **settings)
