"""What a jitted function would do on an accelerator that is not there: bytes, kernels, scratch, collectives.

XLA compiles for a described chip on a machine that has none. The figures depend on the program and on the
versions alone, so two commits, or ours and a peer's, compare to the byte on any machine. What is bound by
arithmetic, as random bits and large products are, is not seen.

Each chip wants an environment with its own packages (``make bench-aot`` makes them): ``jax-cuda12-plugin``,
``jax-cuda12-pjrt`` and ``nvidia-cuda-nvcc-cu12`` for the H100, ``jax[tpu]`` for the TPU.
"""

import collections
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BANDWIDTH = {"h100": 3.35e12, "v5e": 0.82e12}
"""Bytes a second through the memory of a chip."""

KERNEL_SECONDS = 6e-6
"""What a kernel takes beside its bytes, as measured on an H100."""

_IDLE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "while", "conditional", "call", "opt-barrier"),
}
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


class Figures(NamedTuple):
    """What a compiled program does.

    Attributes:
        megabytes: read from and written to memory; a loop's body is counted once, of a branch both sides.
        kernels: launched outside of loops; what a TPU computes on its scalar unit is none.
        in_loops: launched in one turn of all loops.
        megabytes_in_loops: those of one turn of all loops.
        scratch: megabytes of temporaries.
        collectives: how many of each kind.
        seconds: of processor time, to trace and compile.
    """

    megabytes: float
    kernels: int
    in_loops: int
    megabytes_in_loops: float
    scratch: float
    collectives: dict[str, int]
    seconds: float

    def microseconds(self, chip: str) -> float:
        """What the model says: bytes over the bandwidth and a constant for a kernel; loops taken once."""
        launched = self.kernels + self.in_loops
        return 1e12 * self.megabytes / BANDWIDTH[chip] + 1e6 * KERNEL_SECONDS * launched


def devices(chip: str) -> Any:
    """Four H100s of one host, or four chips of a TPU v5e in a square."""
    if chip == "h100":
        target = Path(__file__).with_name("h100.txt").read_text()
        found = topologies.get_topology_desc("", "cuda", topology="1x1x4", target_config=target)
    else:
        found = topologies.get_topology_desc("v5e:2x2", "tpu")
    return found.devices


def compiled(function: Callable[..., Any], *arguments: Any, chip: str, parts: int = 1) -> Figures:
    """The figures of a function of arrays.

    Args:
        function: to be jitted.
        arguments: pytrees of arrays or of their shapes; typed keys among them.
        chip: ``"h100"`` or ``"v5e"``.
        parts: devices over which the first axis of the last argument is cut; the others are everywhere.
    """
    mesh = Mesh(np.array(devices(chip)[:parts]), ("users",))
    where = [NamedSharding(mesh, PartitionSpec())] * len(arguments)
    if parts > 1:
        where[-1] = NamedSharding(mesh, PartitionSpec("users"))

    def shaped(leaf: Any, sharding: NamedSharding) -> Any:
        key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        leaf = jax.eval_shape(jax.random.key_data, leaf) if key else leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    leaves, structure = jax.tree.flatten(arguments)
    of_argument = [where[i] for i, x in enumerate(arguments) for _ in jax.tree.leaves(x)]
    keys = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]

    def of_leaves(*given: Any) -> Any:
        made = [
            jax.random.wrap_key_data(x) if key else x for x, key in zip(given, keys, strict=True)
        ]
        found = function(*jax.tree.unflatten(structure, made))
        typed = jax.dtypes.prng_key
        return jax.tree.map(
            lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, typed) else x, found
        )

    start = time.process_time()
    program = jax.jit(of_leaves).lower(*map(shaped, leaves, of_argument)).compile()
    return _figures(program, time.process_time() - start, chip)


