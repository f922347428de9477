"""Users for the tests of linear models: dense or one-hot rows, users without items, columns out of range."""

import jax
import numpy as np

from dpsco_jax.oracles import linear
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData

PREPARE = jax.jit(linear.prepare, static_argnums=(0, 2))
USERS, DIM = 7, 12


def labelled(kind, items):
    """USERS users with up to so many items and labels of 0 and 1; the first has none, the second all."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (USERS, items)).astype(np.float32)
    if kind == "dense":
        features = rng.normal(size=(USERS, items, DIM)).astype(np.float32)
    else:
        # Out of range on both sides, and repeated within a row.
        columns = rng.integers(-2, DIM + 2, (USERS, items, 3)).astype(np.int32)
        columns[0, 0] = [4, 4, 5]
        features = OneHot(columns)
    counts = rng.integers(0, items + 1, USERS)
    counts[:2] = 0, items
    return UserData(Example(features, labels), np.arange(items) < counts[:, None])
