"""Claims about users on four devices, each printed with ``holds``; runs in a process with four devices."""

import functools
import itertools
import re
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpsco_jax import _compensated, _device_sums, transforms
from dpsco_jax.geometry import clipping
from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms.winsorized import winsorized_mean
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.oracles import chunks, gradients, sampling
from tests.devices import aggregates, by_hand
from tests.devices.entries import OBJECTIVE, user_data
from tests.devices.table import GATHER, exchanged, spread

USERS, DIM = 512, 5
ROWS = np.random.default_rng(0).standard_normal((USERS, DIM)).astype(np.float32)
KINDS = ("Explicit", "Auto")


def sums() -> None:
    """Sums of devices are added up as rationals are, up to 2^-44, where floats lose 2^-24."""
    rng = np.random.default_rng(1)
    for size, name in (
        (6, "sums over devices lose no bit that the sum of users keeps"),
        (2**16 + 3, "large sums are cut into parts"),
    ):
        high = (rng.standard_normal((4, size)) * 2.0 ** rng.integers(0, 20, (4, size))).astype("f4")
        low = (high * rng.uniform(-1, 1, (4, size)) * 2.0**-25).astype("f4")
        mesh = jax.make_mesh((4,), ("users",))
        cut, whole = PartitionSpec("users"), PartitionSpec()

        def total(high: Any, low: Any) -> Any:
            return _device_sums.total((_compensated.Split(high[0], low[0]), jnp.int32(1)), "users")

        run = jax.jit(
            jax.shard_map(
                total, mesh=mesh, in_specs=(cut, cut), out_specs=(cut, whole), check_vma=False
            )
        )
        found, count = run(*jax.device_put((high, low), NamedSharding(mesh, cut)))
        assert count == 4
        high64, low64 = high.astype(np.float64), low.astype(np.float64)
        exact = (high64 + low64).sum(0)
        scale = np.abs(high64).sum(0)
        each = [np.asarray(part, np.float64).reshape(4, -1) for part in found]
        # The same on every device.
        assert all((part == part[:1]).all() for part in each)
        off = np.abs(each[0][0] + each[1][0] - exact)
        assert (off <= 2.0**-44 * scale).all()
        assert (np.abs(each[0][0] - exact) > 2.0**-30 * scale).any()
        print(f"{name}: holds")


def clipped(kind: str) -> None:
    counted = np.arange(USERS) % 7 != 0
    bad = ROWS.copy()
    bad[3, 1] = np.nan

    def run(rows: Any, counted: Any) -> Any:
        return clipping.split_sum_of_clipped(rows, 1.0, counted)

    alone = _value(jax.jit(run)(bad, counted))
    program = jax.jit(run).lower(*spread((bad, counted), kind, 4)).compile()
    both = program(*spread((bad, counted), kind, 4))
    # Rows are clipped alike, and only their groups of 16 are others: none here.
    np.testing.assert_allclose(_value(both), alone, rtol=0, atol=1e-11 * USERS)
    assert exchanged(program.as_text()) == 4 * 2 * DIM
    print(f"clipped sums, {kind}: holds")


def _value(parts: Any) -> np.ndarray:
    return np.asarray(parts.high, np.float64) + np.asarray(parts.low, np.float64)


def chunked(kind: str) -> None:
    """Integers: every user is counted once, at the user's own place, and nobody else."""

    def chunk_sum(rows: Any, counted: Any, position: Any) -> Any:
        return jnp.sum(jnp.where(counted, rows * (position + 1), 0))

    numbers = np.arange(USERS, dtype=np.int32) % 97
    want = int(np.sum(numbers * (np.arange(USERS) + 1)))
    for chunk in (7, 64, 1000):
        run = jax.jit(lambda x, chunk=chunk: chunks.sum_over_users(chunk_sum, x, None, chunk))
        assert int(run(spread(numbers, kind, 4))) == want
    print(f"chunks, {kind}: holds")


