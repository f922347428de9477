"""Which oracle sums clipped gradients: by shapes or as told, and the same sum either way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Problem
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import clipped_sums, sampling, user_gradients
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData

RNG = np.random.default_rng(0)
USERS, SLOTS, DIM = 12, 3, 5


def _network(params, item):
    hidden = jnp.tanh(item.features @ params["hidden"] + params["bias"])
    return jnp.square(hidden @ params["out"] - item.label)


def _no_product(params, item):
    return jnp.sum(jnp.square(params - item.features))


NETWORK = Objective(_network, np.inf, None, domains.whole_space())
SHIFTS = NETWORK._replace(loss=_no_product)
PARAMS = {
    "hidden": jnp.asarray(np.float32(RNG.standard_normal((DIM, 4)))),
    "bias": jnp.zeros(4),
    "out": jnp.asarray(np.float32(RNG.standard_normal(4))),
}
DATA = UserData(
    Example(
        jnp.asarray(np.float32(RNG.standard_normal((USERS, SLOTS, DIM)))),
        jnp.asarray(np.float32(RNG.standard_normal((USERS, SLOTS)))),
    ),
    jnp.asarray(RNG.random((USERS, SLOTS)) < 0.6).at[0].set(False),
)


@pytest.mark.parametrize("masked", [True, False])
def test_both_ways_sum_the_same_users(masked):
    data = DATA if masked else DATA._replace(mask=None)
    found = {}
    for way in ("ghost", "chunks"):
        oracle = clipped_sums.clipped_gradient_sum(
            NETWORK, way, 0.3, lambda key: sampling.poisson(key, USERS, 0.6), chunk_size=4
        )
        found[way] = jax.jit(oracle)(jax.random.key(2), PARAMS, data)
    for a, b in zip(*(jax.tree.leaves(f.gradient) for f in found.values()), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.01, atol=2e-5)
    counts = {int(f.num_gradients) for f in found.values()}
    assert len(counts) == 1
    assert 0 < counts.pop() < USERS * SLOTS


def test_the_choice_is_by_shapes_and_says_why():
    chosen = clipped_sums.choice(NETWORK, DATA, PARAMS)
    assert chosen.way == "ghost"
    assert "['hidden']" in str(chosen)
    shapes = jax.eval_shape(lambda: (DATA, PARAMS))
    assert clipped_sums.choice(NETWORK, *shapes) == chosen
    # Nothing is a product of parameters and data, or nothing of data is there.
    assert clipped_sums.choice(SHIFTS, DATA, jnp.zeros(DIM)).way == "chunks"
    empty = jax.tree.map(lambda x: x[:, :0], DATA._replace(mask=None))
    assert clipped_sums.choice(NETWORK, empty, PARAMS).way == "chunks"
    linear = losses.logistic(1.0)
    assert clipped_sums.choice(linear, DATA, jnp.zeros(DIM)).way == "linear"
    for way in ("ghost", "chunks"):
        for objective in (NETWORK, SHIFTS, linear):
            asked = objective._replace(clipped_sums=way)
            assert clipped_sums.choice(asked, DATA, PARAMS).way == way


def test_unknown_ways_are_refused_wherever_an_objective_comes_in():
    for bad in ("Ghost", None, 3, ("ghost",)):
        objective = NETWORK._replace(clipped_sums=bad)
        with pytest.raises(ValueError, match=r"objective\.clipped_sums must be one of auto, ghost"):
            Problem(objective, num_users=USERS, dim=28)
        with pytest.raises(ValueError, match=r"objective\.clipped_sums must be one of auto, ghost"):
            user_gradients.clipped_sum_oracle(objective, DATA, PARAMS, 1.0, None, 4)


def test_where_users_are_shifted_or_proofs_need_gradients_there_is_no_ghost_sum():
    for special in ({"smoothing_radius": 0.1}, {"unaltered": True}):
        asked = NETWORK._replace(clipped_sums="ghost")
        with pytest.raises(ValueError, match="must be one of auto, chunks"):
            user_gradients.clipped_sum_oracle(asked, DATA, PARAMS, 1.0, None, 4, **special)
    # One user, whose gradient the chunked oracle sums as it is, bit for bit.
    one = jax.tree.map(lambda x: x[1:2], DATA)
    sums = {}
    for way in ("auto", "chunks"):
        oracle, data = user_gradients.clipped_sum_oracle(
            NETWORK._replace(clipped_sums=way), one, PARAMS, 1e3, None, 4, unaltered=True
        )
        text = jax.jit(oracle).lower(jax.random.key(0), PARAMS, data).as_text()
        sums[way] = text
    assert sums["auto"] == sums["chunks"]
