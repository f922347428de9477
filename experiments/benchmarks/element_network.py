"""A private step over units of a convolutional network, against jax-privacy's clipped gradient.

What it computes: processor seconds (of all threads) of a step (a gradient for each of 256 units of 4 images
of 28×28, clip, sum, noise) of the network of ``studies.element_cnn``, 44,426 parameters, by
``element_level.federated`` and ``element_level.sgd``, whose convolutions are products with gathered
patches; and by ``jax_privacy.clipping.clipped_grad`` at every microbatch size of a list, with
``lax.conv_general_dilated``, and with the same gathered products.

Source: none.

Formal guarantee: none; images are drawn at random.

Cost: two minutes, 2 GB.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dpsco_jax import Budget, Problem
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.solvers.element_level import federated, sgd
from experiments.benchmarks import peers
from experiments.benchmarks.timing import Row, interleaved_medians
from experiments.studies import element_cnn

USERS, SLOTS, ITEMS = 64, 4, 4
UNITS = USERS * SLOTS
SHAPE = element_cnn.SHAPES["mnist_5k"]
CHUNK = 8
CONVOLUTION_MICROBATCHES = (1, 2, 4, 8, 32, None)
PATCH_MICROBATCHES = (4, 16, 64)


def convolution_logits(params: Any, images: jax.Array) -> jax.Array:
    """What ``element_cnn.logits`` computes, of a batch of images, with the convolution of ``lax``."""
    maps = images[..., None]
    for index, (size, pool) in enumerate(zip(SHAPE.filters, SHAPE.pools, strict=True)):
        layer = params[f"convolution_{index}"]
        filters = layer["weights"].reshape(size, size, maps.shape[-1], -1)
        dimensions = ("NHWC", "HWIO", "NHWC")
        made = lax.conv_general_dilated(
            maps, filters, (1, 1), "VALID", dimension_numbers=dimensions
        )
        maps = jax.nn.relu(made + layer["biases"])
        window = (1, pool, pool, 1)
        maps = lax.reduce_window(maps, -jnp.inf, lax.max, window, window, "VALID")
    hidden = maps.reshape(len(images), -1)
    layers = [params[name] for name in sorted(params) if name.startswith("layer")]
    for layer in layers[:-1]:
        hidden = jax.nn.relu(hidden @ layer["weights"] + layer["biases"])
    return hidden @ layers[-1]["weights"] + layers[-1]["biases"]


def convolution_loss(params: Any, unit: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The mean loss of the images of a unit, by convolutions."""
    scores = convolution_logits(params, unit[0])
    return jnp.mean(optax.losses.softmax_cross_entropy_with_integer_labels(scores, unit[1]))


def patch_loss(params: Any, unit: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The same by the products with gathered patches that the study makes."""
    loss = element_cnn.network_objective(SHAPE).loss
    return jnp.mean(jax.vmap(lambda x, y: loss(params, Example(x, y)))(*unit))


def _ours(solver: Any, images: jax.Array, labels: jax.Array, **sizes: float) -> Callable[[], Any]:
    objective, start = element_cnn.network_objective(SHAPE), element_cnn.initial_params(SHAPE)
    dim = element_cnn.num_params(SHAPE)
    problem = Problem(objective, num_users=USERS, items_per_user=SLOTS * ITEMS, dim=dim)
    plan = solver.plan(
        problem, Budget(2.0, 1e-3), num_steps=1, elements_per_user=SLOTS, sampling="full",
        clip_norm=1.0, step_size=0.1, chunk_size=CHUNK, **sizes,
    )  # fmt: skip
    by_user = (USERS, SLOTS, ITEMS)
    data = ElementData(Example(images.reshape(*by_user, 28, 28), labels.reshape(by_user)), None)
    run = jax.jit(lambda key, data: solver.solve(key, plan, objective, data, start).params)
    return lambda: run(jax.random.key(0), data)


def _peer(loss: Any, batch: Any, microbatch: int | None) -> Callable[[], Any]:
    step, state = peers.jax_privacy_step(
        loss, element_cnn.initial_params(SHAPE), clip_norm=1.0, noise_multiplier=1.0,
        num_users=USERS, learning_rate=0.1, microbatch_size=microbatch,
    )  # fmt: skip
    compiled = jax.jit(step)

    return lambda: compiled(state, batch)[0]


def rows() -> list[Row]:
    """Both solvers beside the best microbatch of each peer."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.random((UNITS, ITEMS, 28, 28)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, (UNITS, ITEMS)), jnp.int32)
    batch = images, labels
    ours = {
        "federated": _ours(federated, images, labels, local_step_size=1.0),
        "sgd": _ours(sgd, images, labels),
    }
    by_convolution = {
        f"convolution, microbatches of {size or 'all'}": _peer(convolution_loss, batch, size)
        for size in CONVOLUTION_MICROBATCHES
    }
    by_patches = {
        f"gathered products, microbatches of {size}": _peer(patch_loss, batch, size)
        for size in PATCH_MICROBATCHES
    }
    calls = {**ours, **by_convolution, **by_patches}
    seconds = interleaved_medians(calls, repeats=5, clock=time.process_time)
    work = f"private step, {UNITS} units of {ITEMS} images, 44,426 parameters"
    found_rows = []
    for group, target in ((by_convolution, 2.0), (by_patches, None)):
        best = min(group, key=seconds.__getitem__)
        note = "best of " + ", ".join(f"{1e3 * seconds[name]:.0f}" for name in group) + " ms"
        for solver in ours:
            peer = f"jax_privacy, {best}"
            row = Row(work, solver, seconds[solver], peer, seconds[best], target, note)
            found_rows.append(row)
    return found_rows
