"""Settings shared by all tests: checked shapes, checked key use, one compilation cache per run."""

import os

# Two worker processes on two cores: more threads than cores only wait for each other.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook

with install_import_hook("dpsco_jax", "beartype.beartype"):
    import dpsco_jax  # noqa: F401

import jax

jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_enable_x64", False)
