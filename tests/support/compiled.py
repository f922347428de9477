"""How single programs of the tests are compiled, where the cheap way of ``make test`` will not do."""

OPTIMIZED = {"xla_backend_optimization_level": 1}
"""For ``jax.jit(..., compiler_options=OPTIMIZED)``: runs that take longer than compilation, and gradients of
subsampled Rényi curves.

At level 0 XLA for processors (JAX 0.10.2) makes NaN of these gradients; they are finite at levels 1 and 3,
and operation by operation.
"""
