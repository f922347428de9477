"""Private SCO by ball acceleration: blocks, budgets, and an error below that of a single run."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _sequence
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _ball_accelerated_plan as planner
from dpsco_jax.solvers.resque import (
    _calls,
    ball_accelerated_sco,
)
from tests.support.planned import planned

ABSOLUTE = losses.absolute(1.0)
SIZES = {"dim": 5, "delta": 1e-6, "distance": 1.0, "smoothing_radius": 0.2}


def test_losses_and_sizes_that_have_no_plan_are_refused():
    with pytest.raises(ValueError, match="whole space"):
        planned(
            ball_accelerated_sco.plan,
            losses.squared(1.0, 1.0, 1.0),
            num_users=1000,
            epsilon=1.0,
            **SIZES,
        )
    with pytest.raises(ValueError, match="num_blocks"):
        planned(
            ball_accelerated_sco.plan, ABSOLUTE, num_users=8, epsilon=1.0, num_blocks=4, **SIZES
        )


def test_blocks_that_cannot_be_run_are_left_out_with_a_line():
    """Whether users are too few for them or their balls too small for float32."""
    given = {"epsilon": 4.0, "delta": 1e-6, "dim": 2}
    for distance, why in ((1.0, "users are too few"), (2e-9, "float32")):
        made = planned(
            ball_accelerated_sco.plan, ABSOLUTE, num_users=20_000, distance=distance, **given
        )
        assert 2 <= len(made.parts) < 13
        assert why in made.omitted
        assert why in str(made)
    conditions = [each.outer.condition for each in made.parts]
    assert conditions[0] > 8
    assert conditions == sorted(conditions, reverse=True)


USERS, BLOCKS = 128, (64, 32, 16)


def _three_blocks():
    """No noise is calibrated, which takes no time."""
    sizes = {"dim": 2, "epsilon": 1.0, "delta": 1e-3, "distance": 1.0, "condition": 2.0}
    calls = ball_accelerated_sco.Calls(
        radius_ratio=4.0, num_queries=16, search="fixed", num_iterations=1
    )
    blocks = tuple(
        planned(planner.draft, ABSOLUTE, num_users=n, calls=calls, **sizes) for n in BLOCKS
    )
    blocks = tuple(
        dataclasses.replace(b, outer=dataclasses.replace(b.outer, target_weight=1e9))
        for b in blocks
    )
    return ball_accelerated_sco.Plan(USERS, "", blocks, np.ones(3), 1.0, 1e-3)


def _numbered(changed=None):
    """Users whose labels are their positions plus 1; one of them may have another record."""
    rows = np.full((USERS, 1, 2), 0.5, np.float32)
    labels = np.arange(1, USERS + 1, dtype=np.float32)[:, None]
    if changed is not None:
        rows[changed] = -0.5
    return UserData(Example(jnp.asarray(rows), jnp.asarray(labels)))


def test_every_user_enters_one_block_and_no_other():
    """The users that the draws of each block ask for, by the labels of the rows that are then read."""
    entered = []
    right, query = _calls._draw_users, _calls.query

    def all_of_them(key, sizes):
        """In place of the draws: in turn as many places as there are, those of this turn all around."""
        drawn = right(key, sizes)
        return jnp.arange(USERS, dtype=jnp.int32) % sizes.num_users + 0 * drawn[0]

    def listen(key, setting, users, center):
        jax.debug.callback(
            lambda labels: entered.append(labels[:, 0].astype(int).tolist()),
            setting.data.labels[users],
        )
        return query(key, setting, users, center)

    with (
        mock.patch.object(_calls, "_draw_users", all_of_them),
        mock.patch.object(_calls, "query", listen),
    ):
        solve = jax.jit(
            lambda data: (
                ball_accelerated_sco.solve(
                    jax.random.key(0), _three_blocks(), ABSOLUTE, data, jnp.zeros(2)
                ).params
            )
        )
        jax.block_until_ready(solve(_numbered()))
        jax.effects_barrier()
    blocks = sorted({tuple(sorted(set(users))) for users in entered})
    assert tuple(len(users) for users in blocks) == BLOCKS
    everyone = [user for users in blocks for user in users]
    assert len(everyone) == len(set(everyone)), "a user is in two blocks"
    assert sorted(everyone) == list(range(1, sum(BLOCKS) + 1))


def _blocks(count, calls=None):
    """Blocks that differ in all of their numbers; no noise is calibrated."""
    calls = calls or {"search": "fixed", "num_iterations": 1}

    def block(i):
        users = 64 * 2 ** (count - 1 - i)
        sizes = {"dim": 2, "epsilon": 1.0, "delta": 1e-5, "condition": 2.0}
        settings = ball_accelerated_sco.Calls(radius_ratio=4.0, num_queries=users // 5, **calls)
        made = planned(
            planner.draft, ABSOLUTE, num_users=users, calls=settings, distance=1 - 0.1 * i, **sizes
        )
        # Less steep than the objective, which has the last word.
        outer = dataclasses.replace(made.outer, target_weight=1e9, lipschitz=0.5**i)
        return dataclasses.replace(made, beta=0.5 + 0.125 * i, outer=outer)

    blocks = tuple(map(block, range(count)))
    users = sum(made.num_users for made in blocks)
    return ball_accelerated_sco.Plan(users, "", blocks, 1.0 + np.arange(count), 1.0, 1e-3)


def _data_of(plan):
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(plan.num_users, 3, 2)), rng.normal(size=(plan.num_users, 3))
    return UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))


def test_noise_fits_the_loss_that_runs():
    """Nothing is clipped: a plan for a loss of half the slope has the noise of the objective's own."""
    plan = _blocks(1)
    data, (block,) = _data_of(plan), plan.parts

    def found(slope):
        parts = (
            dataclasses.replace(block, outer=dataclasses.replace(block.outer, lipschitz=slope)),
        )
        edited = dataclasses.replace(plan, parts=parts)
        run = jax.jit(
            lambda key: ball_accelerated_sco.solve(key, edited, ABSOLUTE, data, jnp.ones(2))
        )
        return np.asarray(run(jax.random.key(1)).params)

    own = float(ABSOLUTE.lipschitz)
    np.testing.assert_array_equal(found(0.5 * own), found(own))
    assert not np.array_equal(found(2.0 * own), found(own))


