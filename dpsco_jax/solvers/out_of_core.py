"""Runs on users who are on disk, with a checkpoint after every step and word of how far they are.

What it computes: ``solver.solve`` with ``StoredUsers`` for its data. Without a checkpoint the solver can be
called by itself: ``sgd.solve(key, plan, objective, stored, start)``, not under ``jit``.

Source: none.

Formal guarantee: that of the solver in memory: samples, noise and ledger are drawn and kept by the same code
from the same keys (``oracles.streamed``, ``_stored_loop``). What is kept in the checkpoint is secret.

Cost: that of the solver; reads of all users of a step from disk; one write of the state after every step.

Example:
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import StoredUsers, synthetic
    >>> from dpsco_jax.solvers import out_of_core
    >>> from dpsco_jax.solvers.user_level import sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=5, batch_size=20)
    >>> stored = StoredUsers(jax.tree.map(np.asarray, made.data.items))  # or paths of files
    >>> arguments = (jax.random.key(1), plan, made.objective, stored, jnp.zeros(3))
    >>> out_of_core.solve(sgd, *arguments).params.shape
    (3,)
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers._stored_loop import WATCH, Watch
from dpsco_jax.solvers.solution import Solution

__all__ = ["solve"]


def solve(
    solver: Any,
    key: jax.Array,
    plan: Any,
    objective: Objective,
    data: StoredUsers,
    params: Any,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Solution:
    """Runs the plan of a solver on users who are on disk.

    Args:
        solver: a module with ``solve``, whose mean is ``means.Clipped``, as ``user_level.sgd``.
        key: a typed key.
        plan: of ``solver.plan``.
        objective: of the problem of the plan.
        data: with the planned number of users.
        params: the starting point.
        checkpoint: a file for the state after every step; where it is there already, the run goes on from
            it. It is as secret as key and data. The code of the loss, of which it knows nothing, has to be
            the same.
        progress: ``progress(steps made, num_steps)``, after every step.

    Raises:
        ValueError: an argument is refused by the solver, ``data`` are not on disk or change during the run,
            or the checkpoint is none, or that of another run.
    """
    _checks.require_callable("solver.solve", getattr(solver, "solve", None))
    _checks.require_key(key)
    _checks.require_instance("objective", objective, Objective)
    _checks.require_instance("data", data, StoredUsers)
    _checks.require_real_leaves("params", params)
    _checks.require_given(_checks.require_callable, progress=progress)
    if checkpoint is not None:
        kind = isinstance(checkpoint, str | os.PathLike)
        _checks.require(kind, "checkpoint", checkpoint, "the path of a file")
    file = None if checkpoint is None else os.fspath(checkpoint)
    # A digest of arrays takes a pass over them.
    known_by = b"" if file is None else _known_by(solver, key, plan, objective, data, params)
    token = WATCH.set(Watch(file, known_by, progress))
    try:
        found: Solution = solver.solve(key, plan, objective, data, params)
    finally:
        WATCH.reset(token)
    return found


def _known_by(solver: Any, key: Any, plan: Any, objective: Any, data: Any, params: Any) -> bytes:
    """A digest of what a run is a function of, but for the code of its loss."""
    digest = hashlib.sha256()
    leaves, structure = jax.tree.flatten((plan, params))
    kind = (jax.random.key_impl(key), structure, data.shapes, _plan_base._constants(objective))
    words = (getattr(solver, "__name__", solver), *kind, data.state(), data.block_users)
    digest.update("\n".join(map(str, words)).encode())
    for leaf in (jax.random.key_data(key), *leaves):
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.digest()