def _figures(program: Any, seconds: float, chip: str) -> Figures:
    text = program.as_text()
    kernels, in_loops, collectives, loops, unread = _launched(text)
    if chip != "h100":
        unread.clear()  # of a fusion for a TPU XLA counts the rows that it gathers
    turns = (xla_client.hlo.hlo_module_from_text(_turn(text, body)) for body in loops)
    whole = program.runtime_executable().hlo_modules()[0]
    return Figures(
        _megabytes(whole) - (unread["once"] + unread["loop"]) / 1e6,
        kernels,
        in_loops,
        sum(map(_megabytes, turns)) - unread["loop"] / 1e6,
        program.memory_analysis().temp_size_in_bytes / 1e6,
        collectives,
        seconds,
    )


def _megabytes(module: Any) -> float:
    cost = xla_client._xla.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
    return float(cost["bytes accessed"]) / 1e6


def _turn(text: str, body: str) -> str:
    """The program of the body of a loop alone."""
    rest = re.sub(r"^ENTRY .*?^\}\n", "", text, flags=re.M | re.S)
    rest = re.sub(rf"^{re.escape(body)} ", f"ENTRY {body} ", rest, flags=re.M)
    return re.sub(r"\AHloModule [^\n]*", "HloModule turn", rest)


def _unread(fused: str) -> int:
    """Bytes of a fusion's parameters of which only some rows are gathered: XLA counts all, for a GPU."""
    unread = 0
    for name, shape in re.findall(r"(%[\w.\-]+) = (\S+) parameter\(", fused):
        takers = re.findall(rf" = (\S+) ([\w\-]+)\((.*, )?{re.escape(name)}[,)]", fused)
        if takers and all(kind == "gather" and not before for _, kind, before in takers):
            unread += max(_size(shape) - sum(_size(rows) for rows, _, _ in takers), 0)
    return unread


def _size(shape: str) -> int:
    """Bytes of an array, of its shape as a program prints it."""
    found = re.match(r"[a-z]+(\d*)\w*\[([\d,]*)\]", shape)
    assert found is not None, shape
    bits, lengths = found.groups()
    return int(bits or 8) * math.prod(int(n) for n in lengths.split(",") if n) // 8


def _launched(
    text: str,
) -> tuple[int, int, dict[str, int], list[str], collections.Counter[str]]:
    """Kernels outside and inside of loops, collectives anywhere, bodies of loops in no other loop, and bytes.

    The bytes, of what is ``"once"`` and of what is in a ``"loop"``, are counted by XLA and never read.
    """
    bodies = dict(re.findall(r"^(?:ENTRY )?(%[\w.\-]+) .*?\{\n(.*?)^\}", text, re.M | re.S))
    entry = re.search(r"^ENTRY (%[\w.\-]+)", text, re.M)
    assert entry is not None
    counts: collections.Counter[str] = collections.Counter()
    collectives: collections.Counter[str] = collections.Counter()
    loops: list[str] = []
    unread: collections.Counter[str] = collections.Counter()

    def count(name: str, where: str) -> None:
        for line in bodies[name].splitlines():
            found = re.match(r"\s+(?:ROOT )?%[\w.\-]+ = (.*?)\s([\w\-]+)\(", line)
            if found is None:
                continue
            shape, kind = found.groups()
            collectives.update(part for part in _COLLECTIVES if kind in (part, f"{part}-start"))
            inner = [
                called
                for called in re.findall(r"%[\w.\-]+", line[found.end() :])
                if called in bodies
                and f"calls={called}" not in line
                and f"to_apply={called}" not in line
            ]
            if kind == "while" and where == "once":
                loops.extend(re.findall(r"body=(%[\w.\-]+)", line))
            if kind in ("while", "conditional", "call"):
                of_call = re.findall(r"to_apply=(%[\w.\-]+)", line) if kind == "call" else inner
                for called in of_call:
                    count(called, "loop" if kind == "while" else where)
            # S(6) is the memory of a TPU's scalar unit; a copy of a pair starts and ends.
            elif kind not in _IDLE and not kind.endswith("-done") and "S(6)" not in shape:
                counts[where] += 1
                for fused in re.findall(r"calls=(%[\w.\-]+)", line):
                    unread[where] += _unread(bodies[fused])

    count(entry.group(1), "once")
    return counts["once"], counts["loop"], dict(collectives), loops, unread
