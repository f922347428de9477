"""Steps over units: memory against their number, and a last layer whose norms come from inner products.

What it computes: temporaries of a compiled step of ``element_level.sgd`` for 10^4 and 10^6 units, as the
compiler reports them; processor seconds (of all threads) of a clipped gradient sum of a softmax regression
with 2048 × 101 parameters, 256 units of 4 items, beside ``vmap(grad)`` in chunks of several sizes, the
gradient of the mean loss, and its two products alone; and of one of logistic regression, 4,096 units of one
item and 1,024 numbers, beside the gradient of the mean loss; seconds of a sweep over ε, clip norms and
seeds, beside a single run.

Source: none.

Formal guarantee: none; the data are drawn at random.

Cost: a minute, 2 GB.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax import Budget, Problem
from dpsco_jax.oracles import gradients, linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level import sgd
from experiments.benchmarks.timing import Row, interleaved_medians, once

UNITS, ITEMS, DIM, CLASSES = 256, 4, 2048, 101


def temporary_bytes(num_units: int, sampling: str, dim: int = 64) -> int:
    """Bytes of temporaries of a run of one step, inputs not counted."""
    objective = losses.logistic(1.0)._replace(linear_model=None)
    problem = Problem(objective, num_users=num_units // 10, dim=dim)
    plan = sgd.plan(
        problem, Budget(1.0, 1e-6), num_steps=1, elements_per_user=10, batch_size=num_units // 1000,
        sampling=sampling, step_size=1.0, accountant="rdp",
    )  # fmt: skip
    data = UserData(
        Example(
            jax.ShapeDtypeStruct((num_units, 1, dim), jnp.float32),
            jax.ShapeDtypeStruct((num_units, 1), jnp.float32),
        )
    )

    def run(data: UserData) -> Any:
        return sgd.solve(jax.random.key(0), plan, objective, data, jnp.zeros(dim)).params

    analysis = jax.jit(run).lower(data).compile().memory_analysis()
    return analysis.temp_size_in_bytes if analysis else 0


def _last_layer() -> list[Row]:
    objective, rng = losses.softmax(1.0, CLASSES), np.random.default_rng(0)
    features = rng.standard_normal((UNITS, ITEMS, DIM)).astype(np.float32)
    labels = rng.integers(0, CLASSES, (UNITS, ITEMS)).astype(np.int32)
    data = UserData(Example(jnp.asarray(features), jnp.asarray(labels)))
    model = objective.linear_model
    assert model is not None
    ready = linear.prepare(model, data, DIM)
    point, key = jnp.zeros((DIM, CLASSES)), jax.random.key(0)
    ghost = jax.jit(linear.clipped_gradient_sum(model, 0.1))
    rows, classes = ready.features.reshape(-1, DIM), jnp.asarray(labels.ravel())

    def mean_loss(w: Any) -> Any:
        found = optax.losses.softmax_cross_entropy_with_integer_labels(rows @ w, classes)
        return jnp.mean(found)

    def two_products(w: Any) -> Any:
        return jax.lax.optimization_barrier(jnp.einsum("nk,nd->kd", rows @ w, rows)).T

    def plain(chunk_size: int) -> Callable[[], Any]:
        gradient = gradients.user_gradient(objective)
        oracle = jax.jit(gradients.clipped_gradient_sum(gradient, 0.1, chunk_size=chunk_size))
        return lambda: oracle(key, point, data).gradient

    without_privacy, products = jax.jit(jax.grad(mean_loss)), jax.jit(two_products)
    calls = {
        "ours": lambda: ghost(key, point, ready).gradient,
        "vmap(grad), all 256": plain(UNITS),
        "vmap(grad), chunks of 64": plain(64),
        "vmap(grad), chunks of 8": plain(8),
        "vmap(grad), chunks of 4": plain(4),
        "without privacy": lambda: without_privacy(point),
        "its two products alone": lambda: products(point),
    }
    seconds = interleaved_medians(calls, repeats=9, clock=time.process_time)
    work = f"clipped sum, {UNITS} units of {ITEMS} items, {DIM} x {CLASSES}"
    ours = seconds.pop("ours")
    targets = {"vmap(grad), all 256": 10.0, "vmap(grad), chunks of 64": 10.0}
    return [
        Row(work, "inner products", ours, peer, cost, targets.get(peer))
        for peer, cost in seconds.items()
    ]


def _regression() -> Row:
    objective, rng = losses.logistic(1.0), np.random.default_rng(0)
    features = jnp.asarray(rng.standard_normal((4096, 1, 1024)), jnp.float32)
    data = UserData(Example(features, jnp.ones((4096, 1))))
    model = objective.linear_model
    assert model is not None
    ready = linear.prepare(model, data, 1024)
    point, key = jnp.zeros(1024), jax.random.key(0)
    ours = jax.jit(linear.clipped_gradient_sum(model, 0.1))
    rows = ready.features[:, 0]

    def loss(w: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-(rows @ w)))

    plain = jax.jit(jax.grad(loss))
    calls = {"ours": lambda: ours(key, point, ready).gradient, "peer": lambda: plain(point)}
    private, public = interleaved_medians(calls, clock=time.process_time).values()
    return Row(
        "clipped sum of logistic regression, 4,096 units x 1,024",
        "one datum a unit", private, "without privacy", public, 1 / 1.3, "",
    )  # fmt: skip


def sweep_row() -> Row:
    """48 runs of ``element_level.sgd`` in one program, beside one run; both with their compilation."""
    objective, users, slots, dim = losses.logistic(1.0), 500, 4, 20
    features = np.random.default_rng(0).standard_normal((users * slots, 1, dim)) / dim**0.5
    data = UserData(Example(jnp.asarray(features, jnp.float32), jnp.ones((users * slots, 1))))
    problem = Problem(objective, num_users=users, dim=dim)
    plans = [
        sgd.plan(
            problem, Budget(epsilon, 1e-5), num_steps=100, elements_per_user=slots, batch_size=50,
            clip_norm=clip_norm, step_size=1.0, accountant="rdp",
        )
        for epsilon in (0.5, 1.0, 2.0, 4.0)
        for clip_norm in (0.1, 0.3, 1.0)
    ]  # fmt: skip
    stacked = jax.tree.map(lambda *numbers: jnp.asarray(numbers), *plans)
    keys = jax.random.split(jax.random.key(0), 4)

    def solve(key: Any, plan: Any) -> Any:
        return sgd.solve(key, plan, objective, data, jnp.zeros(dim)).params

    sweep = jax.jit(jax.vmap(jax.vmap(solve, (0, None)), (None, 0)))
    alone = jax.jit(lambda key, plan: solve(key, plan))
    single = once(lambda: alone(keys[0], plans[0]), time.process_time)
    together = once(lambda: sweep(keys, stacked), time.process_time)
    compiled = sweep._cache_size()  # type: ignore[attr-defined]
    return Row(
        "4 ε x 3 clip norms x 4 seeds, 500 users of 4 units, 100 steps",
        f"{compiled} program", together, "48 times one run", 48 * single, None,
        "both compile; one run compiles for each plan",
    )  # fmt: skip


def rows() -> list[Row]:
    """The comparisons."""
    found = [*_last_layer(), _regression(), sweep_row()]
    for sampling in ("element", "user", "fixed"):
        few, many = (temporary_bytes(size, sampling) for size in (10_000, 1_000_000))
        note = "a thousandth of the units is drawn; all updates: 256 MB"
        work = f"temporaries of a step, {sampling} sampling, dim 64"
        sizes = ("1,000,000 units", many / 1e6, "10,000 units", few / 1e6)
        found.append(Row(work, *sizes, None, note, unit="MB"))
    return found
