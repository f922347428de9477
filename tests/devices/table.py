"""The table of what works on users who are spread over devices: ``python -m tests.devices.table``.

Every entry runs with users on a mesh of one and of four devices, with explicit and with automatic axes, and
is compared with the run on no mesh. ``ok``: the same result, and what devices exchange is shorter than the
list of users. ``passes N``: it is longer, but goes from device to device: rows in a ring, or of a slice, or
coordinates of rows that each device takes.
``gathers N``: the compiled program exchanges arrays of up to N numbers otherwise.
"""

import os
import re
import subprocess
import sys
from typing import Any

import numpy as np

KINDS = ("Explicit", "Auto")
GATHER = "all-gather|all-reduce|reduce-scatter"
# What a device is sent in place of what it sends is no more than it held.
_ANY = f"{GATHER}|all-to-all|collective-permute"


def environment(devices: int = 4) -> dict[str, str]:
    """The environment of a process with so many devices on a CPU."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def exchanged(program: str, operations: str = _ANY) -> int:
    """The most numbers that a collective operation of a compiled program returns, of these kinds."""
    sizes = [0]
    for found in re.finditer(rf"= (.*?) (?:{operations})(?:-start)?\(", program):
        for shape in re.findall(r"\w+\[([\d,]*)\]", found.group(1)):
            sizes.append(int(np.prod([int(n) for n in shape.split(",") if n], dtype=np.int64)))
    return max(sizes)


def spread(tree: Any, kind: str, devices: int) -> Any:
    """The arrays on a mesh of so many devices, the leading axis cut."""
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh(
        (devices,),
        ("users",),
        axis_types=(getattr(AxisType, kind),),
        devices=jax.devices()[:devices],
    )
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec("users")))


def found(
    run: Any, key: Any, params: Any, data: Any, kind: str, devices: int, expected: Any
) -> str:
    """What the table says of one entry on one mesh."""
    import jax

    users = len(jax.tree.leaves(data)[0])
    try:
        placed = spread(data, kind, devices)
        compiled = jax.jit(run).lower(key, params, placed).compile()
        result = compiled(key, params, placed)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            continue
        if not np.allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5, equal_nan=True):
            return "differs"
    program = compiled.as_text()
    size, gathered = exchanged(program), exchanged(program, GATHER)
    if devices == 1 or size < users:
        return "ok"
    return f"passes {size}" if gathered < users else f"gathers {gathered}"


def main(words: list[str]) -> None:
    """Prints the table of the entries whose names hold one of the words."""
    import jax
    import jax.numpy as jnp

    from tests.devices import entries as listed
    from tests.devices.solver_entries import solver_cases

    cases = [(e.name, e.run, e.data, jnp.full(listed.DIM, 0.1)) for e in listed.entries()]
    cases += solver_cases()
    print("| entry | " + " | ".join(f"{k}, {d}" for k in KINDS for d in (1, 4)) + " |")
    print("| --- " * 5 + "|")
    for name, run, data, params in cases:
        if words and not any(word in name for word in words):
            continue
        try:
            expected = jax.jit(run)(jax.random.key(0), params, data)
        except Exception as error:
            print(f"| {name} | on no mesh: {type(error).__name__} {error} |", flush=True)
            continue
        cells = [
            found(run, jax.random.key(0), params, data, kind, devices, expected)
            for kind in KINDS
            for devices in (1, 4)
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        # Hundreds of programs in one process would fill its memory.
        jax.clear_caches()


if __name__ == "__main__":
    if "--here" in sys.argv:
        main([word for word in sys.argv[1:] if word != "--here"])
    else:
        command = [sys.executable, "-m", "tests.devices.table", "--here", *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, env=environment(), check=False).returncode)
