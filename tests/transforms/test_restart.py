"""Restarts: stages one after the other, state by state; what may not be restarted; the law of stages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import transforms

CURVATURE = jnp.asarray([0.05, 0.3, 1.0])
TARGET = jnp.asarray([1.0, -2.0, 0.5])


def _gradient(w):
    return CURVATURE * (w - TARGET)


def _gap(w):
    return float(0.5 * np.sum(CURVATURE * np.square(w - TARGET)))


def _run(optimizer, start, steps, noise=None):
    def step(carry, t):
        w, state = carry
        gradient = _gradient(w) if noise is None else _gradient(w) + noise[t]
        moves, state = optimizer.update(gradient, state, w)
        return (optax.apply_updates(w, moves), state), None

    start = (start, optimizer.init(start))
    (w, state), _ = jax.lax.scan(step, start, jnp.arange(steps))
    return w, transforms.ac_sa_eval_params(state, w)


def _staged(length, strong_convexity=0.05):
    inner = transforms.ac_sa(1.0, strong_convexity)
    return transforms.restart_every(inner, length, transforms.ac_sa_eval_params)


def test_stages_are_runs_one_after_the_other():
    point = jnp.zeros(3)
    for _ in range(3):
        _, point = _run(transforms.ac_sa(1.0, 0.05), point, 7)
    params, reported = _run(_staged(7), jnp.zeros(3), 21)
    np.testing.assert_allclose(reported, point, rtol=1e-5, atol=1e-6)
    # Right after a restart the parameters are the point to report.
    np.testing.assert_allclose(params, reported, rtol=1e-5, atol=1e-6)
    # A stage that is cut short is a shorter run.
    _, cut = _run(_staged(7), jnp.zeros(3), 21 + 4)
    _, longer = _run(transforms.ac_sa(1.0, 0.05), point, 4)
    np.testing.assert_allclose(cut, longer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ratio", [10.0, 100.0, 1000.0])
def test_a_stage_divides_the_gap_as_stated(ratio):
    """4L/(μN(N+1)) is at most a quarter for N = 4·√(L/μ): eight stages, each within its bound."""
    curvature = jnp.geomspace(1 / ratio, 1.0, 5)
    length = int(np.ceil(4 * np.sqrt(ratio)))
    optimizer = transforms.restart_every(
        transforms.ac_sa(1.0, 1 / ratio), length, transforms.ac_sa_eval_params
    )

    def step(carry, _):
        w, state = carry
        moves, state = optimizer.update(curvature * w, state, w)
        return (w + moves, state), 0.5 * jnp.sum(curvature * jnp.square(w + moves))

    start = jnp.ones(5) / jnp.sqrt(curvature)
    _, gaps = jax.lax.scan(step, (start, optimizer.init(start)), None, 8 * length)
    ends = np.append(2.5, gaps[length - 1 :: length])
    assert np.all(ends[1:] <= 4 * ratio / (length * (length + 1)) * ends[:-1] + 1e-9)


def test_noise_does_not_add_up_over_stages():
    """From a gap of a hundred and more, eight stages end below (32/3)·V/(μN), the sum over stages."""
    length, runs, stddev = 36, 200, 0.3
    noise = stddev * jax.random.normal(jax.random.key(0), (runs, 8 * length, 3))
    start = jnp.asarray([100.0, 0.0, 0.0])
    ends = jax.vmap(lambda eps: _run(_staged(length), start, 8 * length, eps)[1])(noise)
    mean_gap = np.mean([_gap(w) for w in np.asarray(ends)])
    assert mean_gap <= 32 / 3 * 3 * stddev**2 / (0.05 * length)
    alone = jax.vmap(lambda eps: _run(_staged(length), start, length, eps)[1])(noise)
    assert mean_gap < np.mean([_gap(w) for w in np.asarray(alone)])


def test_stages_of_their_own_lengths_and_numbers():
    lengths, smoothness = (4, 1, 9), jnp.asarray([1.0, 3.0, 1.5])
    staged = transforms.restart_stages(
        lambda stage: transforms.ac_sa(smoothness[stage], 0.05),
        lengths,
        transforms.ac_sa_eval_params,
    )
    point = jnp.zeros(3)
    # The last stage is repeated when updates go on.
    for length, number in zip((*lengths, 9), (1.0, 3.0, 1.5, 1.5), strict=True):
        _, point = _run(transforms.ac_sa(number, 0.05), point, length)
    params, reported = _run(staged, jnp.zeros(3), sum(lengths) + 9)
    np.testing.assert_allclose(reported, point, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(params, reported, rtol=1e-5, atol=1e-6)


def test_what_spends_or_draws_is_not_restarted():
    private = transforms.privatize(transforms.clipped_sum(1.0), jax.random.key(0), 1.0)
    with pytest.raises(ValueError, match="inner must be without both"):
        transforms.restart_every(private, 3, lambda state, w: w).init(jnp.zeros(2))
    with pytest.raises(ValueError, match=r"num_steps must be .*at least 1"):
        transforms.restart_every(transforms.ac_sa(1.0), 0, transforms.ac_sa_eval_params)
    for wrong in ((), (3, 0)):
        with pytest.raises(ValueError, match=r"lengths must be .*at least one number, each in"):
            transforms.restart_stages(lambda stage: transforms.ac_sa(1.0), wrong, lambda s, w: w)
