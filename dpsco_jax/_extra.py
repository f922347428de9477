"""Imports of what an extra of the package brings: where it is missing, the message says what to install."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports: a package that is missing becomes an ``ImportError`` that names the extra.

    Args:
        extra: of ``dpsco-jax``, as in ``pip install 'dpsco-jax[sweeps]'``.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{missing.name} is not installed: pip install 'dpsco-jax[{extra}]'", name=missing.name
        ) from missing


def there(*packages: str) -> bool:
    """Whether all of these packages are installed; none is imported."""
    try:
        return all(importlib.util.find_spec(package) is not None for package in packages)
    except ModuleNotFoundError:
        return False
