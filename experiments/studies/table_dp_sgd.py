"""Full-batch user-level DP-SGD written by hand for linear models, for thousands of runs at once.

What it computes: T steps. In each, every user's gradient (the mean over the user's rows) is clipped to C, the
mean over users gets Gaussian noise, the exact gradient of the ridge is added, and the parameters move by
heavy-ball momentum with a constant or linearly decaying step and are projected onto the domain. One run gives
four results: its last iterate, the uniform average, the average with weights t³, that of the last half.

Source: per-user clipping is DP-FedSGD (McMahan et al. 2018); momentum and decay as in common practice.

Formal guarantee: replacing a user replaces one clipped gradient of norm at most C by another, so the mean
over n users moves by at most 2·C/n. Noise of ``noise_multiplier``·2·C/n on each coordinate of each step makes
the run (ε, δ)-DP under REPLACE_ONE with the certified multiplier of ``multiplier``; all results are
post-processing of the noisy means. Where users have few rows the norm of a gradient Σ rᵢ·xᵢ is taken from the
inner products ⟨xᵢ, xⱼ⟩, in float32; nobody's model comes from here.

Cost: a step is two products with the [users·slots, dim] matrix and, for the norms, slots² or slots·dim
operations for each user. Under ``vmap`` over runs the products are those of matrices.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Array, Float

from dpsco_jax.privacy import FullBatch, certified_noise_multiplier
from dpsco_jax.problems.objective import Objective
from experiments.studies.metrics import roc_auc
from experiments.studies.table_tasks import RADIUS, TableTask, load_optimum

AVERAGES = ("last", "uniform", "polynomial", "tail")
_HEAVY_BALL = 0.9
_FEW_SLOTS = 8


class Flat(NamedTuple):
    """A task as matrices.

    Attributes:
        rows: ``[users, slots, dim]``, padding zero.
        labels: ``[users, slots]``.
        weights: ``[users, slots]``, one over the number of the user's rows; padding zero.
        gram: ``[slots, slots, users]``, inner products of a user's rows; used if there are few slots.
        test: the same three of the test users, by class for classes: (negatives, positives).
        least: the minimum of the training objective.
    """

    rows: Array
    labels: Array
    weights: Array
    gram: Array
    test: Any
    least: Array


class Settings(NamedTuple):
    """The numbers of one run, all of them arrays under ``vmap``.

    Attributes:
        clip: norm to which a user's gradient is clipped.
        step: of the first step.
        heavy: 1.0 for momentum of 0.9, 0.0 for none.
        decay: 1.0 for a step that falls linearly to zero, 0.0 for a constant one.
        noise_multiplier: noise over the sensitivity of the sum.
    """

    clip: Any
    step: Any
    heavy: Any
    decay: Any
    noise_multiplier: Any


@functools.cache
def multiplier(num_steps: int, epsilon: float, delta: float) -> float:
    """The certified noise multiplier of ``num_steps`` full batches under REPLACE_ONE."""
    relation = NeighboringRelation.REPLACE_ONE
    return certified_noise_multiplier(FullBatch(), num_steps, epsilon, delta, relation)


def flatten(task: TableTask) -> Flat:
    """The matrices of a task."""
    rows, labels, weights = _part(task.train)
    least = jnp.float32(load_optimum(task.name).value)
    test: Any = _part(task.test)
    if task.kind == "logistic":
        mask = np.asarray(task.test.mask)
        features, positive = np.asarray(test[0])[mask], np.asarray(test[1])[mask] > 0.5
        test = (jnp.asarray(features[~positive]), jnp.asarray(features[positive]))
    return Flat(rows, labels, weights, _gram(rows), test, least)


def _part(data: Any) -> tuple[Array, Array, Array]:
    mask = np.asarray(data.mask)
    weights = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    return data.items.features, data.items.label, jnp.asarray(weights, jnp.float32)


def _gram(rows: Array) -> Array:
    few = rows.shape[1] <= _FEW_SLOTS
    return jnp.einsum("ukd,uld->klu", rows, rows) if few else jnp.zeros((0, 0, len(rows)))


def gradient_norms(flat: Flat, objective: Objective) -> np.ndarray:
    """The norm of every user's gradient at zero: what clip norms are measured by, in hindsight."""
    assert objective.linear_model is not None
    slopes = flat.weights * objective.linear_model.derivative(jnp.zeros(()), flat.labels)
    return np.linalg.norm(np.einsum("ukd,uk->ud", flat.rows, slopes), axis=1)


