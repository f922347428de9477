"""Accounting: ε and calibrated noise for many settings at once, against dp_accounting one by one."""

import logging
from collections.abc import Callable

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import rdp as peer_rdp

from dpsco_jax import privacy
from experiments.benchmarks.timing import Row, interleaved_medians, once

DELTA = 1e-5
# The peer warns of every order at which its series does not converge.
logging.getLogger("absl").setLevel(logging.ERROR)


def _configurations(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    sigma = np.exp(generator.uniform(np.log(0.5), np.log(20.0), count))
    rate = np.exp(generator.uniform(np.log(1e-4), np.log(0.5), count))
    steps = np.round(np.exp(generator.uniform(0.0, np.log(1e5), count)))
    return sigma.astype(np.float32), rate.astype(np.float32), steps.astype(np.float32)


def _peer_epsilon(sigma: float, rate: float, steps: float) -> float:
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)), int(steps)
    )
    return peer_rdp.RdpAccountant().compose(event).get_epsilon(DELTA)


def epsilon_rows(count: int = 10_000, peer_count: int = 60) -> list[Row]:
    """ε of ``count`` (noise multiplier, sampling probability, steps) triples in one jitted call."""
    sigma, rate, steps = _configurations(count)

    @jax.jit
    def ours(sigma, rate, steps):
        loss = jax.vmap(privacy.poisson_subsampled_gaussian)(sigma, rate)
        return privacy.epsilon(privacy.scale(loss, steps), DELTA)

    arrays = tuple(jnp.asarray(x) for x in (sigma, rate, steps))
    compiling = once(lambda: ours(*arrays))
    seconds = interleaved_medians({"ours": lambda: ours(*arrays)}, repeats=9)["ours"]
    peer = once(
        lambda: [
            _peer_epsilon(*c)
            for c in zip(*(x[:peer_count] for x in (sigma, rate, steps)), strict=True)
        ]
    )
    return [
        Row(
            f"ε of {count:,} configurations",
            "one jitted call",
            seconds,
            "dp_accounting RDP, a loop",
            peer * count / peer_count,
            1000.0,
            f"peer timed on {peer_count} of them; our compilation {compiling:.1f} s",
        )
    ]


def calibration_rows(count: int = 1_000, peer_count: int = 10) -> list[Row]:
    """Noise multipliers for ``count`` targets in one jitted call."""
    _, rate, steps = _configurations(count, seed=1)
    target = np.exp(np.random.default_rng(2).uniform(np.log(0.2), np.log(8.0), count))
    target = target.astype(np.float32)

    @jax.jit
    @jax.vmap
    def ours(target, rate, steps):
        return privacy.calibrate_noise_multiplier(target, DELTA, steps, rate)

    arrays = tuple(jnp.asarray(x) for x in (target, rate, steps))
    compiling = once(lambda: ours(*arrays))
    seconds = interleaved_medians({"ours": lambda: ours(*arrays)}, repeats=5)["ours"]

    def peer() -> None:
        for goal, q, t in zip(*(x[:peer_count] for x in (target, rate, steps)), strict=True):
            dp_accounting.calibrate_dp_mechanism(
                peer_rdp.RdpAccountant,
                lambda sigma, q=q, t=t: dp_accounting.SelfComposedDpEvent(
                    dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)),
                    int(t),
                ),
                float(goal),
                DELTA,
                dp_accounting.LowerEndpointAndGuess(0.0, 1.0),
            )

    return [
        Row(
            f"calibration of {count:,} noise multipliers",
            "one jitted call",
            seconds,
            "dp_accounting RDP, a loop",
            once(peer) * count / peer_count,
            500.0,
            f"peer timed on {peer_count} of them; our compilation {compiling:.1f} s",
        )
    ]


def replaced_rows(count: int = 1_000) -> list[Row]:
    """ε of Poisson samples under replacement, against the same of records that are added or removed."""
    arrays = tuple(jnp.asarray(x) for x in _configurations(count))

    def epsilons(curve: Callable[..., privacy.PrivacyLoss]) -> Callable[[], jax.Array]:
        @jax.jit
        def found(sigma, rate, steps):
            return privacy.epsilon(privacy.scale(jax.vmap(curve)(sigma, rate), steps), DELTA)

        return lambda: found(*arrays)

    made = {
        "ours": epsilons(privacy.poisson_replaced_gaussian),
        "peer": epsilons(privacy.poisson_subsampled_gaussian),
    }
    for run in made.values():
        once(run)
    seconds = interleaved_medians(made, repeats=9)
    return [
        Row(
            f"ε of {count:,} Poisson samples, a record replaced",
            "one jitted call",
            seconds["ours"],
            "a record added or removed",
            seconds["peer"],
            1 / 1.5,
            "at most 1.5 times as long",
        )
    ]


def rows(small: bool = False) -> list[Row]:
    """All comparisons of this file."""
    if small:
        return epsilon_rows(8, 1) + calibration_rows(4, 1) + replaced_rows(4)
    return epsilon_rows() + calibration_rows() + replaced_rows()
