"""How single programs of the tests are compiled, where the cheap way of ``make test`` will not do."""

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters.partial_eval import dce_jaxpr

OPTIMIZED = {"xla_backend_optimization_level": 1}
"""For ``jax.jit(..., compiler_options=OPTIMIZED)``: runs that take longer than compilation, and gradients of
subsampled Rényi curves.

At level 0 XLA for processors (JAX 0.10.2) makes NaN of these gradients; they are finite at levels 1 and 3,
and operation by operation.
"""


def pruned(run: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.jit(run)`` of arrays and numbers, without what its results do not need.

    XLA finds that by itself, after the whole was lowered and read; of a run of which only the charge is
    looked at that is most of the time. One program serves all arguments of the first call's shapes.
    """
    kept: list[Callable[..., Any]] = []

    def first(*given: Any) -> Callable[..., Any]:
        traced = jax.jit(run).trace(*given)
        whole, results = traced.jaxpr, jax.tree.structure(traced.out_info)
        needed, used = dce_jaxpr(whole.jaxpr, [True] * len(whole.jaxpr.outvars))

        @jax.jit
        def rest(leaves: list[Any]) -> Any:
            arguments = [leaf for leaf, use in zip(leaves, used, strict=True) if use]
            return results.unflatten(jax.core.eval_jaxpr(needed, whole.consts, *arguments))

        return rest

    def compiled(*given: Any) -> Any:
        if not kept:
            kept.append(first(*given))
        return kept[0](jax.tree.leaves(given))

    return compiled
