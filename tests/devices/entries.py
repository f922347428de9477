"""What is run on users who are spread over devices: every loop over users, and a row of every solver."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import transforms
from dpsco_jax.geometry import clipping
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.oracles import (
    chunks,
    ghost,
    gradients,
    linear,
    linear_users,
    preconditioned,
    row_moments,
    sampling,
    sandwich,
    smoothed,
    unclipped,
)
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData

USERS, ITEMS, DIM = 1024, 2, 5
OBJECTIVE = losses.logistic(1.0)


class Entry(NamedTuple):
    """A function of the key, of parameters, and of users.

    Attributes:
        name: as in the table.
        run: ``run(key, params, data)``; returns a pytree.
        data: arrays with the leading axis of users.
        exact: whether no sum of floats is in it, so that results are the same to the last bit.
    """

    name: str
    run: Callable[[jax.Array, Any, Any], Any]
    data: Any
    exact: bool = False


def user_data(users: int = USERS, items: int = ITEMS) -> UserData:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((users, items, DIM)).astype(np.float32)
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    label = rng.choice([-1.0, 1.0], (users, items)).astype(np.float32)
    mask = rng.random((users, items)) < 0.9
    return UserData(Example(features, label), mask)


def fixed(key: jax.Array) -> sampling.UserSample:
    return sampling.without_replacement(key, USERS, 256)


def poisson(key: jax.Array) -> sampling.UserSample:
    return sampling.poisson(key, USERS, 0.3)


def repeated(key: jax.Array) -> sampling.UserSample:
    return sampling.with_replacement(key, USERS, 300)


def _oracle(oracle: Any) -> Any:
    def run(key: jax.Array, params: Any, data: Any) -> Any:
        found = oracle(key, params, data)
        return found.gradient, found.num_gradients

    return run


def _linear(make: Any) -> Any:
    def run(key: jax.Array, params: Any, data: UserData) -> Any:
        found = make(key, params, linear.prepare(OBJECTIVE.linear_model, data, DIM))
        return found

    return run


def _summed(sampler: Any) -> Any:
    def run(key: jax.Array, params: Any, data: Any) -> Any:
        def chunk_sum(rows: Any, counted: Any, position: Any) -> Any:
            kept = jnp.where(counted[:, None], rows, 0.0)
            return jnp.sum(kept * params, axis=0), jnp.sum(jnp.where(counted, position, 0))

        return chunks.sum_over_users(chunk_sum, data, sampler and sampler(key), 16)

    return run


def _mapped(sampler: Any) -> Any:
    def run(key: jax.Array, params: Any, data: Any) -> Any:
        def chunk_rows(rows: Any, counted: Any, position: Any) -> Any:
            shown = jnp.where(counted, position, 0)
            return jnp.where(counted[:, None], rows * params, 0.0), shown

        return chunks.map_over_users(chunk_rows, data, sampler and sampler(key), 16)

    return run


def _aggregate(aggregate: Any, sampling: Any = None) -> Any:
    def run(key: jax.Array, params: Any, data: Any) -> Any:
        given = {} if sampling is None else {"sampling": sampling}
        release = transforms.privatize(aggregate, key, 1.0, **given)
        return release.update(data, release.init(params), params)[0]

    return run


def entries() -> list[Entry]:
    data = user_data()
    rows = np.random.default_rng(1).standard_normal((USERS, DIM)).astype(np.float32)
    model, gradient = OBJECTIVE.linear_model, gradients.user_gradient(OBJECTIVE)
    loss = lambda params, user: jnp.mean(jax.vmap(lambda x: OBJECTIVE.loss(params, x))(user))  # noqa: E731
    component = preconditioned.Component(jnp.ones(DIM) / DIM**0.5, 0.5, 1.0)
    made = [
        Entry("`clipping.sum_of_clipped`",
            lambda k, p, x: clipping.sum_of_clipped(x, 1.0, jnp.ones(USERS, bool)), rows),
        Entry("`clipping.sum_of_clipped`, layers",
            lambda k, p, x: clipping.sum_of_clipped(
                {"a": x, "b": x[:, :2]}, {"a": 1.0, "b": 0.5}, jnp.ones(USERS, bool)), rows),
        Entry("`transforms.clipped_mean`", _aggregate(transforms.clipped_mean(1.0, USERS)), rows),
        Entry("`transforms.clipped_mean`, microbatches",
            _aggregate(transforms.clipped_mean(1.0, USERS, microbatch_size=32)), rows),
        Entry("`transforms.centred_clip`", _aggregate(transforms.centred_clip(1.0, USERS)), rows),
        Entry("`chunks.sum_over_users`", _summed(None), rows),
        Entry("`chunks.sum_over_users`, fixed size", _summed(fixed), rows),
        Entry("`chunks.sum_over_users`, Poisson", _summed(poisson), rows),
        Entry("`chunks.sum_over_users`, with replacement", _summed(repeated), rows),
        Entry("`chunks.map_over_users`", _mapped(None), rows, True),
        Entry("`chunks.map_over_users`, fixed size", _mapped(fixed), rows, True),
        Entry("`gradients.clipped_gradient_sum`",
            _oracle(gradients.clipped_gradient_sum(gradient, 0.5)), data),
        Entry("`gradients.clipped_gradient_sum`, fixed size",
            _oracle(gradients.clipped_gradient_sum(gradient, 0.5, fixed)), data),
        Entry("`gradients.clipped_gradient_sum`, Poisson",
            _oracle(gradients.clipped_gradient_sum(gradient, 0.5, poisson)), data),
        Entry("`smoothed.user_gradient`, Poisson",
            _oracle(gradients.clipped_gradient_sum(
                smoothed.user_gradient(OBJECTIVE, 0.1), 0.5, poisson)), data),
        Entry("`gradients.per_user_gradients`",
            _oracle(gradients.per_user_gradients(gradient, 0.5, None, 16)), data),
        Entry("`gradients.per_user_gradients`, fixed size",
            _oracle(gradients.per_user_gradients(gradient, 0.5, fixed, 16)), data),
        Entry("`linear.clipped_gradient_sum`",
            _linear(_oracle(linear.clipped_gradient_sum(model, 0.5))), data),
        Entry("`linear.clipped_gradient_sum`, one item",
            _linear(_oracle(linear.clipped_gradient_sum(model, 0.5))), user_data(items=1)),
        Entry("`linear.clipped_gradient_sum`, Poisson",
            _linear(_oracle(linear.clipped_gradient_sum(model, 0.5, poisson))), data),
        Entry("`linear_users.per_user_gradients`",
            _linear(_oracle(linear_users.per_user_gradients(model, 0.5))), data),
        Entry("`preconditioned.clipped_gradient_sum`",
            _linear(lambda k, p, x: _oracle(preconditioned.scaled_sums(
                model, jnp.ones(DIM), component, 0.5))(
                    k, preconditioned.TunedPoint(p, jnp.zeros(())), x)), data),
        Entry("`row_moments.mean_squares`",
            _linear(lambda k, p, x: row_moments.mean_squares(1.0)(x)), data),
        Entry("`row_moments.second_moments`",
            _linear(lambda k, p, x: row_moments.second_moments(1.0)(x)), data),
        Entry("`sandwich`", _linear(lambda k, p, x: sandwich.sandwich_sums(model, 0.25, 1.0)(
            preconditioned.TunedPoint(p, jnp.zeros(())), x)), data),
        Entry("`unclipped`", _oracle(unclipped.mean_gradient(OBJECTIVE, USERS)), data),
        Entry("`ghost.clipped_sum`",
            lambda k, p, x: ghost.clipped_sum(loss, p, x, 0.5), data.items),
        Entry("`ghost.clipped_sum`, chunks",
            lambda k, p, x: ghost.clipped_sum(loss, p, x, 0.5, chunk_size=64), data.items),
        Entry("`ghost.clipped_gradient_sum`, Poisson",
            _oracle(ghost.clipped_gradient_sum(OBJECTIVE, 0.5, poisson)), data),
        Entry("`concentrated_mean.concentration`",
            lambda k, p, x: tuple(concentrated_mean.concentration(x, 3.0)), rows, True),
        Entry("`concentrated_mean.weighted_mean`",
            lambda k, p, x: concentrated_mean.weighted_mean(x, jnp.ones(USERS)), rows),
    ]  # fmt: skip
    return made
