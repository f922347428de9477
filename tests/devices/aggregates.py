"""All aggregates on meshes with explicit axes, as on those with automatic ones: claims for ``in_process``."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpsco_jax import transforms
from dpsco_jax.mechanisms.correlated_noise import banded_square_root
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.transforms.aggregate import Aggregate

N = 480
KEY = jax.random.key(0)
START = {"a": np.full(8, 0.1, np.float32), "b": np.zeros((4, 3), np.float32)}


def _rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: (0.01 * rng.standard_normal((N, *leaf.shape))).astype(np.float32)
        for name, leaf in START.items()
    }


def _own() -> Aggregate:
    """One that somebody else has written, with what JAX refuses on explicit axes: a ravelled sum."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        capped = jax.tree.map(lambda u: jnp.mean(jnp.clip(u, -0.1, 0.1), 0), updates)
        flat, back = jax.flatten_util.ravel_pytree(capped)
        return back(flat), state

    relation = NeighboringRelation.REPLACE_ONE
    return Aggregate(lambda params: optax.EmptyState(), update, 2 / N, relation)


def _releases() -> dict[str, Any]:
    def noised(aggregate: Aggregate, **options: Any) -> Any:
        return transforms.privatize(aggregate, KEY, 1.0, **options)

    mean = transforms.clipped_mean(0.05, N)
    layers = {"a": 0.02, "b": 0.05}
    numbers = {"radius": 0.1, "bound": 2.0, "failure": 1e-5}
    planned = calibrate_winsorized(N, 20, 1, 4.0, 1e-4, form="winsorized", **numbers)
    phase = calibrate_concentrated(N, 2, 4.0, 1e-4)
    return {
        "clipped_mean, layers": noised(transforms.clipped_mean(layers, N, microbatch_size=8)),
        "centred_clip": noised(transforms.centred_clip(0.4, N, start=START, quantile=0.5)),
        "summed_contributions": noised(transforms.summed_contributions(1.0, N)),
        "of somebody else": noised(_own()),
        "correlated": noised(mean, noise_correlation=banded_square_root(8, 2, 4, 4)),
        "winsorized_mean": transforms.winsorized_mean(planned, KEY),
        "outlier_removed_mean": transforms.outlier_removed_mean(phase, 0.5, KEY),
        "scheduled": optax.inject_hyperparams(
            lambda clip_norm, noise_multiplier: transforms.privatize(
                transforms.clipped_mean(clip_norm, N), KEY, noise_multiplier
            )
        )(clip_norm=0.05, noise_multiplier=1.0),
    }


def all_alike() -> None:
    """One update of every release: the bits of the other kind of mesh, and the numbers of no mesh."""
    per_user = _rows()
    summed = jax.tree.map(lambda leaf: leaf.sum(0), per_user)
    for name, release in _releases().items():
        is_sum = name == "summed_contributions"
        extra = {"clipped_to": 1.0} if is_sum else {}

        def step(
            updates: Any, state: Any, params: Any, release: Any = release, extra: Any = extra
        ) -> Any:
            return release.update(updates, state, params, **extra)

        updates, state = (summed if is_sum else per_user), release.init(START)
        want = jax.jit(step)(updates, state, START)
        for cut in ("users", "params"):
            bits = {}
            for kind in ("Explicit", "Auto"):
                mesh = jax.make_mesh((4,), ("users",), axis_types=(getattr(AxisType, kind),))
                found = _laid_out(mesh, cut, is_sum, (updates, state, START))
                # Where a compiler is free to lay out results it may add in another order.
                laid = None if kind == "Explicit" else _as_on(mesh, bits["Explicit"])
                bits[kind] = jax.jit(step, out_shardings=laid)(*found)
            for one, other, alone in zip(
                *map(jax.tree.leaves, (*bits.values(), want)), strict=True
            ):
                if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                    one, other, alone = map(jax.random.key_data, (one, other, alone))
                np.testing.assert_array_equal(np.asarray(one), np.asarray(other), f"{name}, {cut}")
                np.testing.assert_allclose(
                    np.asarray(one), np.asarray(alone), 1e-4, 1e-6, err_msg=f"{name}, {cut}"
                )
            if cut == "params":
                # What is released lies as the parameters do.
                assert all(any(leaf.sharding.spec) for leaf in jax.tree.leaves(bits["Explicit"][0]))
    print("all aggregates, on both kinds of meshes: holds")


def _laid_out(mesh: Any, cut: str, is_sum: bool, arguments: Any) -> Any:
    """Updates, state and parameters on the mesh, cut by users or by the first axis of the parameters."""
    updates, state, params = arguments
    whole, first = PartitionSpec(), PartitionSpec("users")
    of_params = whole if cut == "users" else first
    of_updates = PartitionSpec(None, "users") if cut == "params" else first
    shapes = {np.shape(leaf) for leaf in jax.tree.leaves(params)}

    def placed(tree: Any, spec: Any) -> Any:
        return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec)), tree)

    states = jax.tree.map(lambda x: placed(x, of_params if np.shape(x) in shapes else whole), state)
    return placed(updates, of_params if is_sum else of_updates), states, placed(params, of_params)


def _as_on(mesh: Any, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: NamedSharding(mesh, leaf.sharding.spec), tree)


def alone() -> None:
    """Aggregates without a release; and steps outside of ``jit``, the second on what the first has left."""
    rows, mesh = _rows(), jax.make_mesh((4,), ("users",))
    placed = jax.device_put(rows, NamedSharding(mesh, PartitionSpec("users")))
    for aggregate in (
        transforms.clipped_mean(0.05, N),
        transforms.centred_clip(0.4, N, start=START),
    ):

        @jax.jit
        def step(rows: Any, aggregate: Aggregate = aggregate) -> Any:
            return aggregate.update(rows, aggregate.init(START), START)[0]

        for one, other in zip(*map(jax.tree.leaves, (step(placed), step(rows))), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), 1e-5, 1e-8)
    release = transforms.privatize(transforms.summed_contributions(1.0, N), KEY, 1.0)
    results = []
    for params in (START, jax.device_put(START, NamedSharding(mesh, PartitionSpec("users")))):
        state = release.init(params)
        for _ in range(2):
            updates, state = release.update(params, state, params, clipped_to=1.0)
            params = optax.apply_updates(params, updates)
        results.append(params)
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), 1e-5, 1e-6)
    print("aggregates alone, and steps outside of jit: holds")


CLAIMS = (all_alike, alone)
