"""One MLIR context for many programs of the tests, where JAX makes one for each.

Most programs of the suite are single operations on small arrays, and half of what it takes to lower one of
them is the making and the freeing of its context. Nothing about a program depends on the context: it
holds types, attributes and locations, each once.
"""

import threading
from collections.abc import Callable
from typing import Any

from jax._src.interpreters import mlir  # has no public name

PROGRAMS = 256
"""So many share a context: it keeps the constants of them all."""


def share_contexts() -> None:
    """From now on the programs that a thread lowers share their contexts."""
    mlir.make_ir_context = shared(mlir.make_ir_context)


def shared(make: Callable[[], Any]) -> Callable[[], Any]:
    """``make``, whose every result is given out ``PROGRAMS`` times, to one thread alone."""
    kept = threading.local()

    def given() -> Any:
        if getattr(kept, "left", 0) == 0:
            kept.context, kept.left = make(), PROGRAMS
        kept.left -= 1
        return kept.context

    return given
