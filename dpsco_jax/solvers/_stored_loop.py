"""META over users who are on disk: the loop of ``loop.run`` on the host, one compiled step after the other.

From the same keys the oracle's sum over users comes in blocks (``oracles.streamed``), and one program
finishes it, makes it private and moves the point. A file that changes, or a read that fails, ends the run
before the noise of that step is drawn. A run that goes on from a checkpoint makes the steps that were not
kept with the same keys, and so the same sample and noise: a step which is made twice releases nothing new. It
is refused where files, plan, key or start are others. A step costs one dispatch for each block and two more.
"""

import contextvars
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks, _counts
from dpsco_jax.oracles import streamed
from dpsco_jax.oracles._summed import SumOracle
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.solvers import _checkpoints


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
            first, carry = _checkpoints.loaded(watch.checkpoint, watch.known_by, carry)
    keys = (of_step(key, t) for t in range(first, num_steps))
    with sums.totals(keys, params) as total:
        for t in range(first, num_steps):
            found = total(of_step(key, t), carry[0])
            carry, now = step(jnp.int32(t), key, carry, found)
            seen.append(now)
            if watch is not None and watch.checkpoint is not None:
                _checkpoints.save(watch.checkpoint, watch.known_by, t + 1, carry)
            if watch is not None and watch.progress is not None:
                watch.progress(t + 1, num_steps)
    stacked = None if trace is None else jax.tree.map(lambda *x: jnp.stack(x), *seen)
    return (*carry, stacked)
