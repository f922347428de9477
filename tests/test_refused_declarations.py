"""What a program was handed beside its plan, and what breaks its proof although no number looks wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.geometry import domains, two_balls
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData, items_per_user
from dpsco_jax.solvers.user_level import output_perturbation
from tests.support.planned import planned

USERS, ITEMS, DIM = 4, 3, 2
ROWS = Example(np.ones((USERS, ITEMS, DIM), np.float32), np.zeros((USERS, ITEMS), np.float32))
HUBER = losses.huber(1.0, domain=domains.ball(2.0), ridge=0.2)


def _solved(objective, data, params):
    plan = planned(
        output_perturbation.plan,
        objective,
        num_users=USERS,
        dim=DIM,
        epsilon=1.0,
        delta=1e-5,
        distance=1.0,
    )
    return output_perturbation.solve(jax.random.key(0), plan, objective, data, params)


@pytest.mark.parametrize("mask", [[0.01, 0.01, 0.01], [1, -1, 0]])
def test_a_mask_is_of_booleans(mask):
    # Three items with a count of 1: the mean of a user would be the sum, three times too long.
    data = UserData(ROWS, np.broadcast_to(np.asarray(mask), (USERS, ITEMS)))
    for refused in (items_per_user, lambda d: linear.prepare(HUBER.linear_model, d, DIM)):
        with pytest.raises(ValueError, match=r"data\.mask"):
            refused(data)


def test_an_item_has_one_label():
    # Labels [users, items, 1] broadcast against the mask: all losses came in ITEMS times.
    labels = ROWS.label[..., None]
    data = UserData(ROWS._replace(label=labels), np.ones((USERS, ITEMS), bool))
    with pytest.raises(ValueError, match="label"):
        _solved(HUBER._replace(linear_model=None), data, jnp.zeros(DIM))
    with pytest.raises(ValueError, match="labels"):
        linear.prepare(HUBER.linear_model, UserData(ROWS._replace(label=ROWS.label[:, :1])), DIM)
    many = Example(np.ones(1, np.float32), np.arange(2.0))
    with pytest.raises(ValueError, match="label"):
        losses.softmax(1.0, 2).loss(jnp.zeros((1, 2)), many)


@pytest.mark.parametrize(
    "objective", [losses.squared_distance(1.0, 1.0), losses.geometric_median()]
)
def test_a_point_has_the_shapes_of_the_parameters(objective):
    with pytest.raises(ValueError, match="item"):
        objective.loss(jnp.zeros(DIM), jnp.ones(1))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_output_perturbation_is_not_run_in_half_precision(dtype):
    with pytest.raises(ValueError, match="params"):
        _solved(HUBER, UserData(ROWS), jnp.zeros(DIM, dtype))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_ledger_is_not_charged_in_half_precision(dtype):
    ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE)
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), ledger)
    with pytest.raises(ValueError, match="ledger"):
        privacy.charge(narrow, privacy.gaussian(1e3))


def test_a_ledger_that_a_wrapper_may_begin_anew_proves_nothing():
    spend = transforms.account(privacy.gaussian(5.0), NeighboringRelation.REPLACE_ONE)
    params = optax.LookaheadParams(jnp.zeros(2), jnp.zeros(2))
    inside = optax.lookahead(spend, 3, 0.5, reset_state=True)
    outside = optax.chain(spend, optax.lookahead(optax.sgd(0.1), 3, 0.5, reset_state=True))
    spent = []
    for optimizer in (inside, outside):
        state = optimizer.init(params)
        for _ in range(4):
            _, state = optimizer.update(jnp.ones(2), state, params)
        spent.append(float(privacy.epsilon(privacy.privacy_spent(state), 1e-5)))
    expected = float(privacy.epsilon(privacy.scale(privacy.gaussian(5.0), 4), 1e-5))
    assert np.isinf(spent[0])
    assert spent[1] == pytest.approx(expected, rel=1e-3)


def test_moves_are_those_of_a_set_of_the_package():
    ball = domains.ball(1.0)
    domains.require_proven_moves("domain", ball)
    both = two_balls.two_balls(jnp.zeros(2), 1.0, jnp.ones(2), 1.0)
    domains.require_proven_moves("domain", both)
    for moves in (None, lambda point: lambda move: 30 * move):
        with pytest.raises(ValueError, match="domain"):
            domains.require_proven_moves("domain", ball._replace(moves=moves))
