"""The best DP-SGD for a table and an ε in hindsight: a search over a grid that grows where it must.

What it computes: stage by stage, fewer configurations on more seeds. One seed of the whole grid: four
numbers of steps × clip norms × step sizes, with a constant step and with momentum and a decaying one
(``thorough``: all four combinations); every run counts under four averages, some 1,500 configurations
(3,000). While the best lies at an end of the clip norms or step sizes, that axis is doubled there. Three
further seeds of the best 90 settings (the best 24 with all combinations), sixteen more of the best 18.

Source: none.

Formal guarantee: each run is (ε, δ)-DP, see ``table_dp_sgd``. The search is not: it looks at the data
without noise and no ε is charged for it, so that the baseline is better than anybody could have it.

Cost: half a minute to three minutes of two cores for a table and an ε.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies import table_dp_sgd
from experiments.studies.table_dp_sgd import AVERAGES, Flat
from experiments.studies.table_tasks import load_table

STEPS = (25, 50, 100, 200)
_CLIPS = tuple(2.0**k for k in range(-4, 2))
_SIZES = tuple(2.0**k for k in range(-2, 6))
_KINDS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))  # momentum, decay
_TWO_KINDS = ((0.0, 0.0), (1.0, 1.0))
_EXPANDED = 24
_LONGEST = 12
_BATCHES = (32, 64, 128)
_KEPT = (90, 18)
_SEEDS = (3, 16)


class Config(NamedTuple):
    """What is tuned.

    Attributes:
        num_steps: full batches.
        clip: clip norm in units of the median norm of a user's gradient at zero.
        step: step size in units of ``table_dp_sgd.unit_step``.
        heavy: 1.0 for momentum of 0.9.
        decay: 1.0 for a step that falls linearly to zero.
        average: a name in ``AVERAGES``.
    """

    num_steps: int
    clip: float
    step: float
    heavy: float
    decay: float
    average: str = "last"


class Found(NamedTuple):
    """The winner of a search.

    Attributes:
        config: the winner.
        at_end: whether its clip norm or step size is the least or the largest that was tried.
        tried: number of configurations.
    """

    config: Config
    at_end: bool
    tried: int


class Bench(NamedTuple):
    """A table ready for runs."""

    flat: Flat
    unit: float
    objective: Any
    dim: int


@functools.cache
def bench(name: str) -> Bench:
    """The matrices of a table and the median norm of a user's gradient at zero."""
    task = load_table(name)
    flat = table_dp_sgd.flatten(task)
    there = np.asarray(task.train.mask).any(axis=1)
    norms = table_dp_sgd.gradient_norms(flat, task.objective)[there]
    return Bench(flat, float(np.median(norms)), task.objective, task.dim)


def settings(ready: Bench, config: Config, epsilon: float, delta: float) -> table_dp_sgd.Settings:
    """The numbers of a run of a configuration."""
    multiplier = table_dp_sgd.multiplier(config.num_steps, epsilon, delta)
    clip = config.clip * ready.unit
    unit = table_dp_sgd.unit_step(
        len(ready.flat.rows), ready.dim, config.num_steps, clip, multiplier
    )
    return table_dp_sgd.Settings(clip, config.step * unit, config.heavy, config.decay, multiplier)


