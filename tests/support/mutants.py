"""Planted faults: each breaks one promise of a private step, and names the tests that must notice.

A fault replaces one attribute of one module while the named test runs (``tests/test_mutants.py``). A test
suite that still passes with a fault planted does not test the promise.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.support.apart import traced_apart


class Mutant(NamedTuple):
    """A fault.

    Attributes:
        name: what is wrong.
        target: module and attribute that are replaced, ``"package.module:attribute"``.
        fault: from the right function to the wrong one.
        caught_by: names of tests in ``tests/test_private_steps.py``, each of which must fail.
    """

    name: str
    target: str
    fault: Callable[[Any], Any]
    caught_by: tuple[str, ...]


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """While active, the fault is there; nothing compiled without it is used, nor kept afterwards."""
    module_name, attribute = mutant.target.split(":")
    module = importlib.import_module(module_name)
    with (
        traced_apart(),
        mock.patch.object(module, attribute, mutant.fault(getattr(module, attribute))),
    ):
        yield


def _is_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _no_clip(tree: Any, clip_norm: Any) -> jax.Array:
    del clip_norm
    return jnp.where(_is_finite(tree), jnp.float32(1.0), 0.0)


def _norm_in_leaf_dtype(tree: Any, clip_norm: Any) -> jax.Array:
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(tree)))
    factor = jnp.where(jnp.isfinite(norm) & (norm > clip_norm), clip_norm / norm, 1)
    return jnp.where(_is_finite(tree), factor.astype(jnp.float32), 0.0)


def _nan_counts(right: Callable[..., Any]) -> Callable[..., Any]:
    def factor(tree: Any, clip_norm: Any) -> jax.Array:
        return jnp.where(_is_finite(tree), right(tree, clip_norm), 1.0)

    return factor


def _divided_by_who_is_there(right: Callable[..., Any]) -> Callable[..., Any]:
    def total(updates: Any, clip_norm: Any, user_mask: Any, microbatch_size: Any) -> Any:
        summed = right(updates, clip_norm, user_mask, microbatch_size)
        rows = jax.tree.leaves(updates)[0].shape[0]
        present = rows if user_mask is None else jnp.maximum(jnp.sum(user_mask), 1)
        return jax.tree.map(lambda x: 2.0 * x / present, summed)

    return total


def _divided_by_mean_norm(right: Callable[..., Any]) -> Callable[..., Any]:
    def total(updates: Any, clip_norm: Any, user_mask: Any, microbatch_size: Any) -> Any:
        summed = right(updates, clip_norm, user_mask, microbatch_size)
        size = sum(jnp.sum(jnp.abs(jnp.nan_to_num(x))) for x in jax.tree.leaves(updates))
        return jax.tree.map(lambda x: x * (1.0 + jnp.tanh(size)), summed)

    return total


def _repeats_the_key(right: Callable[..., Any]) -> Callable[..., Any]:
    def split(key: jax.Array, num: int = 2) -> jax.Array:
        keys = right(jax.random.clone(key), num)
        return jax.random.wrap_key_data(
            jax.random.key_data(keys).at[0].set(jax.random.key_data(key))
        )

    return split


def _stops_on_data(right: Callable[..., Any]) -> Callable[..., Any]:
    def run(key, oracle, optimizer, params, data, num_steps, trace=None):
        total = sum(jnp.sum(x) for x in jax.tree.leaves(data) if x.dtype == jnp.float32)
        share = total - jnp.floor(total)

        def update(updates: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
            updates, state = optimizer.update(updates, state, params, **extra)
            return jax.tree.map(lambda x: share * x, updates), state

        slowed = optax.GradientTransformationExtraArgs(optimizer.init, update)
        return right(key, oracle, slowed, params, data, num_steps, trace)

    return run


def _centred_at_the_mean(right: Callable[..., Any]) -> Callable[..., Any]:
    def degrees(vectors: Any, radius: Any, anchor: Any, *rest: Any) -> Any:
        def mean(rows: jax.Array) -> jax.Array:
            return jnp.mean(jnp.where(jnp.isfinite(rows), rows, 0), axis=0)

        return right(vectors, radius, jax.tree.map(mean, vectors), *rest)

    return degrees


def _threshold_drawn_in_every_step(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(*args: Any, **kwargs: Any) -> Any:
        tests = right(*args, **kwargs)

        def step(key: jax.Array, state: Any, query: Any) -> Any:
            threshold_key, query_key = jax.random.split(key)
            redrawn = tests.init(threshold_key).noisy_threshold
            return tests.step(query_key, state._replace(noisy_threshold=redrawn), query)

        return tests._replace(step=step)

    return faulty


MUTANTS = (
    Mutant(
        "noise times 0.9",
        "dpsco_jax.mechanisms.additive:gaussian",
        lambda right: lambda key, tree, stddev: right(key, tree, 0.9 * stddev),
        ("test_noise_has_the_standard_deviation_that_is_charged",),
    ),
    Mutant(
        "clip dropped",
        "dpsco_jax.geometry.norms:clip_factor",
        lambda right: _no_clip,
        (
            "test_replacing_a_user_moves_the_mean_by_at_most_its_sensitivity",
            "test_removing_a_user_moves_the_mean_by_at_most_its_sensitivity",
            "test_removing_a_user_moves_the_clipped_gradient_sum_by_at_most_the_clip",
        ),
    ),
    Mutant(
        "factor 2 of replacement dropped",
        "dpsco_jax.transforms.aggregates:_sensitivity",
        lambda right: lambda clip_norm, num_users, relation: clip_norm / num_users,
        ("test_replacing_a_user_moves_the_mean_by_at_most_its_sensitivity",),
    ),
    Mutant(
        "repetition ignored",
        "dpsco_jax.privacy:scale",
        lambda right: lambda loss, count: loss,
        ("test_repetition_is_counted",),
    ),
    Mutant(
        "divided by the number of users who are there",
        "dpsco_jax.transforms.aggregates:_sum_of_clipped",
        _divided_by_who_is_there,
        ("test_removing_a_user_moves_the_mean_by_at_most_its_sensitivity",),
    ),
    Mutant(
        "scaled by a number read off the data",
        "dpsco_jax.transforms.aggregates:_sum_of_clipped",
        _divided_by_mean_norm,
        ("test_replacing_a_user_moves_the_mean_by_at_most_its_sensitivity",),
    ),
    Mutant(
        "padding mask ignored",
        "dpsco_jax.transforms.aggregates:_sum_of_clipped",
        lambda right: lambda updates, clip_norm, mask, size: right(updates, clip_norm, None, size),
        ("test_padding_users_do_not_reach_the_release",),
    ),
    Mutant(
        "a NaN user spoils the sum",
        "dpsco_jax.geometry.norms:clip_factor",
        _nan_counts,
        ("test_a_nan_user_counts_as_nobody",),
    ),
    Mutant(
        "norm computed in float16",
        "dpsco_jax.geometry.norms:clip_factor",
        lambda right: _norm_in_leaf_dtype,
        ("test_half_precision_contributions_obey_the_bound",),
    ),
    Mutant(
        "the same noise at every step",
        "dpsco_jax.mechanisms.additive:gaussian",
        lambda right: lambda key, tree, stddev: right(jax.random.key(0), tree, stddev),
        ("test_every_step_draws_fresh_noise", "test_noise_follows_the_key"),
    ),
    Mutant(
        "key of the state not advanced",
        "jax.random:split",
        _repeats_the_key,
        ("test_every_step_draws_fresh_noise",),
    ),
    Mutant(
        "ledger not updated",
        "dpsco_jax.privacy:charge",
        lambda right: lambda ledger, loss: ledger,
        ("test_every_step_is_charged",),
    ),
    Mutant(
        "steps cut short by data",
        "dpsco_jax.solvers.loop:run",
        _stops_on_data,
        ("test_the_solver_sees_its_data_through_releases_only",),
    ),
    Mutant(
        "Poisson samples at twice the rate that is charged",
        "dpsco_jax.oracles.sampling:poisson",
        lambda right: lambda key, num_users, q: right(key, num_users, min(1.0, 2 * q)),
        ("test_poisson_samples_are_redrawn_and_of_the_right_rate",),
    ),
    Mutant(
        "one sample for all steps",
        "dpsco_jax.oracles.sampling:poisson",
        lambda right: lambda key, num_users, q: right(jax.random.key(np.uint32(3)), num_users, q),
        ("test_poisson_samples_are_redrawn_and_of_the_right_rate",),
    ),
    Mutant(
        "distances from the mean of the data",
        "dpsco_jax.mechanisms.concentrated._pairwise:degrees",
        _centred_at_the_mean,
        ("test_who_is_near_whom_does_not_depend_on_a_third",),
    ),
    Mutant(
        "noisy threshold drawn in every step",
        "dpsco_jax.mechanisms.sparse_vector:below_threshold",
        _threshold_drawn_in_every_step,
        ("test_one_noisy_threshold_serves_all_steps",),
    ),
    Mutant(
        "a twentieth of the noise on the outlier-removed mean",
        "dpsco_jax.mechanisms.additive:gaussian",
        lambda right: lambda key, tree, stddev: right(key, tree, stddev / 20),
        ("test_the_outlier_removed_mean_has_the_noise_of_its_plan",),
    ),
)
