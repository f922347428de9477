"""Histograms with finer and finer elements: error over that of the mean without privacy, against ε.

What it computes: the mean counts of half of the users, released for elements that are whole users, clusters
of items, or single items, and their squared distance from the mean counts of the other half, over the
distance that the mean without privacy has. In two ways:

- "oracle": one radius, the best of a grid for the true errors. Not private ("tuned non-privately"): it is
  what the paper shows. What is reported is released with this radius.
- "private": the radius from a first release, all within the budget (``two_stage_histogram``).

Both also denoised, and multiplied by what the projection has taken: "private" by ``denoised_histogram``, which
is free, "oracle" by the factor of the data, as little private as its radius.

Source: E §4.1, Figure 2, at δ = n^(-1.1), with the sensitivity corrected (N1).

Formal guarantee: none for "oracle"; each "private" run is (ε, δ)-DP for elements under REPLACE_ONE. Clusters,
the coarse bound and the vocabulary are public (``histogram_tasks``).

Cost: about a second of one core for a cell.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax.mechanisms import (
    additive,
    clustered_histogram,
    denoised_histogram,
    denoising,
    two_stage_histogram,
)
from dpsco_jax.mechanisms.histogram_releases import ClusteredReleases, calibrate_histogram
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from experiments.studies import element_histogram_report, histogram_tasks

RADII = (*range(1, 11), *range(15, 51, 5), 70, 100, 150, 200)


class Halves(NamedTuple):
    """Entries of S₁, padded, and mean counts, stacked over seeds ``[seeds, ...]``."""

    users: Any
    items: Any
    counts: Any
    truth: Any
    plain: Any
    projected: Any


class Plan(NamedTuple):
    """What one cell runs."""

    seed: np.ndarray
    oracle: ClusteredReleases
    private: two_stage_histogram.TwoStageReleases


def oracle_radius(projected: jax.Array, truth: jax.Array, stddevs: jax.Array) -> jax.Array:
    """Which radius of a grid has the least expected error. Not private: it looks at data and truth.

    Args:
        projected: means of projected counts, ``[radii, items]``.
        truth: what is estimated, ``[items]``.
        stddevs: of the noise with every radius, ``[radii, items]``.
    """
    return jnp.argmin(jnp.sum((projected - truth) ** 2 + stddevs**2, axis=1))


@dataclasses.dataclass(frozen=True)
class ElementHistogram:
    """Error of private histograms against ε, for elements from whole users to single items.

    Attributes:
        tasks: data sets.
        clusters: numbers of clusters; 0 for every item alone. A task takes those that it has.
        epsilons: budgets.
        seeds: cells, for the error bars.
        coarse_share: of 1/σ² that finding the radii has.
        iterations: of EM, in denoising.
    """

    name: ClassVar[str] = "element-histogram"
    version: ClassVar[int] = 3
    tasks: tuple[str, ...] = axis(
        "task",
        ("zipf", "tweets", "flights", "words"),
        static=True,
        choices=tuple(histogram_tasks.PARTITIONS),
    )
    clusters: tuple[int, ...] = axis("clusters", (1, 10, 100, 104, 1000, 0), static=True)
    epsilons: tuple[float, ...] = axis("epsilon", (0.5, 1.0, 2.0, 4.0, 8.0))
    seeds: int = axis("seed", 10)
    coarse_share: float = 0.1
    iterations: int = 50

    def cells(self) -> list[dict[str, Setting]]:
        known = histogram_tasks.PARTITIONS
        return [cell for cell in product(self) if cell["clusters"] in known[str(cell["task"])]]

    def build(self, static: Settings) -> Program:
        task, number = str(static["task"]), int(static["clusters"])
        halves, num_users = _halves(task, number, self.seeds)
        cluster_of_item = histogram_tasks.clusters(task, number, halves.truth.shape[1])
        bound = histogram_tasks.typical_items(task)
        delta = float(2 * num_users) ** -1.1

        @functools.cache
        def releases(epsilon: float) -> tuple[Any, Any]:
            oracle = calibrate_histogram(num_users, cluster_of_item, 1.0, epsilon, delta)
            private = two_stage_histogram.calibrate_two_stages(
                num_users, cluster_of_item, bound, epsilon, delta, coarse_share=self.coarse_share
            )
            return oracle, private

        def inputs(settings: Settings) -> Plan:
            return Plan(np.asarray(settings["seed"]), *releases(float(settings["epsilon"])))

        def known(settings: Settings) -> dict[str, float]:
            oracle, private = releases(float(settings["epsilon"]))
            return {
                "delta": delta,
                "items": float(oracle.num_items),
                "entries": float(np.sum(halves.users[int(settings["seed"])] >= 0)),
                "oracle multiplier": float(oracle.noise_multiplier),
                "certified": private.certificate().epsilon,
            }

        run = functools.partial(_run, self.iterations)
        return Program(run, Halves(*map(jnp.asarray, halves)), inputs, known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        element_histogram_report.write(frame, folder)


def _run(iterations: int, shared: Halves, key: jax.Array, plan: Plan) -> dict[str, jax.Array]:
    half = jax.tree.map(lambda leaf: leaf[plan.seed], shared)
    oracle_key, private_key = jax.random.split(key)
    base = jnp.sum((half.plain - half.truth) ** 2)

    def ratio(found: jax.Array) -> jax.Array:
        return jnp.sum((found - half.truth) ** 2) / base

    grid = jnp.asarray(RADII, float)
    stddevs = grid[:, None] * jnp.asarray(plan.oracle.noise_stddev, float)
    best = oracle_radius(half.projected, half.truth, stddevs)
    noise = stddevs[best]
    scaled = additive.gaussian(oracle_key, half.projected[best] / noise, 1.0)
    oracle = scaled * noise
    # As little private as the radius: what is left of the counts, by the data.
    factor = jnp.sum(half.plain) / jnp.sum(half.projected[best])
    inside = denoising.posterior_means(oracle, noise, grid[best], iterations)
    private = two_stage_histogram.two_stage_histogram(
        private_key, half.users, half.items, half.counts, plan.private
    )
    return {
        "base": base,
        "oracle": ratio(oracle),
        "oracle denoised": ratio(factor * inside),
        "oracle factor": factor,
        "oracle radius": grid[best],
        "private": ratio(private.histogram),
        "private denoised": ratio(
            denoised_histogram.denoised_histogram(private, plan.private, iterations)
        ),
        "private factor": denoised_histogram.projection_factor(private, plan.private),
        "private radius": private.radius,
    }


def _halves(task: str, number: int, seeds: int) -> tuple[Halves, int]:
    splits = [histogram_tasks.split(task, seed) for seed in range(seeds)]
    length = max(len(split.users) for split in splits)
    num_users, num_items = splits[0].num_users, len(splits[0].truth)
    cluster_of_item = histogram_tasks.clusters(task, number, num_items)

    def padded(values: np.ndarray, fill: int) -> np.ndarray:
        return np.pad(values, (0, length - len(values)), constant_values=fill)

    @jax.jit
    def means(users: jax.Array, items: jax.Array, counts: jax.Array) -> jax.Array:
        def with_radius(radius: jax.Array) -> jax.Array:
            releases = ClusteredReleases(num_users, False, cluster_of_item, radius, 1.0, 0.5)
            return clustered_histogram.projected_mean(users, items, counts, releases)

        return jax.lax.map(with_radius, jnp.asarray(RADII, float))

    rows = []
    for split in splits:
        users, items = padded(split.users, -1), padded(split.items, 0)
        counts = padded(split.counts, 0)
        plain = np.bincount(split.items, split.counts, num_items) / num_users
        projected = np.asarray(means(users, items, counts))
        rows.append((users, items, counts, *map(np.float32, (split.truth, plain)), projected))
    return Halves(*map(np.stack, zip(*rows, strict=True))), num_users
