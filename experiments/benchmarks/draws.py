"""What is drawn at a step: who takes part, and the noise.

What it computes: seconds of a sample of users, of fixed size and by coins, among many; and of Gaussian noise
on a gradient of many entries, against jax_privacy's privatizer. On an accelerator the calls of a turn are
queued.

Source: none.

Formal guarantee: none.

Cost: a few seconds.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, noise_addition

from dpsco_jax import transforms
from dpsco_jax.oracles import sampling
from experiments.benchmarks.timing import Row, interleaved_medians, once

USERS, BATCH, ENTRIES = 1_000_000, 4096, 2**25


def _settings() -> dict[str, Any]:
    accelerator = jax.default_backend() != "cpu"
    return {"repeats": 9, "burst": 10 if accelerator else 1, "queued": True}


def _of_key(function: Callable[[jax.Array], Any]) -> Callable[[], Any]:
    compiled, key = jax.jit(function), jax.random.key(0)
    return lambda: compiled(key)


def _samples(users: int, batch: int) -> list[Row]:
    probability = batch / users
    seconds = interleaved_medians(
        {
            "without_replacement": _of_key(
                lambda key: sampling.without_replacement(key, users, batch)
            ),
            "poisson": _of_key(lambda key: sampling.poisson(key, users, probability)),
            "a permutation": _of_key(
                lambda key: jax.random.choice(key, users, (batch,), replace=False)
            ),
            "coins, packed": _of_key(
                lambda key: jnp.nonzero(
                    jax.random.bernoulli(key, probability, (users,)), size=users, fill_value=0
                )[0]
            ),
        },
        **_settings(),
    )
    on_host = {
        "fixed": batch_selection.FixedBatchSampling(batch_size=batch, iterations=20),
        "poisson": batch_selection.CyclicPoissonSampling(sampling_prob=probability, iterations=20),
    }
    host = {name: _on_host(strategy, users) for name, strategy in on_host.items()}
    work = f"{batch} of {users:,} users"
    return [
        Row(
            work,
            "without_replacement",
            seconds["without_replacement"],
            "jax.random.choice",
            seconds["a permutation"],
            None,
        ),
        Row(
            work,
            "without_replacement",
            seconds["without_replacement"],
            "jax_privacy, on the host",
            host["fixed"],
            None,
        ),
        Row(work, "poisson", seconds["poisson"], "coins, packed", seconds["coins, packed"], None),
        Row(work, "poisson", seconds["poisson"], "jax_privacy, on the host", host["poisson"], None),
    ]


def _on_host(strategy: Any, users: int) -> float:
    batches = strategy.batch_iterator(users, rng=np.random.default_rng(0))
    next(batches)
    return min(once(functools.partial(next, batches)) for _ in range(9))


def _noise(entries: int) -> list[Row]:
    gradient = jnp.zeros(entries)
    ours = transforms.privatize(transforms.summed_contributions(1.0, 1000), jax.random.key(0), 1.0)
    peer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))
    calls: dict[str, Callable[[], Any]] = {}
    calls["ours"] = _updated(ours, gradient, clipped_to=1.0)
    calls["jax_privacy"] = _updated(peer, gradient)
    calls["normals alone"] = _of_key(lambda key: jax.random.normal(key, (entries,)))
    seconds = interleaved_medians(calls, **_settings())
    work = f"noise on {entries:,} numbers"
    return [
        Row(work, "privatize", seconds["ours"], name, seconds[name], None, moved=8.0 * entries)
        for name in ("jax_privacy", "normals alone")
    ]


def _updated(
    transform: optax.GradientTransformation | Any, gradient: jax.Array, **extra_args: Any
) -> Callable[[], Any]:
    state = transform.init(gradient)
    compiled = jax.jit(functools.partial(transform.update, **extra_args))
    return lambda: compiled(gradient, state)


def rows(small: bool = False) -> list[Row]:
    """All comparisons of this file."""
    if small:
        return _samples(1000, 10) + _noise(1000)
    return _samples(USERS, BATCH) + _noise(ENTRIES)
