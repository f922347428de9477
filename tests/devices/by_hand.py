"""What is refused where somebody has divided users or parameters by hand: claims for ``in_process``."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation
from jax.sharding import AxisType, PartitionSpec

from dpsco_jax import mechanisms, privacy, transforms
from dpsco_jax.mechanisms import (
    additive,
    clustered_histogram,
    heavy_hitters,
    histogram_releases,
    histograms,
    lazy_draws,
    noisy_iteration,
    private_selection,
    selection,
    sparse_vector,
    tree,
    two_stage_histogram,
)
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.mechanisms.correlated_noise import banded_square_root
from dpsco_jax.mechanisms.winsorized import private_range, winsorized_mean
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.problems import Problem
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.transforms.aggregate import Aggregate
from tests.devices.entries import DIM, ITEMS, OBJECTIVE, entries, user_data

KEY = jax.random.key(0)
N = 480
REPLACED = NeighboringRelation.REPLACE_ONE
WINSORIZED = calibrate_winsorized(
    N, 4, 1, 4.0, 1e-4, form="winsorized", radius=0.1, bound=2.0, failure=1e-5
)
CLUSTERS = np.arange(N)
HISTOGRAM = histogram_releases.calibrate_histogram(N, CLUSTERS, 1.0, 1.0, 1e-6)
TWO_STAGES = two_stage_histogram.calibrate_two_stages(N, CLUSTERS, 4.0, 1.0, 1e-6)
PHASE = calibrate_concentrated(N, 2, 4.0, 1e-4)

# Of the key and of numbers of the users, ``[N, 4]``.
Release = Callable[[Any, Any], Any]


def _updated(transform: Any, **extra: Any) -> Release:
    """An update; noise, where there is some, is of a key that was there before."""

    def run(key: Any, x: Any) -> Any:
        return transform.update(x, transform.init(jnp.zeros(4)), jnp.zeros(4), **extra)[0]

    return run


def _own_aggregate() -> Aggregate:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return jnp.mean(
            updates / jnp.maximum(jnp.linalg.norm(updates, axis=1), 1)[:, None], 0
        ), state

    return Aggregate(lambda params: optax.EmptyState(), update, 2 / N, REPLACED)


def _stepped(key: Any, x: Any) -> Any:
    test = sparse_vector.above_threshold(0.0, 1.0, 1.0)
    return test.step(key, test.init(KEY), x[0, 0])


def _numbers(x: Any) -> Any:
    return x[:, 0].astype(jnp.int32)


NOISY: dict[str, Release] = {
    "gaussian": lambda key, x: additive.gaussian(key, x, 1.0),
    "laplace": lambda key, x: additive.laplace(key, x, 1.0),
    "bounded_laplace": lambda key, x: additive.bounded_laplace(key, x, 1.0, 9.0),
    "lazy_draw": lambda key, x: lazy_draws.lazy_draw(
        key, x[0, 0], x[0, 0], lambda key: additive.gaussian(key, x[0, 0], 1.0)
    ),
    "outcomes": lambda key, x: sparse_vector.outcomes(
        key, sparse_vector.above_threshold(0.0, 1.0, 1.0), x[:, 0]
    ),
    "size of the noise": lambda key, x: additive.gaussian(key, jnp.zeros(3), x[0, 0] ** 2),
    "tree_noise": lambda key, x: tree.tree_noise(key, 2, jnp.zeros(3), x[0, 0] ** 2, 4),
    "clustered_histogram": lambda key, x: clustered_histogram.clustered_histogram(
        key, _numbers(x), _numbers(x), x[:, 0], HISTOGRAM
    ),
    "two_stage_histogram": lambda key, x: two_stage_histogram.two_stage_histogram(
        key, _numbers(x), _numbers(x), x[:, 0], TWO_STAGES
    ),
    "select": lambda key, x: concentrated_mean.select(key, x[:, 0]),
    "heavy_hitter_counts": lambda key, x: heavy_hitters.heavy_hitter_counts(
        key, _numbers(x), _numbers(x), N, 9, 1.0
    ),
    "user_level_histogram": lambda key, x: histograms.user_level_histogram(key, x, WINSORIZED),
    "last_point": lambda key, x: noisy_iteration.last_point(
        key, jnp.zeros(4), lambda t, p: p + x.mean(0), lambda p: p, 3, 1.0, 1.0
    ),
    "geometric_selection": lambda key, x: private_selection.geometric_selection(
        key, lambda key, index: x[index, 0], 3, 0.5
    ),
    "exponential_mechanism": lambda key, x: selection.exponential_mechanism(key, x[:, 0], 1.0, 1.0),
    "permute_and_flip": lambda key, x: selection.permute_and_flip(key, x[:, 0], 1.0, 1.0),
    "report_noisy_max": lambda key, x: selection.report_noisy_max(key, x[:, 0], 1.0, 1.0),
    "above_threshold": _stepped,
    "private_range": lambda key, x: private_range.private_range(key, x[:, 0], 1.0, 0.1, 2.0),
    "winsorized_mean": lambda key, x: winsorized_mean.winsorized_mean(key, x, WINSORIZED),
    "winsorized_mean_1d": lambda key, x: winsorized_mean.winsorized_mean_1d(
        key, x[:, 0], 1.0, 0.1, 2.0
    ),
}
SUMS: dict[str, Release] = {
    "clipped_mean": _updated(transforms.clipped_mean(1.0, N)),
    "clipped_mean, microbatches": _updated(transforms.clipped_mean(1.0, N, microbatch_size=4)),
    "clipped_sum": _updated(transforms.clipped_sum(1.0)),
    "centred_clip": _updated(transforms.centred_clip(1.0, N, quantile=0.5)),
    "summed_contributions": _updated(transforms.summed_contributions(1.0, N), clipped_to=1.0),
    "privatize": _updated(transforms.privatize(transforms.clipped_mean(1.0, N), KEY, 1.0)),
    "privatize, an aggregate of somebody else": _updated(
        transforms.privatize(_own_aggregate(), KEY, 1.0)
    ),
    "privatize, correlated": _updated(
        transforms.privatize(
            transforms.clipped_mean(1.0, N),
            KEY,
            1.0,
            noise_correlation=banded_square_root(8, 2, 4, 4),
        )
    ),
    "winsorized": _updated(transforms.winsorized_mean(WINSORIZED, KEY)),
    "outlier_removed_mean": _updated(transforms.outlier_removed_mean(PHASE, 1.0, KEY)),
}
SAMPLES: dict[str, Release] = {
    "poisson": lambda key, x: sampling.poisson(key, N, 0.1),
    "without_replacement": lambda key, x: sampling.without_replacement(key, N, 9),
    "with_replacement": lambda key, x: sampling.with_replacement(key, N, 9),
}
# Loops over users of which the parameters are no argument.
_CLOSED = ("`clipping", "`transforms", "`chunks", "`concentrated", "`row_moments")


def _refused(run: Callable[..., Any], *args: Any) -> bool:
    """Whether tracing this says that values have to be the same everywhere."""
    try:
        jax.eval_shape(run, *args)
    except ValueError as error:
        if "must be the same on all devices" not in str(error):
            raise
        return True
    return False


def _inside(
    run: Callable[..., Any],
    varying: tuple[bool, ...],
    *,
    told: bool = True,
    shape: tuple[int, ...] = (4,),
    kind: AxisType = AxisType.Auto,
) -> Callable[..., Any]:
    """The function in a ``shard_map`` over the first axis, with arguments that differ there or do not.

    They are whole on every device, so that no planned number of users is missed.
    """
    mesh = jax.make_mesh(shape, ("a", "b")[: len(shape)], axis_types=(kind,) * len(shape))

    def on_device(*args: Any) -> Any:
        number = jax.lax.axis_index("a")

        def differs(leaf: Any) -> Any:
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.fold_in(leaf, number)
            return leaf ^ (number < 0) if leaf.dtype == bool else leaf + number.astype(leaf.dtype)

        given = [jax.tree.map(differs, a) if v else a for a, v in zip(args, varying, strict=True)]
        # Only whether it is traced is looked at, so that results may vary or not.
        run(*given)
        return jnp.zeros(())

    whole = PartitionSpec()
    specs = tuple(whole for _ in varying)
    return jax.shard_map(
        on_device, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=told, axis_names={"a"}
    )


def releases() -> None:
    """Whatever draws noise or clips users refuses parts, by hand in any way, and takes what is whole."""
    listed = set()
    for module in pkgutil.walk_packages(mechanisms.__path__, mechanisms.__name__ + "."):
        if not module.name.rsplit(".", 1)[1].startswith("_"):
            found = vars(importlib.import_module(module.name)).values()
            own = [f for f in found if inspect.isfunction(f) and f.__module__ == module.name]
            # What takes a key alone sees no part of anything.
            takes = {f.__name__: set(inspect.signature(f).parameters) for f in own}
            listed |= {name for name, taken in takes.items() if "key" in taken and len(taken) > 1}
    assert {name for name in listed if not name.startswith("_")} <= set(NOISY), listed

    x, lanes = jnp.ones((N, 4)) / 10, jnp.ones((4, N, 4)) / 10
    for name, run in (NOISY | SUMS | SAMPLES).items():
        cases = [(True, False)] * (name not in SUMS) + [(False, True)] * (name not in SAMPLES)
        for varying in cases:
            assert _refused(_inside(run, varying), KEY, x), (name, varying)
        # Over one axis of two, of the other kind; without a word on what varies; as lanes on devices.
        some = _inside(run, cases[0], shape=(2, 2), kind=AxisType.Explicit)
        assert _refused(some, KEY, x), name
        assert _refused(_inside(run, (False, False), told=False), KEY, x), name
        assert _refused(jax.pmap(run, in_axes=(None, 0)), KEY, lanes), name
        assert not _refused(_inside(run, (False, False)), KEY, x), name
        assert not _refused(jax.vmap(run, in_axes=(None, 0), axis_name="a"), KEY, lanes), name
    print("releases by hand are refused: holds")


def oracles() -> None:
    for entry in entries():
        params, data = jnp.full(DIM, 0.1), jax.tree.map(jnp.asarray, entry.data)
        cases = [(False, False, True)]
        if not entry.name.startswith(_CLOSED) and entry.name != "`sandwich`":
            cases.append((False, True, False))
        for varying in cases:
            assert _refused(_inside(entry.run, varying), KEY, params, data), (entry.name, varying)
        whole = (False, False, False)
        assert _refused(_inside(entry.run, whole, told=False), KEY, params, data), entry.name
        if "fixed size" in entry.name:
            assert not _refused(_inside(entry.run, whole), KEY, params, data), entry.name
    print("oracles by hand are refused: holds")


def nested() -> None:
    """What a ``shard_map`` has divided without keeping track is refused in another inside of it."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    cut = PartitionSpec("a")

    def outside(key: Any, x: Any) -> Any:
        inner = jax.shard_map(
            lambda x: additive.gaussian(key, x, 1.0),
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            axis_names={"b"},
        )
        return inner(x)

    run = jax.shard_map(
        lambda x: outside(KEY, x),
        mesh=mesh,
        in_specs=cut,
        out_specs=cut,
        check_vma=False,
        axis_names={"a"},
    )
    assert _refused(run, jnp.ones(8))
    print("parts of parts are refused: holds")


