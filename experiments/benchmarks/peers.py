"""The peers' way of making a private step, written as their documentation shows it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax_privacy import clipping, noise_addition

Loss = Callable[[Any, Any], jax.Array]


def jax_privacy_step(
    loss: Loss,
    params: Any,
    *,
    clip_norm: float,
    noise_multiplier: jax.typing.ArrayLike,
    num_users: int,
    learning_rate: float,
    microbatch_size: int | None = None,
) -> tuple[Callable[..., Any], Any]:
    """``step(state, batch) -> state`` with jax_privacy's clipped gradient and privatizer."""
    clipped_gradient = clipping.clipped_grad(
        loss,
        l2_clip_norm=clip_norm,
        normalize_by=num_users,
        keep_batch_dim=False,
        microbatch_size=microbatch_size,
    )
    stddev = noise_multiplier * clipped_gradient.sensitivity()
    privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(0))
    optimizer = optax.sgd(learning_rate)

    def step(state: Any, batch: Any) -> Any:
        params, noise_state, optimizer_state = state
        gradient = clipped_gradient(params, batch)
        gradient, noise_state = privatizer.update(gradient, noise_state)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state)
        return optax.apply_updates(params, updates), noise_state, optimizer_state

    return step, (params, privatizer.init(params), optimizer.init(params))


def optax_step(
    loss: Loss, params: Any, *, clip_norm: float, noise_multiplier: float, learning_rate: float
) -> tuple[Callable[..., Any], Any]:
    """``step(state, batch) -> state`` with ``optax.contrib.differentially_private_aggregate``."""
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(
            l2_norm_clip=clip_norm, noise_multiplier=noise_multiplier, key=jax.random.key(0)
        ),
        optax.sgd(learning_rate),
    )

    def step(state: Any, batch: Any) -> Any:
        params, optimizer_state = state
        gradients = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state

    return step, (params, optimizer.init(params))


def non_private_step(
    loss: Loss, params: Any, *, learning_rate: float
) -> tuple[Callable[..., Any], Any]:
    """``step(state, batch) -> state`` of plain gradient descent on the mean loss."""
    optimizer = optax.sgd(learning_rate)

    def mean(params: Any, batch: Any) -> jax.Array:
        return jnp.mean(jax.vmap(loss, (None, 0))(params, batch))

    def step(state: Any, batch: Any) -> Any:
        params, optimizer_state = state
        updates, optimizer_state = optimizer.update(jax.grad(mean)(params, batch), optimizer_state)
        return optax.apply_updates(params, updates), optimizer_state

    return step, (params, optimizer.init(params))
