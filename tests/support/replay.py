"""Replay: the same key on two data sets, with every release frozen.

Under ``frozen_releases`` the additive mechanisms return their noise alone: what is released no longer
depends on the statistic. A private algorithm looks at its data only through its releases, so it must now
compute exactly the same on any two data sets: parameters, state, ledger, counters. Whatever differs is a
path around the mechanism: a noise scale, divisor, shape, branch, key or step size that depends on data.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.mechanisms import additive
from tests.support.apart import traced_apart


@contextlib.contextmanager
def frozen_releases() -> Iterator[None]:
    """While active, ``additive.gaussian`` and ``additive.laplace`` add their noise to zero."""

    def freeze(mechanism: Callable[..., Any]) -> Callable[..., Any]:
        def frozen(key: jax.Array, tree: Any, *args: Any, **kwargs: Any) -> Any:
            return mechanism(key, jax.tree.map(jnp.zeros_like, tree), *args, **kwargs)

        return frozen

    # Functions compiled before must not keep the unfrozen mechanism, nor those compiled here the frozen.
    with (
        traced_apart(),
        mock.patch.object(additive, "gaussian", freeze(additive.gaussian)),
        mock.patch.object(additive, "laplace", freeze(additive.laplace)),
    ):
        yield


def assert_no_leak(run: Callable[[Any], Any], data: Any, neighbour: Any) -> None:
    """Fail unless ``run`` gives bit-identical results on both data sets with all releases frozen.

    Args:
        run: the algorithm as a function of the data alone (key and settings closed over). Leave out of
            its result what is documented as not private.
        data: a data set.
        neighbour: another one, as different as the sizes allow.
    """
    with frozen_releases():
        first, second = run(data), run(neighbour)
    paths = jax.tree_util.tree_leaves_with_path(first)
    others = jax.tree.leaves(second)
    assert len(paths) == len(others), "the structure of the result depends on the data"
    for (path, a), b in zip(paths, others, strict=True):
        np.testing.assert_array_equal(
            _plain(a), _plain(b), err_msg=f"data reach {jax.tree_util.keystr(path)}"
        )


def _plain(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
