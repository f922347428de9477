"""How many arithmetic operations a program carries out, read from what JAX traces of it.

What it computes: operations of every equation times the trips of the loops around it: one for each number
that an elementwise operation makes, two for each product of a contraction, one for each number that is
reduced, n·log₂(n) for a sort. ``scan`` knows its trips. A loop of unknown length counts as often as the
caller says: once for pairs of blocks of users where there is one block. Of two branches the longer counts.

The compiler's own count (``compiled.cost_analysis()``) sees the body of every loop once; where there is none
the two agree (``tests/solvers/test_work.py``).
"""

import math
from typing import Any

import jax
import jax.extend
import numpy as np

_FREE = frozenset(
    [
        *("reshape", "broadcast_in_dim", "transpose", "squeeze", "expand_dims", "slice", "split"),
        *("dynamic_slice", "dynamic_update_slice", "concatenate", "pad", "gather", "iota", "rev"),
        *("copy", "copy_p", "optimization_barrier", "bitcast_convert_type", "random_wrap"),
        *("random_unwrap", "random_clone", "stop_gradient", "device_put", "sharding_constraint"),
    ]
)
_REDUCTIONS = frozenset(
    [
        *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
        *("argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin"),
    ]
)
_OPAQUE = frozenset(["scatter-add", "scatter", "reduce", "sort"])
_CUSTOM = frozenset(["custom_jvp_call", "custom_vjp_call"])
_RANDOM = {"random_bits": 1, "threefry2x32": 1, "random_split": 2, "random_fold_in": 2}
# Of one word: half of 20 rounds of an addition, a rotation and an exclusive or on two words.
_THREEFRY = 44
_CUBES = {"cholesky": 1 / 3, "eigh": 9.0, "svd": 20.0, "lu": 2 / 3, "householder_product": 4 / 3}


def operations(function: Any, *arguments: Any, loops: float = 1.0) -> float:
    """Operations of one call; ``loops`` is how often loops of unknown length run."""
    return _of(jax.make_jaxpr(function)(*arguments).jaxpr, loops)


def compiled_operations(function: Any, *arguments: Any) -> float:
    """What the compiler counts of one call: bodies of loops once, functions such as logarithms not at all."""
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return float(analysis["flops"])


def _of(jaxpr: Any, loops: float) -> float:
    return math.fsum(_equation(equation, loops) for equation in jaxpr.eqns)


def _equation(equation: Any, loops: float) -> float:
    name, given = equation.primitive.name, equation.params
    if name == "scan":
        return given["length"] * _of(given["jaxpr"].jaxpr, loops)
    if name == "while":
        return loops * sum(_of(given[name].jaxpr, loops) for name in ("body_jaxpr", "cond_jaxpr"))
    if name == "cond":
        return max(_of(branch.jaxpr, loops) for branch in given["branches"])
    sizes = [_size(v) for v in equation.invars], [_size(v) for v in equation.outvars]
    if name in _RANDOM:
        return float(_THREEFRY * _RANDOM[name] * max(1, sum(sizes[1])))
    inner = [found for value in given.values() for found in _jaxprs(value)]
    if inner and name in _CUSTOM:
        return _of(inner[0], loops)
    if inner and name not in _OPAQUE:
        return math.fsum(_of(one, loops) for one in inner)
    if name in _FREE:
        return 0.0
    if name == "dot_general":
        (left, _), _ = given["dimension_numbers"]
        contracted = math.prod(equation.invars[0].aval.shape[axis] for axis in left)
        return 2.0 * sizes[1][0] * contracted
    if name in _REDUCTIONS or name == "reduce":
        return float(max(sizes[0]))
    if name == "sort":
        length = equation.invars[0].aval.shape[given["dimension"]]
        return float(max(sizes[0]) * max(1.0, math.log2(max(length, 2))))
    if name.startswith("scatter"):
        return float(sizes[0][-1])
    if name == "triangular_solve":
        return float(sizes[0][0] * equation.invars[1].aval.shape[-1])
    if name in _CUBES:
        shape = equation.invars[0].aval.shape
        return _CUBES[name] * float(np.prod(shape[:-2])) * min(shape[-2:]) ** 2 * max(shape[-2:])
    if name == "erf_inv":
        return 30.0 * sizes[1][0]
    return float(max(sizes[1], default=0))


def _jaxprs(value: Any) -> list[Any]:
    if isinstance(value, jax.extend.core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, jax.extend.core.Jaxpr):
        return [value]
    if isinstance(value, tuple | list):
        return [found for one in value for found in _jaxprs(one)]
    return []


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))
