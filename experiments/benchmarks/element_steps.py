"""Steps over units: memory against their number, and a last layer whose norms come from inner products.

What it computes: temporaries of a compiled step of ``element_level.sgd`` for 10^4 and 10^6 units, as the
compiler reports them; seconds of a clipped gradient sum of a softmax regression with 2048 × 101 parameters,
256 units of 4 items, beside ``vmap(grad)``, and of one of logistic regression, 4,096 units of one item and
1,024 numbers, beside the gradient of the mean loss.

Source: none.

Formal guarantee: none; the data are drawn at random.

Cost: half a minute, 1 GB.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import Budget, Problem
from dpsco_jax.oracles import gradients, linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level import sgd
from experiments.benchmarks.timing import Row, interleaved_medians

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


def _last_layer() -> Row:
    objective, rng = losses.softmax(1.0, CLASSES), np.random.default_rng(0)
    features = rng.standard_normal((UNITS, ITEMS, DIM)).astype(np.float32)
    labels = rng.integers(0, CLASSES, (UNITS, ITEMS)).astype(np.int32)
    data = UserData(Example(jnp.asarray(features), jnp.asarray(labels)))
    model = objective.linear_model
    assert model is not None
    ready = linear.prepare(model, data, DIM)
    point, key = jnp.zeros((DIM, CLASSES)), jax.random.key(0)
    ghost = jax.jit(linear.clipped_gradient_sum(model, 0.1))
    plain = jax.jit(gradients.clipped_gradient_sum(gradients.user_gradient(objective), 0.1))
    calls = {
        "ours": lambda: ghost(key, point, ready).gradient,
        "peer": lambda: plain(key, point, data).gradient,
    }
    ours, peer = interleaved_medians(calls, repeats=7).values()
    return Row(
        f"clipped sum, {UNITS} units of {ITEMS} items, {DIM} x {CLASSES}",
        "inner products", ours, "vmap(grad)", peer, 10.0, "",
    )  # fmt: skip


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
    private, public = interleaved_medians(calls).values()
    return Row(
        "clipped sum of logistic regression, 4,096 units x 1,024",
        "one datum a unit", private, "without privacy", public, 1 / 1.3, "",
    )  # fmt: skip


def rows() -> list[Row]:
    """The comparisons."""
    found = [_last_layer(), _regression()]
    for sampling in ("element", "user", "fixed"):
        few, many = (temporary_bytes(size, sampling) for size in (10_000, 1_000_000))
        drawn = {"element": 1_000_000, "user": 100_000, "fixed": 1_000_000}[sampling]
        note = f"the draw over {drawn:,} takes a few numbers each; all updates: 256 MB"
        work = f"temporaries of a step, {sampling} sampling, dim 64"
        sizes = ("1,000,000 units", many / 1e6, "10,000 units", few / 1e6)
        found.append(Row(work, *sizes, None, note, unit="MB"))
    return found