def sampled(kind: str) -> None:
    """Whoever is drawn on one device is counted on four, as often, and at the same place."""

    def chunk_sum(rows: Any, counted: Any, position: Any) -> Any:
        # The multiset of pairs (user, place), hashed.
        mixed = (rows * 1_000_003 ^ position * 40_503).astype(jnp.uint32)
        return jnp.sum(jnp.where(counted, mixed * mixed, 0), dtype=jnp.uint32), jnp.sum(counted)

    def chunk_rows(rows: Any, counted: Any, position: Any) -> Any:
        return jnp.where(counted, rows, -1)

    numbers = np.arange(USERS, dtype=np.int32)
    draws = (
        lambda key: sampling.poisson(key, USERS, 0.4),
        # As a stream, with room for fewer than all users.
        lambda key: sampling.poisson(key, USERS, 0.008),
        lambda key: sampling.without_replacement(key, USERS, 200),
        lambda key: sampling.with_replacement(key, USERS, 700),
    )
    for draw in draws:

        def run(key: Any, numbers: Any, draw: Any = draw) -> Any:
            sample = draw(key)
            return chunks.sum_over_users(chunk_sum, numbers, sample, 16), chunks.map_over_users(
                chunk_rows, numbers, sample, 16
            )

        jitted = jax.jit(run)
        for seed in range(3):
            key = jax.random.key(seed)
            (want, rows), (found, own) = (
                jitted(key, numbers),
                jitted(key, spread(numbers, kind, 4)),
            )
            assert [int(x) for x in want] == [int(x) for x in found]
            size = int(want[1])
            np.testing.assert_array_equal(np.asarray(rows)[:size], np.asarray(own)[:size])
    print(f"samples, {kind}: holds")


def scaled() -> None:
    """Temporaries and operations of a device fall with the number of devices, on both kinds of meshes."""
    data = user_data(4096)
    oracle = gradients.clipped_gradient_sum(gradients.user_gradient(OBJECTIVE), 0.5, None, 4096)

    def step(key: Any, params: Any, data: Any) -> Any:
        return oracle(key, params, data).gradient

    for kind in KINDS:
        costs = {}
        for devices in (1, 4):
            placed = spread(data, kind, devices)
            compiled = jax.jit(step).lower(jax.random.key(0), jnp.zeros(DIM), placed).compile()
            memory = compiled.memory_analysis().temp_size_in_bytes
            costs[devices] = (memory, compiled.cost_analysis()["flops"])
        for one, four in zip(*costs.values(), strict=True):
            assert four < 0.4 * one, costs
    print("memory and work fall: holds")


def noise(kind: str) -> None:
    statistic = np.random.default_rng(2).standard_normal((64, 16)).astype(np.float32)
    axes = 2 * (getattr(AxisType, kind),)
    mesh = jax.make_mesh((2, 2), ("users", "columns"), axis_types=axes)
    # Places are counted in the whole array, whichever axis is cut.
    cuts = ((("users", "columns"),), (None, ("users", "columns")), ("users", "columns"))
    for mechanism, cut in itertools.product((additive.gaussian, additive.laplace), cuts):

        def release(key: Any, x: Any, mechanism: Any = mechanism) -> Any:
            return mechanism(key, x, 2.0)

        want = jax.jit(release)(jax.random.key(1), statistic)
        where = NamedSharding(mesh, PartitionSpec(*cut))
        placed = jax.device_put(statistic, where)
        program = jax.jit(release, out_shardings=where).lower(jax.random.key(1), placed).compile()
        found = np.asarray(program(jax.random.key(1), placed))
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
        assert _largest(program.as_text()) <= statistic.size // 4
        assert exchanged(program.as_text()) == 0
    print(f"noise in parts, {kind}: holds")


def _largest(program: str) -> int:
    """The most numbers in an array of a compiled program."""
    shapes = re.findall(r"\w\d+\[([\d,]+)\]", program)
    return max(int(np.prod([int(n) for n in shape.split(",")])) for shape in shapes)