def replicated() -> None:
    """A release of what is whole on every device is that of one device, in ``shard_map`` too."""
    rows = jnp.asarray(np.random.default_rng(4).standard_normal((64, DIM)), jnp.float32)
    release = transforms.privatize(transforms.clipped_mean(1.0, 64), KEY, 1.0)

    @jax.jit
    def step(rows: Any) -> Any:
        return release.update(rows, release.init(jnp.zeros(DIM)), jnp.zeros(DIM))[0]

    want = step(rows)
    mesh = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,))
    whole = PartitionSpec()
    found = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=whole, out_specs=whole))(rows)
    np.testing.assert_array_equal(found, want)
    # Compiled before, and refused all the same: parameters cut, as one user of norm 1 in four pieces.
    cut = PartitionSpec(None, "a")
    wide = jnp.tile(rows[:, :1], (1, 4 * DIM))
    for told in (True, False):
        piece = jax.shard_map(
            step, mesh=mesh, in_specs=cut, out_specs=PartitionSpec("a"), check_vma=told
        )
        assert _refused(piece, wide)
        with pytest.raises(ValueError, match=r"^updates must be the same on all devices"):
            piece(wide)
    print("what is whole is released by hand too: holds")


def runs() -> None:
    """Whole solvers: refused in parts; a sweep's cells, each whole on its device, are not."""
    from dpsco_jax.sweeps import compile as chunked
    from dpsco_jax.sweeps.experiment import Program

    data = jax.tree.map(jnp.asarray, user_data(64, ITEMS))
    problem = Problem(OBJECTIVE, num_users=64, dim=DIM, distance=1.0)
    plan = sgd.plan(problem, privacy.Budget(4.0, 1e-4), num_steps=2, batch_size=16)

    def solve(key: Any, data: Any) -> Any:
        return sgd.solve(key, plan, OBJECTIVE, data, jnp.zeros(DIM)).params

    assert _refused(_inside(solve, (False, True)), KEY, data)
    assert _refused(_inside(solve, (True, False)), KEY, data)
    assert not _refused(_inside(solve, (False, False)), KEY, data)

    def run(shared: Any, key: Any, number: Any) -> dict[str, Any]:
        return {"first": additive.gaussian(key, jnp.sum(shared) * number, 1.0)}

    program = Program(run, jnp.arange(3.0))
    made = chunked.compile_chunk(program, np.float32(1), 4, 1e9, jax.devices())
    cells = [f"{i:016x}" for i in range(4)]
    found = made.call(chunked.key_words(cells), np.ones(4, np.float32))["first"]
    for cell, value in zip(chunked.key_words(cells), np.asarray(found), strict=True):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), cell[0]), cell[1])
        np.testing.assert_allclose(value, 3 + additive.gaussian(key, jnp.float32(0), 1.0), 1e-6)
    print("cells of a sweep are whole: holds")


CLAIMS = (releases, oracles, nested, replicated, runs)
