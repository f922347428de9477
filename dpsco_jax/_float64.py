"""Float64 as IEEE 754 has it, on which some proofs rest, and which no TPU has.

A TPU makes a float64 of two float32, with the range of float32 and fewer bits. A sum on a grid is not exact
there, and a rounding is larger than what was charged for it. A program that needs float64 refuses a TPU when
it is lowered for one, by whatever way: what is the default backend of the process that lowers says little.
"""

from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["exact", "require_x64"]


def require_x64(name: str) -> None:
    """``ValueError`` unless float64 is switched on, for what the name says.

    Args:
        name: of what needs it, for the message.
    """
    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise ValueError(
            f"jax_enable_x64 must be True for {name}, which is exact up to roundings of float64, got "
            "False. Call jax.config.update('jax_enable_x64', True), or run under jax.enable_x64(True)"
        )


def exact(name: str, tree: Any) -> Any:
    """The arrays, of which a program that is lowered for a TPU raises ``NotImplementedError``.

    Any other program is the one that it would be without.

    Args:
        name: of what needs float64, for the message.
        tree: what the result depends on: an array that nothing needs is left out of a program, and asks
            nothing of it.
    """
    return jax.tree.map(lambda leaf: _exact_p.bind(leaf, name=name), tree)


def _refuse(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"{name} must run on a CPU or a GPU: its proof counts roundings of IEEE float64, which a TPU makes of"
        " pairs of float32. Call it under jax.default_device(jax.devices('cpu')[0]), with all arrays there"
    )


def _at_once(x: jax.Array, *, name: str) -> jax.Array:
    if any(device.platform == "tpu" for device in x.devices()):
        raise _refuse(name)
    return x


def _lowered_for_a_tpu(context: Any, x: Any, *, name: str) -> Any:
    raise _refuse(name)


_exact_p = Primitive("exact_float64")
_exact_p.def_impl(_at_once)
_exact_p.def_abstract_eval(lambda x, *, name: x)
ad.defjvp(_exact_p, lambda tangent, x, *, name: tangent)
batching.defvectorized(_exact_p)
mlir.register_lowering(_exact_p, lambda context, x, *, name: [x])
mlir.register_lowering(_exact_p, _lowered_for_a_tpu, platform="tpu")
