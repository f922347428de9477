"""The state of a run in one file, which is whole or not there, and which other runs refuse.

The file holds the key of the noise, and with it everything that noise hides: it is written for its owner
alone. What it says of the run, its ledger included, is sealed: whoever edits the file without the key and the
data of the run is found out (HMAC-SHA256).
"""

import hashlib
import hmac
import os
import zipfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_FORM = 1


def save(path: str, known_by: bytes, step: int, tree: Any) -> None:
    """Replaces the file.

    Args:
        path: of the file; another beside it is written first.
        known_by: what tells this run from others.
        step: how many steps have been made.
        tree: of arrays and typed keys.
    """
    leaves = [jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(tree)]
    arrays = [np.asarray(leaf) for leaf in leaves]
    part = path + ".part"
    number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(number, "wb") as file:
        os.fchmod(number, 0o600)  # also where the file was there before
        name, seal = hashlib.sha256(known_by).digest(), _seal(known_by, step, arrays)
        words = (np.frombuffer(word, np.uint8) for word in (name, seal))
        np.savez(file, np.int64(_FORM), *words, np.int64(step), *arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def loaded(path: str, known_by: bytes, like: Any) -> tuple[int, Any]:
    """Steps made and the tree of the file; 0 and ``like`` where there is none.

    Args:
        path: of the file.
        known_by: as it was saved.
        like: a tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: the file is none of a run, is damaged or edited, or is that of another run.
    """
    if not os.path.exists(path):
        return 0, like
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as kept:
            form, found, seal, step, *arrays = (kept[name] for name in kept.files)
            form, step = int(form), int(step)
    except (ValueError, TypeError, OSError, KeyError, EOFError, zipfile.BadZipFile) as broken:
        raise ValueError(f"checkpoint must be the file of a run, got {path}: {broken}") from None
    if form != _FORM or found.tobytes() != hashlib.sha256(known_by).digest():
        raise ValueError(
            "checkpoint must be the file of this run, with the same plan, key, objective, start and "
            f"data, got that of another in {path}"
        )
    if not hmac.compare_digest(seal.tobytes(), _seal(known_by, step, arrays)):
        raise ValueError(f"checkpoint must be as it was written, got an edited one in {path}")
    leaves, structure = jax.tree.flatten(like)
    if len(arrays) != len(leaves):
        raise ValueError(f"checkpoint must hold {len(leaves)} arrays, got {len(arrays)} in {path}")
    trees = []
    for array, leaf in zip(arrays, leaves, strict=True):
        own = jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)
        if (array.shape, array.dtype) != (own.shape, own.dtype):
            raise ValueError(
                f"checkpoint must hold {own.dtype}{own.shape}, got {array.dtype}{array.shape}"
            )
        made = jnp.asarray(array)
        trees.append(
            jax.random.wrap_key_data(made, impl=jax.random.key_impl(leaf))
            if _is_key(leaf)
            else made
        )
    return step, jax.tree.unflatten(structure, trees)


def _seal(known_by: bytes, step: int, arrays: Sequence[np.ndarray]) -> bytes:
    seal = hmac.new(known_by, str(step).encode(), hashlib.sha256)
    for array in arrays:
        seal.update(f" {array.dtype}{array.shape} ".encode() + array.tobytes())
    return seal.digest()


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