def private_step() -> None:
    """A step whose parameters and noise are spread over the devices that users are spread over."""
    mesh = jax.make_mesh((4,), ("users",))
    cut = NamedSharding(mesh, PartitionSpec("users"))
    rows = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
    aggregate = transforms.clipped_mean(1.0, 64)
    chain = optax.chain(transforms.privatize(aggregate, jax.random.key(0), 1.0), optax.sgd(0.1))

    def step(params: Any, rows: Any) -> Any:
        updates, _ = chain.update(rows, chain.init(params), params)
        return optax.apply_updates(params, updates)

    want = jax.jit(step)(jnp.ones(512), rows)
    placed = jax.device_put((np.ones(512, np.float32), rows), cut)
    program = jax.jit(step).lower(*placed).compile()
    found = program(*placed)
    assert found.sharding.spec == PartitionSpec("users")
    np.testing.assert_allclose(np.asarray(found), np.asarray(want), rtol=1e-6, atol=1e-7)
    # Random words of one quarter of the parameters, on every device.
    words = re.findall(r"u32\[([\d,]+)\]", program.as_text())
    assert max(int(np.prod([int(n) for n in w.split(",")])) for w in words) <= 128
    print("private step with spread parameters: holds")


def winsorized() -> None:
    """Intervals, clipped values and noise of one device; no device holds all rows."""
    rows = (0.3 + 0.3 * ROWS)[:480]
    rows[3, 1] = np.nan
    numbers = {"radius": 0.1, "bound": 2.0, "failure": 1e-5}
    planned = calibrate_winsorized(len(rows), DIM, 1, 4.0, 1e-4, form="winsorized", **numbers)

    @jax.jit
    def run(key: Any, rows: Any) -> Any:
        return winsorized_mean.winsorized_mean(key, rows, planned)

    want = np.asarray(run(jax.random.key(1), rows))
    # Axes in another order than the mesh has them.
    crossed = NamedSharding(jax.make_mesh((2, 2), ("a", "b")), PartitionSpec(("b", "a")))
    for name, devices, placed in (
        ("four devices", 4, spread(rows, "Explicit", 4)),
        ("three devices", 3, spread(rows, "Auto", 3)),
        ("two axes", 4, jax.device_put(rows, crossed)),
    ):
        program = run.lower(jax.random.key(1), placed).compile()
        found = np.asarray(program(jax.random.key(1), placed))
        # Users reach beyond the intervals: where these lie shows in the means.
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)
        text = program.as_text()
        # Five coordinates are eight when rotated: their means are told to all, values to whoever takes them.
        each = -(-8 // devices)
        assert exchanged(text, GATHER) == each * devices
        assert 0 < exchanged(text) <= each * len(rows)
        assert not any(f"[{a},{b}]" in text for a, b in ((len(rows), 8), (8, len(rows))))
        print(f"winsorized means, {name}: holds")


def repeated() -> None:
    """A loop of the user's own: what a step returns lies on the mesh, and goes into the next one."""
    data = user_data(USERS)
    oracle = gradients.clipped_gradient_sum(gradients.user_gradient(OBJECTIVE), 0.5)
    step = jax.jit(lambda key, w, data: w - oracle(key, w, data).gradient / USERS)
    plain, on_mesh = jnp.zeros(DIM), jnp.zeros(DIM)
    placed = spread(data, "Explicit", 4)
    for t in range(3):
        plain = step(jax.random.key(t), plain, data)
        on_mesh = step(jax.random.key(t), on_mesh, placed)
    np.testing.assert_allclose(np.asarray(on_mesh), np.asarray(plain), rtol=1e-5, atol=1e-7)
    print("parameters of a step before: holds")


if __name__ == "__main__":
    assert len(jax.devices()) == 4
    by_kind = [
        functools.partial(claim, k) for k in KINDS for claim in (clipped, chunked, sampled, noise)
    ]
    own = (sums, *by_kind, scaled, private_step, winsorized, repeated)
    for claim in (*own, *by_hand.CLAIMS, *aggregates.CLAIMS):
        try:
            claim()
        except Exception:
            # What it would have printed is missing; the other claims are tested all the same.
            traceback.print_exc()
