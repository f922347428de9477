"""META over users who are on disk: the loop of ``loop.run`` on the host, one compiled step after the other.

From the same keys the oracle's sum over users comes in blocks (``oracles.streamed``), and one program
finishes it, makes it private and moves the point. A file that changes, or a read that fails, ends the run
before the noise of that step is drawn. A run that goes on from a checkpoint makes the steps that were not
kept with the same keys, and so the same sample and noise: a step which is made twice releases nothing new. It
is refused where files, plan, key or start are others. A step costs one dispatch for each block and two more.

A checkpoint is one file, which is whole or not there. It holds the key of the noise, and with it everything
that noise hides: it is written for its owner alone. What it says of the run, its ledger included, is sealed:
whoever edits the file without the key and the data of the run is found out (HMAC-SHA256).
"""

import contextvars
import hashlib
import hmac
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax import _checks, _counts
from dpsco_jax.oracles import streamed
from dpsco_jax.oracles._summed import SumOracle
from dpsco_jax.problems.stored import StoredUsers

_FORM = 1


class Watch:
    """What is kept and told of one run; for one loop.

    Attributes:
        checkpoint: file of the state after the last step; ``None`` for none.
        known_by: what tells this run from others.
        progress: ``progress(steps made, num_steps)`` after every step; ``None`` for none.
    """

    def __init__(
        self,
        checkpoint: str | None,
        known_by: bytes,
        progress: Callable[[int, int], Any] | None,
    ) -> None:
        self.checkpoint, self.known_by, self.progress = checkpoint, known_by, progress
        self.is_used = False


WATCH: contextvars.ContextVar[Watch | None] = contextvars.ContextVar("watch", default=None)


def run(
    key: jax.Array,
    oracle: Any,
    optimizer: optax.GradientTransformation,
    params: Any,
    data: StoredUsers,
    num_steps: int | jax.Array,
    trace: Callable[[Any, Any, Any], Any] | None,
) -> tuple[Any, Any, Any, Any]:
    """The fields of ``loop.Run``, for users on disk; not to be traced."""
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((key, params)))
    _checks.require(
        not traced, "data", data, "UserData inside of jit, vmap or scan: files are not traced"
    )
    _checks.require(
        not isinstance(num_steps, jax.Array), "data", data, "UserData where num_steps is an array"
    )
    num_steps = int(num_steps)
    good = isinstance(oracle, SumOracle)
    _checks.require(good, "data", data, "UserData for a mean that is no sum of clipped gradients")
    optimizer = optax.with_extra_args_support(optimizer)
    sums = streamed.Sums(oracle, data)

    @jax.jit
    def step(t: Any, key: Any, carry: Any, total: Any) -> Any:
        params, opt_state, count = carry
        estimate = sums.finish(jax.random.fold_in(key, t), params, total)
        updates, opt_state = optimizer.update(
            estimate.gradient, opt_state, params, **estimate.extra_args
        )
        params = optax.apply_updates(params, updates)
        count = _counts.add(count, estimate.num_gradients)
        seen = None if trace is None else trace(params, opt_state, estimate)
        return (params, opt_state, count), seen

    of_step = jax.jit(jax.random.fold_in)
    carry: Any = (params, optimizer.init(params), _counts.count(0))
    watch = WATCH.get()
    first, seen = 0, []
    if watch is not None:
        _checks.require(not watch.is_used, "solver", "several loops", "of one loop over steps")
        watch.is_used = True
        if watch.checkpoint is not None:
            _checks.require(trace is None, "trace", trace, "None with a checkpoint")
            first, carry = _loaded(watch.checkpoint, watch.known_by, carry)
    keys = (of_step(key, t) for t in range(first, num_steps))
    with sums.totals(keys, params) as total:
        for t in range(first, num_steps):
            found = total(of_step(key, t), carry[0])
            carry, now = step(jnp.int32(t), key, carry, found)
            seen.append(now)
            if watch is not None and watch.checkpoint is not None:
                _save(watch.checkpoint, watch.known_by, t + 1, carry)
            if watch is not None and watch.progress is not None:
                watch.progress(t + 1, num_steps)
    stacked = None if trace is None else jax.tree.map(lambda *x: jnp.stack(x), *seen)
    return (*carry, stacked)


def _save(path: str, known_by: bytes, step: int, tree: Any) -> None:
    """Replaces the file by the steps made and a tree of arrays and typed keys; another is written first."""
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


def _loaded(path: str, known_by: bytes, like: Any) -> tuple[int, Any]:
    """Steps made and the tree of the file; 0 and ``like``, of the same structure, where there is none.

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
