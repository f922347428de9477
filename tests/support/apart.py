"""Programs traced apart: what is patched reaches them, and nothing that is kept from before or for later."""

import contextlib
import itertools
from collections.abc import Iterator

import jax

_NUMBER = itertools.count(1)
_TRACED_WITH = jax.make_user_context(0)


@contextlib.contextmanager
def traced_apart() -> Iterator[None]:
    """While active, nothing that JAX has traced or compiled outside is used, and nothing is kept for it.

    As between two calls of ``jax.clear_caches``, but that all other tests of the process keep their programs.
    """
    with _TRACED_WITH(next(_NUMBER)):
        yield
