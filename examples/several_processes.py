"""Private training on users who are spread over several processes, each of which loads its own.

Two processes of two devices each, on one machine (docs/scaling.md has the commands for several):

    export XLA_FLAGS=--xla_force_host_platform_device_count=2 JAX_PLATFORMS=cpu
    python examples/several_processes.py --processes 2 --process 0 --results two.npz &
    python examples/several_processes.py --processes 2 --process 1

One process of four devices gives the same numbers, up to rounding:

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/several_processes.py --results one.npz

``--checkpoint FILE`` runs one method step by step and keeps parameters, key and ledger after every step; run
again, it goes on from there. A process that is killed ends the others with an error.
"""

import argparse
import os
import signal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jax.sharding import AxisType

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.oracles import gradients, sampling
from dpsco_jax.privacy.sampling import Poisson
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.convex import ac_sa
from dpsco_jax.solvers.item_level import langevin, private_ac_sa, resque_erm
from dpsco_jax.solvers.user_level import multipass_sgd, sgd, winsorized_erm

USERS, ITEMS, DIM, STEPS = 512, 2, 4, 12
OBJECTIVE = losses.logistic(1.0)


def users(first: int, last: int) -> Example:
    """Some of all users, as if read from where this process keeps them: user u has a seed of its own."""
    rows, labels = [], []
    for user in range(first, last):
        rng = np.random.default_rng(user)
        features = rng.standard_normal((ITEMS, DIM)).astype(np.float32)
        rows.append(features / np.linalg.norm(features, axis=1, keepdims=True))
        labels.append(np.sign(features[:, 0] + 0.1 * rng.standard_normal(ITEMS)))
    return Example(np.stack(rows), np.stack(labels).astype(np.float32))


def plans() -> dict[str, Any]:
    """A solver of each family and its plan, made from public numbers: the same in every process."""
    problem = Problem(OBJECTIVE, num_users=USERS, dim=DIM, items_per_user=ITEMS, distance=5.0)
    budget = Budget(4.0, 1e-5)
    poisson = {"num_steps": 5, "batch_size": 64, "sampling": "poisson"}
    return {
        "user_level.sgd": (sgd, sgd.plan(problem, budget, **poisson)),
        "user_level.multipass_sgd": (
            multipass_sgd,
            multipass_sgd.plan(problem, budget, num_steps=3),
        ),
        "user_level.winsorized_erm": (
            winsorized_erm,
            winsorized_erm.plan(problem, budget, num_steps=2, form="clipped"),
        ),
        "item_level.private_ac_sa": (
            private_ac_sa,
            private_ac_sa.plan(problem, budget, num_steps=3, batch_size=64),
        ),
        "item_level.langevin": (langevin, langevin.plan(problem, budget, num_steps=5)),
        "resque.resque_erm": (
            resque_erm,
            resque_erm.plan(problem, budget, ball_radius=0.1, num_queries=8),
        ),
        "convex.ac_sa": (ac_sa, ac_sa.plan(problem, num_steps=20)),
    }


def run_all(data: UserData) -> dict[str, np.ndarray]:
    """The points that all solvers report, and the losses that they charge at order 8."""
    found = {}
    for name, (solver, plan) in plans().items():

        @jax.jit
        def run(key: jax.Array, data: UserData, solver: Any = solver, plan: Any = plan) -> Any:
            solution = solver.solve(key, plan, OBJECTIVE, data, jnp.zeros(DIM))
            return solution.params, solution.privacy

        params, loss = run(jax.random.key(1), data)
        found[name] = np.asarray(params)
        for number, leaf in enumerate(jax.tree.leaves(loss)):
            found[f"{name}, loss {number}"] = np.asarray(leaf)
    return found


def run_by_step(data: UserData, checkpoint: str, dies_at: int | None) -> dict[str, np.ndarray]:
    """DP-SGD in a loop of our own, with everything that has to be kept in one file."""
    added = NeighboringRelation.ADD_OR_REMOVE_ONE
    aggregate = transforms.summed_contributions(1.0, 64, added)
    chain = optax.chain(
        transforms.privatize(aggregate, jax.random.key(2), 1.0, Poisson(64 / USERS)), optax.sgd(0.5)
    )
    oracle = gradients.clipped_gradient_sum(
        gradients.user_gradient(OBJECTIVE),
        1.0,
        lambda key: sampling.poisson(key, USERS, 64 / USERS),
    )

    @jax.jit
    def step(t: Any, params: Any, state: Any, data: UserData) -> Any:
        estimate = oracle(jax.random.fold_in(jax.random.key(3), t), params, data)
        updates, state = chain.update(estimate.gradient, state, params, **estimate.extra_args)
        return optax.apply_updates(params, updates), state

    params: Any = jnp.zeros(DIM)
    first, (params, state) = _loaded(checkpoint, (params, chain.init(params)))
    for t in range(first, STEPS):
        params, state = step(t, params, state, data)
        _save(checkpoint, t + 1, (params, state))
        if t + 1 == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
    kept = {"steps": np.asarray(STEPS), "params": np.asarray(params)}
    ledger = optax.tree.get(state, "ledger")
    return kept | {f"ledger {i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(ledger))}


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _save(path: str, step: int, tree: Any) -> None:
    """One process writes; the file is whole or not there.

    A step that was made and not kept is made again, with the same key and so the same noise: nothing new is
    released.
    """
    leaves = [jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(tree)]
    if jax.process_index() == 0:
        with open(path + ".part", "wb") as file:
            np.savez(file, np.asarray(step), *(np.asarray(leaf) for leaf in leaves))
        os.replace(path + ".part", path)


def _loaded(path: str, like: Any) -> tuple[int, Any]:
    if not os.path.exists(path):
        return 0, like
    with np.load(path) as kept:
        step, *arrays = (kept[name] for name in kept.files)
    leaves, structure = jax.tree.flatten(like)
    found = [
        jax.random.wrap_key_data(jnp.asarray(a)) if _is_key(x) else jnp.asarray(a)
        for a, x in zip(arrays, leaves, strict=True)
    ]
    return int(step), jax.tree.unflatten(structure, found)


def main() -> None:
    """Joins the others, loads this process's users, runs, and writes what came out."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--coordinator", default="localhost:12355")
    words.add_argument("--processes", type=int, default=1)
    words.add_argument("--process", type=int, default=0)
    words.add_argument("--axes", choices=("explicit", "auto"), default="explicit")
    words.add_argument("--results", help="file for what came out")
    words.add_argument("--checkpoint", help="run step by step and keep the state here")
    words.add_argument(
        "--dies-at", type=int, help="kill this process after a step, to see what follows"
    )
    given = words.parse_args()
    if given.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            given.coordinator, given.processes, given.process, heartbeat_timeout_seconds=30
        )
    kind = AxisType.Explicit if given.axes == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((jax.device_count(),), ("users",), axis_types=(kind,))
    each = USERS // given.processes
    own = users(given.process * each, (given.process + 1) * each)
    data = UserData.from_process_local(mesh, own)
    by_step = given.checkpoint is not None
    found = run_by_step(data, given.checkpoint, given.dies_at) if by_step else run_all(data)
    if given.results and given.process == 0:
        np.savez(given.results, **found)
    print(f"process {given.process}: done", flush=True)


if __name__ == "__main__":
    main()
