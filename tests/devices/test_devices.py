"""Users spread over four devices: the results of one, no row leaves its device, noise is drawn in parts.

One process with four devices runs ``in_process`` for all normal tests; the table of everything is slow.
"""

import contextlib
import functools
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import _compensated, _device_sums, _sharding, transforms
from dpsco_jax.oracles import ghost
from dpsco_jax.problems import users
from tests.devices.table import environment


@functools.cache
def _answers() -> tuple[dict[str, str], str]:
    command = [sys.executable, "-m", "tests.devices.in_process"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    return said, done.stderr[-3000:]


@pytest.mark.parametrize(
    "claim",
    [
        "sums over devices lose no bit that the sum of users keeps",
        "large sums are cut into parts",
        "clipped sums, Explicit",
        "clipped sums, Auto",
        "chunks, Explicit",
        "chunks, Auto",
        "samples, Explicit",
        "samples, Auto",
        "memory and work fall",
        "noise in parts, Explicit",
        "noise in parts, Auto",
        "private step with spread parameters",
        "winsorized means, four devices",
        "winsorized means, three devices",
        "winsorized means, two axes",
        "parameters of a step before",
        "releases by hand are refused",
        "oracles by hand are refused",
        "parts of parts are refused",
        "what is whole is released by hand too",
        "cells of a sweep are whole",
        "all aggregates, on both kinds of meshes",
        "aggregates alone, and steps outside of jit",
    ],
)
def test_on_four_devices(claim):
    said, errors = _answers()
    assert said.get(claim) == "holds", errors


def test_too_many_devices_for_few_users_are_refused():
    _device_sums.require_devices(256, 1)
    _device_sums.require_devices(4096, 64)
    with pytest.raises(ValueError, match="devices"):
        _device_sums.require_devices(257, 63)


def test_nothing_is_spread_without_a_mesh():
    assert _sharding.found(jnp.ones((8, 2))) is None
    assert _sharding.found(np.ones((8, 2))) is None


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_clipped_sums_of_spread_users_are_lowered_for_accelerators(platform):
    mesh = jax.sharding.AbstractMesh((4,), ("users",), axis_types=(jax.sharding.AxisType.Explicit,))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("users"))
    rows = jax.ShapeDtypeStruct((64, 3), jnp.float32, sharding=where)
    aggregate = transforms.clipped_mean(1.0, 64, microbatch_size=8)

    @jax.jit
    def step(rows):
        return aggregate.update(rows, aggregate.init(None), in_parts=True)[0]

    exported = jax.export.export(step, platforms=[platform])(rows)
    assert exported.nr_devices == 4
    text = exported.mlir_module()
    # Sums go over devices, rows do not.
    assert "all_gather" in text
    assert "4x2x3xf32" in text


def test_a_ghost_sum_goes_over_devices_once():
    """All leaves together, however many products they are made of."""
    mesh = jax.sharding.AbstractMesh((4,), ("users",), axis_types=(jax.sharding.AxisType.Explicit,))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("users"))
    rows = jax.ShapeDtypeStruct((64, 3), jnp.float32, sharding=where)

    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["matrix"] + params["offset"]))

    @jax.jit
    def total(rows):
        params = {"matrix": jnp.ones((3, 5)), "offset": jnp.zeros(5)}
        return ghost.clipped_sum(loss, params, rows, 1.0)

    text = jax.export.export(total, platforms=["tpu"])(rows).mlir_module()
    assert text.count("stablehlo.all_gather") == 1
    assert "4x2x20xf32" in text


def test_split_sums_over_one_device_are_unchanged():
    mesh = jax.make_mesh((1,), ("users",))
    parts = _compensated.Split(jnp.float32([1.0, 2.0]), jnp.float32([1e-9, -1e-9]))

    def total(parts):
        return _device_sums.total(parts, "users")

    whole = jax.sharding.PartitionSpec()
    run = jax.shard_map(total, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    jax.tree.map(np.testing.assert_array_equal, run(parts), parts)


@pytest.mark.parametrize("fault", ["dtype", "mask", "slots", "users", "rows", "none"])
def test_what_one_process_has_otherwise_is_refused_in_all(monkeypatch, fault):
    """Else processes would run different programs, and add up numbers that do not belong together."""
    good, mask = {"x": np.zeros((4, 3, 2), np.float32)}, np.ones((4, 3), bool)
    items, other_mask = {
        "dtype": ({"x": np.zeros((4, 3, 2), np.int32)}, mask),
        "mask": (good, None),
        "slots": ({"x": np.zeros((4, 5, 2), np.float32)}, np.ones((4, 5), bool)),
        "users": ({"x": np.zeros((3, 3, 2), np.float32)}, mask[:3]),
        "rows": (good, mask[:2]),
        "none": (good, mask),
    }[fault]
    mesh, told = jax.make_mesh((1,), ("users",)), []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "make_array_from_process_local_data", lambda where, leaf, shape: shape)
    load = users.UserData.from_process_local
    allgather = "process_allgather"
    # What each tells the other, whether or not it is refused later.
    for data in ((good, mask), (items, other_mask)):
        monkeypatch.setattr(users.multihost_utils, allgather, lambda x: told.append(x) or [x, x])
        with contextlib.suppress(ValueError):
            load(mesh, *data)
    assert len(told) == 2
    monkeypatch.setattr(users.multihost_utils, allgather, lambda x: np.stack(told))
    for data in ((good, mask), (items, other_mask)):
        if fault == "none":
            assert load(mesh, *data).items["x"] == (8, 3, 2)
        else:
            with pytest.raises(ValueError, match=r"items must be"):
                load(mesh, *data)


@pytest.mark.slow
def test_everything_works_on_every_mesh():
    command = [sys.executable, "-m", "tests.devices.table", "--here"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines()[2:] if line.startswith("|")]
    assert len(rows) > 60, done.stderr[-2000:]
    for row in rows:
        for cell in row.split("|")[2:-1]:
            assert cell.strip() == "ok" or cell.strip().startswith(("gathers", "passes")), row
            if "concentrat" in row or "winsorized" in row:
                assert "gathers" not in cell, row
