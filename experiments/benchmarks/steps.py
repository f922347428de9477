"""One private step (clip per user, add noise, update), against peers and the non-private step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import transforms
from dpsco_jax.oracles import Oracle, gradients, linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from experiments.benchmarks import peers
from experiments.benchmarks.timing import Row, interleaved_medians

CLIP_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.1
SETTINGS: dict[str, Any] = {
    "clip_norm": CLIP_NORM,
    "noise_multiplier": NOISE_MULTIPLIER,
    "learning_rate": LEARNING_RATE,
}


def our_step(oracle: Oracle, params: Any, num_users: int) -> tuple[Callable[..., Any], Any]:
    """``step(state, data) -> state`` with an oracle that clips and sums, and our chain."""
    optimizer = optax.chain(
        transforms.privatize(
            transforms.summed_contributions(CLIP_NORM, num_users),
            jax.random.key(0),
            NOISE_MULTIPLIER,
        ),
        optax.sgd(LEARNING_RATE),
    )

    def step(state: Any, data: Any) -> Any:
        params, optimizer_state = state
        estimate = oracle(jax.random.key(1), params, data)
        updates, optimizer_state = optimizer.update(
            estimate.gradient, optimizer_state, params, **estimate.extra_args
        )
        return optax.apply_updates(params, updates), optimizer_state

    return step, (params, optimizer.init(params))


def _medians(steps: dict[str, tuple[tuple[Callable[..., Any], Any], Any]]) -> dict[str, float]:
    calls = {}
    for name, ((step, state), data) in steps.items():
        compiled = jax.jit(step)
        calls[name] = lambda compiled=compiled, state=state, data=data: compiled(state, data)
    return interleaved_medians(calls, min_seconds=4.0, burst=10)


def logistic_rows(num_users: int, dim: int) -> list[Row]:
    """Logistic regression, one item per user."""
    key = jax.random.key(7)
    features = jax.random.normal(key, (num_users, dim)) / dim**0.5
    labels = jnp.asarray(jax.random.bernoulli(jax.random.key(8), 0.5, (num_users,)), jnp.float32)
    objective = losses.logistic(feature_bound=2.0)
    model = objective.linear_model
    assert model is not None
    data = UserData(Example(features[:, None], labels[:, None]))
    params = jnp.zeros(dim)

    def loss(params: jax.Array, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        margin = jnp.vdot(params, example[0])
        return jax.nn.softplus(margin) - example[1] * margin

    batch = (features, labels)
    closed = linear.clipped_gradient_sum(model, CLIP_NORM)
    prepared = jax.jit(lambda d: linear.prepare(model, d, dim))(data)
    autodiff = gradients.clipped_gradient_sum(
        gradients.user_gradient(objective), CLIP_NORM, chunk_size=16
    )
    seconds = _medians(
        {
            "closed": (our_step(closed, params, num_users), prepared),
            "autodiff": (our_step(autodiff, params, num_users), data),
            "jax_privacy": (
                peers.jax_privacy_step(loss, params, num_users=num_users, **SETTINGS),
                batch,
            ),
            "optax": (peers.optax_step(loss, params, **SETTINGS), batch),
            "plain": (peers.non_private_step(loss, params, learning_rate=LEARNING_RATE), batch),
        }
    )
    work = f"logistic {num_users} x {dim}"
    fast = 2.0 if dim >= 1024 else None
    return [
        Row(work, "closed form", seconds["closed"], "jax_privacy", seconds["jax_privacy"], fast),
        Row(work, "closed form", seconds["closed"], "optax contrib", seconds["optax"], fast),
        Row(
            work,
            "autodiff",
            seconds["autodiff"],
            "jax_privacy",
            seconds["jax_privacy"],
            None,
            "features bounded at every step; the solvers take the closed form",
        ),
        Row(
            work,
            "closed form",
            seconds["closed"],
            "non-private step",
            seconds["plain"],
            1 / 1.5 if dim >= 1024 else None,
        ),
    ]


def network_rows(num_users: int = 1024) -> list[Row]:
    """A 784-128-10 network with softmax loss, one item per user."""
    sizes = (784, 128, 10)
    keys = jax.random.split(jax.random.key(3), 4)
    params = {
        "hidden": jax.random.normal(keys[0], sizes[:2]) / sizes[0] ** 0.5,
        "bias": jnp.zeros(sizes[1]),
        "output": jax.random.normal(keys[1], sizes[1:]) / sizes[1] ** 0.5,
    }
    images = jax.random.normal(keys[2], (num_users, sizes[0]))
    labels = jax.random.randint(keys[3], (num_users,), 0, sizes[2])

    def loss(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden = jax.nn.relu(example[0] @ params["hidden"] + params["bias"])
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            hidden @ params["output"], example[1]
        )

    gradient = jax.grad(loss)
    oracle = gradients.clipped_gradient_sum(
        lambda key, params, items, mask: gradient(
            params, jax.tree.map(lambda leaf: leaf[0], items)
        ),
        CLIP_NORM,
        chunk_size=8,
    )
    data = UserData((images[:, None], labels[:, None]))
    batch = (images, labels)
    seconds = _medians(
        {
            "ours": (our_step(oracle, params, num_users), data),
            **{
                f"jax_privacy, chunks of {size}": (
                    peers.jax_privacy_step(
                        loss, params, num_users=num_users, microbatch_size=size, **SETTINGS
                    ),
                    batch,
                )
                for size in (8, 64)
            },
            "optax contrib": (peers.optax_step(loss, params, **SETTINGS), batch),
        }
    )
    work = f"network 784-128-10, batch {num_users}"
    ours = "autodiff, chunks of 8"
    return [
        Row(work, ours, seconds["ours"], peer, seconds[peer], 1.0)
        for peer in seconds
        if peer != "ours"
    ]


def rows() -> list[Row]:
    """All comparisons of this file."""
    return logistic_rows(4096, 1024) + logistic_rows(1024, 256) + network_rows()
