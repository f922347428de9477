"""What ``table-solvers`` compares: each method as numbers for a cell and a function of data, key and numbers.

What it computes: for a table, an ε and a method the public numbers of a run (made on the host), the run,
and the certified ε.

Source: the solvers' own files and those in ``peers``.

Formal guarantee: each run is (ε, δ)-DP for users under REPLACE_ONE by the certificate of its plan, or by
the proof in the peer's file. What is tuned in hindsight, at no charge: "DP-SGD, tuned" (``table_search``),
the number of steps, clip norm and λ of "DP-Newton, tuned" (18 combinations, two seeds), and ε₃ of "AMP,
tuned" (five, two seeds). All else comes from public sizes: "private AC-SA" makes 100 full batches, with the
distance √dim/2 (every coefficient one half) and the clip norm L/√(rows of a user), where L is the Lipschitz
constant of the loss, or the feature bound for squared loss (a residual of one).

Cost: that of the runs; a search of DP-Newton takes some seconds to a minute.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import Budget, Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import preconditioned_sgd, whitened_sgd
from experiments.studies import table_dp_sgd, table_search, table_tuning
from experiments.studies.peers import ada_ssp, amp, dp_ftrl, dp_newton
from experiments.studies.table_search import bench
from experiments.studies.table_tasks import RADIUS, TableTask, load_table

TUNED, WHITENED = "DP-SGD, tuned", "whitened SGD"
PRECONDITIONED, AC_SA = "preconditioned SGD", "private AC-SA"
NEWTON, ADA_SSP, AMP = "DP-Newton, tuned", "AdaSSP", "AMP, tuned"
FTRL = "DP-FTRL, tuned"
METHODS = (TUNED, WHITENED, PRECONDITIONED, AC_SA, NEWTON, ADA_SSP, AMP, FTRL)
_STEPS = 100
_NEWTON_STEPS = (8, 16)
_NEWTON_CLIPS = (0.5, 1.0, 2.0)
_NEWTON_SHIFTS = (0.1, 10.0**-0.5, 1.0)
_AMP_SHARES = (0.6, 0.8, 0.9, 0.95, 0.98)
_FTRL_SHAPES = ((1, 16), (4, 8), (16, 4), (16, 16), (64, 4))  # passes, batches
_FTRL_CLIPS = (0.25, 0.5, 1.0)
_FTRL_SIZES = tuple(2.0**k for k in range(-2, 6))
_FTRL_MOMENTA = (0.0, 0.9)
_SEARCH_SEEDS = 2


class Shared(NamedTuple):
    """The training data in both forms."""

    flat: table_dp_sgd.Flat
    train: UserData


class Prepared(NamedTuple):
    """A run without its key.

    Attributes:
        numbers: a pytree of arrays; its shapes may say what is static.
        epsilon: certified.
    """

    numbers: Any
    epsilon: float


def applies(method: str, task: TableTask) -> bool:
    """Whether there is such a method for the table."""
    if method == ADA_SSP:
        return task.kind == "squared"
    if method == AMP:
        return task.kind == "logistic" and task.max_items_per_user == 1
    return True


def public_problem(task: TableTask) -> Problem:
    """What plans are made for."""
    return Problem(
        task.objective,
        num_users=len(task.train.items.label),
        items_per_user=task.max_items_per_user,
        dim=task.dim,
        distance=0.5 * math.sqrt(task.dim),
    )


@functools.cache
def prepare(name: str, method: str, epsilon: float, delta: float) -> Prepared:
    """The numbers of a run, searched for where the method is tuned."""
    task, ready = load_table(name), bench(name)
    assert task.objective.linear_model is not None
    bound, ridge = task.objective.linear_model.feature_bound, task.objective.ridge
    budget = Budget(epsilon, delta)
    if method == TUNED:
        config, _ = table_tuning.tuned()[name, epsilon]
        numbers = table_search.settings(ready, config, epsilon, delta)
        return Prepared(table_tuning.job(numbers, config), epsilon)
    if method == WHITENED:
        # The first column is the constant one, and no entry is above one, as declared.
        made_of = whitened_sgd.plan(public_problem(task), budget, intercept=0, entry_bound=1.0)
        return Prepared(made_of, made_of.certificate().epsilon)
    if method == PRECONDITIONED:
        planned = preconditioned_sgd.plan(public_problem(task), budget)
        return Prepared(planned, planned.certificate().epsilon)
    if method == AC_SA:
        lipschitz = bound if task.kind == "squared" else task.objective.lipschitz
        public = public_problem(task)
        slow = private_ac_sa.plan(
            public,
            budget,
            num_steps=_STEPS,
            batch_size=public.num_users,
            clip_norm=lipschitz / math.sqrt(task.max_items_per_user),
        )
        return Prepared(slow, slow.certificate().epsilon)
    if method == ADA_SSP:
        return Prepared(ada_ssp.plan(epsilon, delta, bound, 1.0, ridge, RADIUS), epsilon)
    if method == AMP:
        made = [
            amp.plan(
                epsilon,
                delta,
                len(ready.flat.rows),
                float(task.objective.lipschitz),
                float(task.objective.smoothness or 0.0),
                ridge,
                share,
            )
            for share in _AMP_SHARES
        ]
        return Prepared(_best(name, method, [_arrays(plan) for plan in made]), epsilon)
    if method == FTRL:
        users = len(ready.flat.rows)
        grid = itertools.product(_FTRL_SHAPES, _FTRL_CLIPS, _FTRL_SIZES, _FTRL_MOMENTA)
        chances = [
            (
                _arrays(
                    dp_ftrl.plan(
                        epsilon, delta, shape, users, task.dim, clip * ready.unit, size, momentum
                    )
                ),
                np.zeros(shape, bool),
            )
            for shape, clip, size, momentum in grid
        ]
        return Prepared(_best(name, method, chances), epsilon)
    combinations = itertools.product(_NEWTON_STEPS, _NEWTON_CLIPS, _NEWTON_SHIFTS)
    candidates = [
        (
            _arrays(
                dp_newton.Plan(
                    table_dp_sgd.multiplier(2 * steps, epsilon, delta),
                    clip * ready.unit,
                    shift,
                    bound,
                )
            ),
            np.zeros(steps, bool),
        )
        for steps, clip, shift in combinations
    ]
    return Prepared(_best(name, method, candidates), epsilon)


def shared(name: str) -> Shared:
    """What ``runner`` works on."""
    return Shared(bench(name).flat, load_table(name).train)


def runner(name: str, method: str) -> Callable[[Shared, jax.Array, Any], jax.Array]:
    """``run(shared, key, numbers) -> params``, pure JAX."""
    task = load_table(name)
    objective, kind = task.objective, task.kind
    if method == ADA_SSP:
        return lambda data, key, numbers: ada_ssp.solve(key, numbers, data.flat)
    if method == AMP:
        return lambda data, key, numbers: amp.solve(key, numbers, data.flat, objective)
    if method == NEWTON:
        return lambda data, key, numbers: dp_newton.solve(
            key, numbers[0], data.flat, objective, kind, numbers[1].shape[0]
        )
    if method == FTRL:
        return lambda data, key, numbers: dp_ftrl.solve(
            key, numbers[0], data.flat, objective, *numbers[1].shape
        )
    if method == TUNED:
        return lambda data, key, given: table_dp_sgd.run(
            data.flat, key, given.numbers, objective, given.steps.shape[0]
        )[given.average]
    modules: dict[str, Any] = {WHITENED: whitened_sgd, PRECONDITIONED: preconditioned_sgd}
    module = modules.get(method, private_ac_sa)
    start = jnp.zeros(task.dim)
    return lambda data, key, plan: module.solve(key, plan, objective, data.train, start).params


def _arrays(plan: Any) -> Any:
    return jax.tree.map(np.float32, plan)


def _best(name: str, method: str, candidates: list[Any]) -> Any:
    """The candidate with the least mean excess risk over two seeds; looks at the data at no charge."""
    objective, run = bench(name).objective, runner(name, method)

    @jax.jit
    def risks(data: Shared, seed: int, numbers: Any) -> jax.Array:
        keys = jax.random.split(jax.random.key(seed), _SEARCH_SEEDS)
        found = jax.vmap(lambda key: run(data, key, numbers))(keys)
        return jax.vmap(lambda params: table_dp_sgd.excess(data.flat, params, objective))(found)

    data = shared(name)
    # The same draws for all candidates.
    means = [float(np.mean(risks(data, 7, numbers))) for numbers in candidates]
    return candidates[int(np.argmin(np.where(np.isfinite(means), means, np.inf)))]
