"""One compiled program for many cells: vmapped, sharded over devices, sized to fit memory.

Every call of the compiled program runs one chunk of a fixed number of cells; the last chunk is filled up with
copies, so nothing is compiled twice. With several devices each runs its own part of the chunk
(``shard_map``), without communication: the slowest cell of one device does not hold up another.

Guarantee: a cell draws the same random numbers in every chunk, on every device (its key comes from its
identity); its results agree up to the rounding with which a compiler may order sums for another size.

Cost: one compilation; one more for each time that a chunk turns out not to fit in memory.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpsco_jax import _parts
from dpsco_jax._checks import (
    require,
    require_count,
    require_instance,
    require_instances,
    require_real,
)
from dpsco_jax.sweeps.cells import key_words
from dpsco_jax.sweeps.experiment import Program


class Chunked(NamedTuple):
    """A compiled program.

    Attributes:
        size: number of cells that one call runs.
        names: of the results.
        call: ``call(key_words, inputs)`` with stacked arguments of that length, to a dict of arrays.
    """

    size: int
    names: tuple[str, ...]
    call: Callable[[np.ndarray, Any], dict[str, jax.Array]]


def shape_of(inputs: Any) -> tuple:
    """What two cells must have in common to share a program. Hashable."""
    leaves, structure = jax.tree.flatten(inputs)
    return structure, tuple((np.shape(x), np.asarray(x).dtype) for x in leaves)


def compile_chunk(
    program: Program,
    example: Any,
    cells_per_chunk: int,
    memory_limit: float,
    devices: Sequence[jax.Device],
) -> Chunked:
    """Compiles a program for chunks of one shape.

    Args:
        program: as built by the experiment.
        example: the inputs of any cell of the batch.
        cells_per_chunk: how many cells a chunk should have; rounded up to a multiple of the devices.
        memory_limit: bytes of temporary memory and arguments allowed on each device.
        devices: where to run; the cells of a chunk are split evenly among them.

    Raises:
        MemoryError: not even one cell for each device fits.
        ValueError: the program does not return a dict of scalars.
    """
    require_instance("program", program, Program)
    cells_per_chunk = require_count("cells_per_chunk", cells_per_chunk)
    memory_limit = require_real("memory_limit", memory_limit, 0.0)
    require_instances("devices", devices, jax.Device)
    require(bool(devices), "devices", devices, "at least one device")
    mesh = Mesh(np.array(devices), ("cells",))
    split, whole = NamedSharding(mesh, PartitionSpec("cells")), NamedSharding(mesh, PartitionSpec())
    shared = jax.device_put(program.shared, whole)
    run = jax.jit(_many(program, mesh), in_shardings=(whole, split, split))
    each = math.ceil(cells_per_chunk / len(devices))
    while True:
        size = each * len(devices)
        compiled = run.lower(
            shared, key_words(["0" * 16] * size), stack([example] * size)
        ).compile()
        needed = _bytes_needed(compiled)
        if needed <= memory_limit:
            break
        if each == 1:
            raise MemoryError(
                f"one cell needs {needed / 2**30:.2f} GiB on its device, the limit is "
                f"{memory_limit / 2**30:.2f} GiB"
            )
        each = max(1, min(each - 1, int(each * memory_limit / needed)))
    return Chunked(size, tuple(compiled.out_info), partial(compiled, shared))


def stack(inputs: Sequence[Any]) -> Any:
    """The inputs of several cells as one pytree, a leading axis of cells, in JAX's precision.

    Args:
        inputs: pytrees of the same structure and shapes, at least one.

    Raises:
        ValueError: there is an integer that JAX's precision does not have.
    """
    require_instances("inputs", inputs, object)
    require(bool(inputs), "inputs", inputs, "the inputs of at least one cell")

    def join(*leaves: Any) -> np.ndarray:
        joined = np.stack([np.asarray(leaf) for leaf in leaves])
        cast = joined.astype(jax.dtypes.canonicalize_dtype(joined.dtype))
        if joined.dtype.kind in "iu" and not np.array_equal(cast, joined):
            lost = int(joined[cast != joined].flat[0])
            kept = np.iinfo(cast.dtype)
            require(False, "inputs", lost, f"integers from {kept.min} to {kept.max}")
        return cast

    return jax.tree.map(join, *inputs)


def _many(program: Program, mesh: Mesh) -> Callable[..., dict[str, jax.Array]]:
    def one(shared: Any, words: jax.Array, inputs: Any) -> dict[str, jax.Array]:
        # Of a kind whose draws are those of the cell alone, whatever the default is.
        key = jax.random.key(0, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])
        outputs = program.run(shared, key, inputs)
        if not isinstance(outputs, dict) or not all(map(_is_real_scalar, outputs.values())):
            raise ValueError(f"a program must return a dict of scalars, real ones, got {outputs}")
        return outputs

    cells = PartitionSpec("cells")
    # Every cell is a run of its own, whole on its device, with its own key.
    return _parts.shard_map(
        jax.vmap(one, in_axes=(None, 0, 0)), mesh, (PartitionSpec(), cells, cells), cells
    )


def _is_real_scalar(value: Any) -> bool:
    kind = value.dtype if hasattr(value, "dtype") else jnp.result_type(value)
    real = any(jnp.issubdtype(kind, of) for of in (jnp.integer, jnp.floating, jnp.bool_))
    return jnp.ndim(value) == 0 and real


def _bytes_needed(compiled: Any) -> int:
    """What the compiler says that a call holds on each device; 0 where it does not say."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    return analysis.temp_size_in_bytes + analysis.argument_size_in_bytes
