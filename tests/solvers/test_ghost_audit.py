"""Private steps by ghost sums, attacked from end to end on the worst neighbours: what is learned is below ε.

The losses are linear, so that a gradient is what its example says, of the length of the bound in one
direction, and other users are silent: the point is the sum of the releases, and its share in that direction
is the likelihood. With a quarter of the noise more is learned than is claimed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import ghost, sampling
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData

USERS, RATE, STEPS, DELTA = 3, 0.5, 2, 1e-2
NOISE = 1.2
BOUNDS = {"table": 0.6, "out": 0.8}
FAR = 1e3


def _linear(p, item):
    return jnp.vdot(item, p)


def _layers(p, item):
    """A look-up and a product; of length ``FAR`` in both."""
    number, size = item
    return size * p["table"][number][0] + jnp.full(2, size) @ p["out"]


def _dense(p, item):
    left, right = item
    return jnp.sum((left @ p) * right)


def _items(*values):
    """``[users, 2, ...]``: the first user has an item of this kind, and one that is masked out."""
    rows = [jnp.zeros((USERS, 2, *np.shape(v)), np.asarray(v).dtype) for v in values]
    return [row.at[0].set(jnp.asarray(v)) for row, v in zip(rows, values, strict=True)]


def _silent(items):
    return [x.at[0].set(0) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in items]


# Of each: loss, parameters, bounds, what the first user has, the direction in which its gradient points.
CASES = {
    "one bound": (_linear, jnp.zeros(2), 1.0, [np.float32([FAR, 0])], jnp.asarray([1.0, 0])),
    "layers": (
        _layers, {"table": jnp.zeros((4, 2)), "out": jnp.zeros(2)}, BOUNDS,
        [np.int32(2), np.float32(FAR)],
        {"table": jnp.zeros((4, 2)).at[2, 0].set(0.6), "out": jnp.full(2, 0.8 / 2**0.5)},
    ),
    "items that share": (
        _dense, jnp.zeros((3, 2)), 1.0,
        [np.float32([[FAR, 0, 0]] * 4), np.float32([[0, 1]] * 4)],
        jnp.zeros((3, 2)).at[0, 1].set(1.0),
    ),
}  # fmt: skip


def _draw(key):
    return sampling.poisson(key, USERS, RATE)


def _mechanism(case, noise, normalize):
    loss, start, bounds, first, direction = case
    mask = jnp.ones((USERS, 2), bool).at[:, 1].set(False)
    objective = Objective(
        loss if len(first) > 1 else lambda p, i: loss(p, i[0]), np.inf, None, domains.whole_space()
    )
    mean = transforms.summed_contributions(
        bounds, RATE * USERS, NeighboringRelation.ADD_OR_REMOVE_ONE
    )

    def sums(key, params, items):
        if normalize is None:
            oracle = ghost.clipped_gradient_sum(objective, bounds, _draw, chunk_size=2)
            found = oracle(key, params, UserData(items, mask))
            return found.gradient, found.extra_args
        drawn = jax.random.bernoulli(key, RATE, (USERS,))
        one = [x[:, 0] for x in items]
        total, rest = ghost.clipped_sum(
            objective.loss, params, one, bounds, counted=drawn, normalize=normalize, in_parts=True
        )
        return total, {"remainder": rest, "clipped_to": mean.clipped_to}

    def run(key, items):
        noise_key, *keys = jax.random.split(key, STEPS + 1)
        noised = transforms.privatize(mean, noise_key, noise, privacy.Poisson(RATE))
        optimizer = optax.chain(noised, optax.sgd(1.0))
        params, state = start, optimizer.init(start)
        for key in keys:
            total, extra = sums(key, params, items)
            updates, state = optimizer.update(total, state, params, **extra)
            params = optax.apply_updates(params, updates)
        return params, state

    def score(params):
        return -sum(jax.tree.leaves(jax.tree.map(jnp.vdot, params, direction)))

    return run, score, _items(*first)


def _learned(name, noise, normalize=None, runs=20_000):
    """What is learned, and what the ledger says."""
    run, score, items = _mechanism(CASES[name], noise, normalize)
    _, state = jax.jit(run)(jax.random.key(0), items)
    claimed = float(privacy.epsilon(privacy.privacy_spent(state), DELTA))
    audited = privacy.audit(
        jax.random.key(1), lambda key, data: run(key, data)[0], _silent(items), items, score, runs,
        DELTA,
    )  # fmt: skip
    return audited.epsilon, claimed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "normalize"),
    [("one bound", None), ("layers", None), ("layers", 1e-3), ("items that share", None)],
)
def test_what_is_learned_of_a_user_is_below_what_is_claimed(name, normalize):
    learned, claimed = _learned(name, NOISE, normalize)
    assert 0.4 * claimed < learned <= claimed
    assert _learned(name, NOISE / 4, normalize, 5_000)[0] > claimed
