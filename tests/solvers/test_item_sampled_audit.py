"""Item-sampled DP-SGD attacked from end to end: a user whose items are alike, opposite or orthogonal.

The loss <z, w> makes every gradient a record, so that the last point is a weighted sum of all noisy sums:
along the direction of the items it tells nearly all that the run tells of a user who is there or not.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import item_sampled_sgd
from tests.support.planned import planned

USERS, ITEMS, DIM, STEPS, RUNS, EPSILON, DELTA = 2, 4, 4, 3, 200_000, 1.0, 1e-2
LINEAR = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.whole_space())
DIRECTIONS = {
    "alike": np.tile(np.eye(DIM)[0], (ITEMS, 1)),
    "opposite": np.array([1, 1, -1, -1])[:, None] * np.eye(DIM)[0],
    "orthogonal": np.eye(ITEMS),
}


def _plan(batch_size):
    return planned(
        item_sampled_sgd.plan, LINEAR, num_users=USERS, items_per_user=ITEMS, dim=DIM,
        epsilon=EPSILON, delta=DELTA, num_steps=STEPS, batch_size=batch_size, averaging="last",
        step_size=1.0,
    )  # fmt: skip


def _learned(plan, kind, times_less=1.0, slots=ITEMS):
    plan = plan.replace(noise_multiplier=plan.noise_multiplier / times_less)
    plan = jax.tree.map(lambda x: np.asarray(x, np.float32), plan)
    rows = np.zeros((USERS, ITEMS, DIM), np.float32)
    rows[0, :slots] = -50.0 * DIRECTIONS[kind][:slots]
    mask = np.ones((USERS, ITEMS), bool)
    there, gone = (UserData(jnp.asarray(rows), jnp.asarray(m)) for m in (mask, mask.copy()))
    gone = gone._replace(mask=gone.mask.at[0].set(False))
    toward = DIRECTIONS[kind][:slots].sum(0)
    toward = np.eye(DIM)[0] if not np.any(toward) else toward / np.linalg.norm(toward)

    def mechanism(key, data):
        return item_sampled_sgd.solve(key, plan, LINEAR, data, jnp.zeros(DIM)).params

    def score(params):
        # Opposite items widen the law and do not move it.
        along = params @ jnp.asarray(toward, jnp.float32)
        return jnp.abs(along) if kind == "opposite" else along

    found = privacy.audit(jax.random.key(0), mechanism, there, gone, score, RUNS, DELTA)
    return found.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 6])
def test_no_user_tells_more_than_is_claimed_and_a_quarter_of_the_noise_is_caught(batch_size):
    plan = _plan(batch_size)
    learned = {kind: _learned(plan, kind) for kind in DIRECTIONS}
    assert 0.6 * EPSILON < learned["alike"] <= EPSILON
    assert learned["opposite"] < learned["alike"]
    assert learned["orthogonal"] < learned["alike"]
    assert _learned(plan, "alike", times_less=4.0) > EPSILON
    assert _learned(plan, "alike", slots=2) < learned["alike"]


@pytest.mark.slow
def test_the_noise_for_one_item_does_not_cover_a_user():
    """What charging items as if each were a user would give."""
    plan = _plan(6)
    one = planned(
        item_sampled_sgd.plan, LINEAR, num_users=USERS * ITEMS, items_per_user=1, dim=DIM,
        epsilon=EPSILON, delta=DELTA, num_steps=STEPS, batch_size=6, averaging="last",
        step_size=1.0,
    )  # fmt: skip
    less = float(plan.noise_multiplier) / float(one.noise_multiplier)
    assert less > 1.5
    assert _learned(plan, "alike", times_less=less) > EPSILON