def search(name: str, epsilon: float, delta: float, thorough: bool = False) -> Found:
    """The configuration with the least mean excess risk in the last stage.

    Args:
        name: of a table.
        epsilon: the budget, met by the certificate.
        delta: of the budget.
        thorough: whether the first stage tries all combinations of momentum and decay.
    """
    ready = bench(name)
    clips, sizes = list(_CLIPS), list(_SIZES)
    first: dict[Config, np.ndarray] = {}
    while True:
        grid = itertools.product(STEPS, clips, sizes, _KINDS if thorough else _TWO_KINDS)
        every = [Config(steps, clip, size, *kind) for steps, clip, size, kind in grid]
        new = [config for config in every if config not in first]
        first.update(zip(new, evaluate(ready, new, epsilon, delta, [0]), strict=True))
        best = _ordered(first)[0]
        grown = [_grow(clips, best.clip), _grow(sizes, best.step)]
        if not any(grown):
            break
    runs = _settings_of(_ordered(first))
    if not thorough:
        several = [c._replace(heavy=h, decay=d) for c in list(runs)[:_EXPANDED] for h, d in _KINDS]
        runs = dict.fromkeys([*several, *runs])
    results: dict[Config, np.ndarray] = {}
    seeds = 1
    for kept, more in zip(_KEPT, _SEEDS, strict=True):
        top = list(runs)[:kept]
        drawn = evaluate(ready, top, epsilon, delta, range(seeds, seeds + more))
        results = {
            config: np.concatenate([results[config], values]) if config in results else values
            for config, values in zip(top, drawn, strict=True)
        }
        seeds += more
        runs = _settings_of(_ordered(results))
    winner = _ordered(results)[0]
    at_end = winner.clip in (min(clips), max(clips)) or winner.step in (min(sizes), max(sizes))
    return Found(winner, at_end, len(first) * len(AVERAGES))


def _settings_of(ordered: list[Config]) -> dict[Config, None]:
    """The settings without the averages, the best first, each once."""
    return dict.fromkeys(config._replace(average="last") for config in ordered)


def evaluate(
    ready: Bench, configs: Sequence[Config], epsilon: float, delta: float, seeds: Sequence[int]
) -> np.ndarray:
    """The excess risk of each run, ``[configs, seeds, averages]``."""
    results = np.empty((len(configs), len(seeds), len(AVERAGES)))
    for num_steps in sorted({config.num_steps for config in configs}):
        mine = [i for i, config in enumerate(configs) if config.num_steps == num_steps]
        jobs = [(i, s) for i in mine for s in range(len(seeds))]
        for begin in range(0, len(jobs), _BATCHES[-1]):
            part = jobs[begin : begin + _BATCHES[-1]]
            # Few sizes, for each is compiled.
            size = min(s for s in _BATCHES if s >= len(part))
            full = part + [part[-1]] * (size - len(part))
            numbers = [settings(ready, configs[i], epsilon, delta) for i, _ in full]
            stacked = table_dp_sgd.Settings(*np.asarray(numbers, np.float32).T)
            keys = jax.vmap(jax.random.key)(jnp.asarray([seeds[s] for _, s in full]))
            values = np.asarray(_compiled(ready.objective, num_steps)(ready.flat, keys, stacked))
            for (i, s), value in zip(part, values, strict=False):
                results[i, s] = value
    return results


@functools.cache
def _compiled(objective: Any, num_steps: int) -> Any:
    def one(flat: Flat, key: jax.Array, numbers: table_dp_sgd.Settings) -> jax.Array:
        found = table_dp_sgd.run(flat, key, numbers, objective, num_steps)
        return jax.vmap(lambda params: table_dp_sgd.excess(flat, params, objective))(found)

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))


def _ordered(results: dict[Config, np.ndarray]) -> list[Config]:
    """Every setting under every average, the least mean excess risk first."""
    means = {
        config._replace(average=average): mean
        for config, values in results.items()
        for average, mean in zip(AVERAGES, _means(values), strict=True)
    }
    return sorted(means, key=means.__getitem__)


def _means(values: np.ndarray) -> list[float]:
    return np.where(np.isfinite(values), values, np.inf).mean(axis=0).tolist()


def _grow(axis: list[float], best: float) -> bool:
    """Doubles the axis at the end where the best lies; whether it did."""
    before = len(axis)
    if best == min(axis) and len(axis) < _LONGEST:
        axis.append(best / 2)
    elif best == max(axis) and len(axis) < _LONGEST:
        axis.append(best * 2)
    return len(axis) > before