def clipped_sum(flat: Flat, slopes: Float[Array, "users slots"], clip: Any) -> Float[Array, "dim"]:
    """The sum over users of Σ slopes·rows, each clipped to the norm ``clip``."""
    users, slots, dim = flat.rows.shape
    if slots > _FEW_SLOTS:
        gradients = jnp.einsum("ukd,uk->ud", flat.rows, slopes)
        return _shrinkage(jnp.sum(jnp.square(gradients), axis=1), clip) @ gradients
    # Written out, these are elementwise operations that fuse: four times as fast as small products.
    squares = jnp.zeros(users)
    for k in range(slots):
        inner = flat.gram[k, k] * slopes[:, k]
        for other in range(k + 1, slots):
            inner += 2.0 * flat.gram[k, other] * slopes[:, other]
        squares += slopes[:, k] * inner
    kept = _shrinkage(squares, clip)
    return (slopes * kept[:, None]).reshape(-1) @ flat.rows.reshape(users * slots, dim)


def _shrinkage(squares: Array, clip: Any) -> Array:
    return jnp.minimum(1.0, clip / jnp.sqrt(jnp.maximum(squares, 1e-30)))


def run(
    flat: Flat, key: jax.Array, settings: Settings, objective: Objective, num_steps: int
) -> Float[Array, "averages dim"]:
    """One run from zero: its result under each of ``AVERAGES``."""
    model, ball = objective.linear_model, not objective.globally_convex_lipschitz
    assert model is not None
    users, slots, dim = flat.rows.shape
    matrix = flat.rows.reshape(users * slots, dim)
    noise = settings.noise_multiplier * 2.0 * settings.clip / users
    beta = _HEAVY_BALL * settings.heavy

    def step(carry: Any, t: Array) -> tuple[Any, None]:
        params, velocity, uniform, polynomial, tail = carry
        margins = (matrix @ params).reshape(users, slots)
        slopes = flat.weights * model.derivative(margins, flat.labels)
        mean = clipped_sum(flat, slopes, settings.clip) / users
        draw = noise * jax.random.normal(jax.random.fold_in(key, t), (dim,))
        gradient = mean + draw + objective.ridge * params
        velocity = beta * velocity + (1.0 - beta) * gradient
        size = settings.step * (1.0 - settings.decay * t / num_steps)
        params = params - size * velocity
        if ball:
            length = jnp.linalg.norm(params)
            params = params * jnp.minimum(1.0, RADIUS / jnp.maximum(length, 1e-30))
        uniform = uniform + (params - uniform) / (t + 1)
        polynomial = polynomial + (params - polynomial) * 4.0 / (t + 4)
        begin = num_steps // 2
        tail = jnp.where(t < begin, params, tail + (params - tail) / (t - begin + 1))
        return (params, velocity, uniform, polynomial, tail), None

    zero = jnp.zeros(dim)
    carry, _ = jax.lax.scan(step, (zero,) * 5, jnp.arange(num_steps))
    return jnp.stack([carry[0], carry[2], carry[3], carry[4]])


def excess(flat: Flat, params: Array, objective: Objective) -> Array:
    """The training objective above its minimum."""
    assert objective.linear_model is not None
    losses = objective.linear_model.link(flat.rows @ params, flat.labels)
    risk = jnp.sum(flat.weights * losses) / len(flat.rows)
    return risk + 0.5 * objective.ridge * params @ params - flat.least


def metric(flat: Flat, params: Array, objective: Objective) -> Array:
    """On the test users: the AUC for classes, else the mean loss."""
    if len(flat.test) == 2:
        negatives, positives = flat.test
        return roc_auc(negatives @ params, positives @ params)
    assert objective.linear_model is not None
    rows, labels, weights = flat.test
    return jnp.sum(weights * objective.linear_model.link(rows @ params, labels)) / len(rows)


def unit_step(num_users: int, dim: int, num_steps: int, clip: float, multiplier: float) -> float:
    """1/√(T·V), V = C² + dim·σ²: the step of projected subgradient descent for a distance of 1."""
    variance = clip**2 * (1.0 + dim * (2.0 * multiplier / num_users) ** 2)
    return 1.0 / math.sqrt(num_steps * variance)