@pytest.mark.parametrize(
    "sampling",
    ["without_replacement", pytest.param("with_replacement", marks=pytest.mark.slow)],
)
def test_turns_are_the_blocks_one_by_one(sampling):
    plan = _blocks(2, {"search": "fixed", "num_iterations": 1, "sampling": sampling})
    data = _data_of(plan)
    groups = _sequence.groups

    def found(together):
        def run(key):
            return ball_accelerated_sco.solve(key, plan, ABSOLUTE, data, jnp.ones(2))

        turns = groups if together else lambda parts, turns, *rest: groups(parts, None, *rest)
        with mock.patch.object(_sequence, "groups", turns):
            return jax.jit(run)(jax.random.key(1))

    one, other = found(True), found(False)
    np.testing.assert_allclose(one.params, other.params, rtol=2e-6)
    assert int(one.gradients) == int(other.gradients)
    assert int(one.unprivate["gradients"]) == int(other.unprivate["gradients"]) > 0
    for mine, theirs in zip(one.unprivate["trace"], other.unprivate["trace"], strict=True):
        np.testing.assert_allclose(mine["weight"], theirs["weight"], rtol=1e-6)
        np.testing.assert_array_equal(mine["calls"], theirs["calls"])


def test_a_turn_is_charged_what_its_own_block_proves():
    nothing = privacy.unbounded()

    def proves(plan, proven):
        """In place of the accountant: a loss that tells whose it is."""
        del plan
        rdp = np.full(nothing.rdp.shape, proven.beta, np.float32)
        return privacy.PrivacyLoss(rdp, np.zeros_like(nothing.delta, np.float32))

    blocks = []
    for part in _blocks(4).parts:
        proven = accounting.Proven(float(part.beta), part.radius_ratio, 1e-3)
        part = dataclasses.replace(part, proven=proven)
        blocks.append(ball_accelerated_sco._Block(part.num_users, part, 1.0))
    louder = dataclasses.replace(blocks[2].plan, beta=1.01 * blocks[2].plan.beta)
    blocks[2] = blocks[2]._replace(plan=louder)
    blocks[3] = blocks[3]._replace(regularization=-1.0)
    with mock.patch.object(accounting, "proven_loss", proves):
        charged = [ball_accelerated_sco._lowered(block).loss.rdp[0] for block in blocks]
    np.testing.assert_allclose(charged, [0.5, 0.625, np.inf, np.inf])
