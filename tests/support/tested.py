"""Phases of tested means by hand, of any numbers, without the search for those that a budget allows."""

from typing import Any

from dp_accounting import NeighboringRelation

from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases


def phase(
    users: int = 100, num_steps: int = 3, threshold: float = 80.0, **changes: Any
) -> ConcentratedReleases:
    """A phase over everybody; by default tests that hardly err and little noise."""
    numbers = {
        "population_size": users,
        "batch_size": users,
        "test": "stream",
        "selection": "weighted",
        "relation": NeighboringRelation.REPLACE_ONE,
        "keep_level": 2 / 3,
        "core": 0.7 * users,
        "test_epsilon": 20.0,
        "coin_failure": 0.0,
        "noise_stddev": 1e-3,
        "epsilon": 30.0,
        "delta": 1e-5,
    }
    return ConcentratedReleases(num_steps=num_steps, threshold=threshold, **numbers | changes)
