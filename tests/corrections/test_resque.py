"""Section Q of docs/corrections.md: the printed claim fails, ours holds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from dpsco_jax.oracles import resque
from dpsco_jax.privacy.resque import _drift as moments
from dpsco_jax.problems import gaussian_smoothing, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.solvers.ball import _one_round, ball_ac_sa, epoch_sgd


def test_q1_the_printed_density_does_not_integrate_to_one():
    for rho in (0.1, 2.0):

        def density(y, x, rho=rho):
            return np.exp(-(x * x + y * y) / (2 * rho**2))

        mass = integrate.dblquad(density, -9 * rho, 9 * rho, -9 * rho, 9 * rho)[0]
        np.testing.assert_allclose(mass / (2 * math.pi * rho**2), 1.0, rtol=1e-6)
        assert abs(mass / (2 * math.pi * rho) - 1) > 0.5


def test_q2_the_second_moment_has_half_the_printed_exponent():
    rho, v = 0.3, 0.3  # at the edge of the ball of radius rho, where 3 is claimed
    grid = np.linspace(-20 * rho, 20 * rho, 40_001)
    density = np.exp(-(grid**2) / (2 * rho**2)) / np.sqrt(2 * math.pi) / rho
    weights = np.exp(v * grid / rho**2 - v**2 / (2 * rho**2))
    moment = np.sum(weights**2 * density) * (grid[1] - grid[0])
    np.testing.assert_allclose(moment, math.exp(v**2 / rho**2), rtol=1e-6)
    assert moment < 3 < math.exp(2 * v**2 / rho**2)


def test_q3_difference_moments_grow_as_the_root_of_the_order():
    """In one dimension, by sums over a fine grid: the truth, our bound and the printed one."""
    grid, width = np.linspace(-12, 20, 200_001, retstep=True)
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * math.pi)

    def weight(v):
        return np.exp(v * grid - v * v / 2)

    for p in (2, 4, 8, 16):
        a = 1 / p
        gap = np.abs(weight(a) - weight(a - 0.01)) / 0.01
        truth = np.sum(gap**p * density * width) ** (1 / p)
        ours = float(np.exp(moments.log_difference_norm(p, a)))
        assert truth <= ours <= 2 * truth
        assert ours < 24 * p / 15
    # Nor is the condition needed: twice as far as it allows.
    far = np.abs(weight(0.5) - weight(0.49)) / 0.01
    truth = np.sum(far**4 * density * width) ** 0.25
    assert truth <= np.exp(moments.log_difference_norm(4, 0.5)) <= 2 * truth


def test_q4_no_epoch_uses_a_sample_beyond_the_first_half():
    for samples in (16, 47, 48, 111, 112, 5000, 10**6):
        epochs = int(math.log2(samples / 16 + 1))
        assert 16 * (2**epochs - 1) <= samples < 16 * (2 ** (epochs + 1) - 1)
        assert epoch_sgd.num_queries(epochs) < samples
    plan = functools.partial(
        epoch_sgd.plan,
        lipschitz=1.0,
        ball_radius=1.0,
        smoothing_radius=1.0,
        min_regularization=1e-2,
        accuracies=(0.01,),
    )
    paper, proved = plan(sizes="paper"), plan(sizes="proved")
    # The same guarantee: see the recursion in tests/solvers/test_parallel_ball_oracles.py.
    assert proved.max_epochs < paper.max_epochs


def stage_bound(slope, num_steps, second_moment):
    """Factor on the bound of the excess in one stage of Algorithm 7, where slope = L/(ρλ)."""
    optimization = 8 * (slope + 1) / (num_steps * (num_steps + 1))
    size = 48 / num_steps  # N_k·λ²r²/(2^k·L²)
    return optimization + 8 * second_moment / (size * (num_steps + 1))


def test_q5_the_root_covers_the_one_and_a_stage_is_always_needed():
    for slope in np.geomspace(0.05, 1e4, 60):
        ours = math.ceil(4 * math.sqrt(slope + 1))
        assert stage_bound(slope, ours, 3.0) <= 1
    assert stage_bound(0.25, math.ceil(4 * math.sqrt(0.25) + 1), 3.0) > 1.2
    # φ = λr²: no stage as printed, and the center, a linear function L·x away, is off by more.
    lipschitz, radius, weight = 1.0, 1.0, 0.1
    goal = weight * radius**2
    excess_of_center = lipschitz * radius - weight / 2 * radius**2
    assert excess_of_center > goal
    plan = functools.partial(
        ball_ac_sa.plan,
        lipschitz=lipschitz,
        ball_radius=radius,
        smoothing_radius=radius,
        sizes="paper",
    )
    coarse = plan(min_regularization=weight, accuracies=(1.0,))
    assert len(coarse.stages[0].batch_sizes) == 1
    # The queries are the sum of both terms: under a common root there would be fewer without limit.
    fine = plan(min_regularization=1e-3, accuracies=(0.1,))
    goal = 0.1 * 1e-3
    printed = math.sqrt(1 + 1e3 * math.log(10) + 1 / (1e-3 * goal))
    assert fine.queries[0] > 1e3 * printed


def test_q6_the_center_is_four_times_better_than_printed():
    lipschitz, weight = 2.0, 5.0
    line = np.linspace(-1, 1, 4001)
    values = lipschitz * line + weight / 2 * line**2
    best = line[np.argmin(values)]
    np.testing.assert_allclose(-best, lipschitz / weight, atol=1e-3)  # attained
    np.testing.assert_allclose(-values.min(), lipschitz**2 / (2 * weight), rtol=1e-5)
    rng = np.random.default_rng(0)
    for _ in range(200):  # convex, with slopes at most L
        kinks, scale = rng.normal(size=3), rng.dirichlet(np.ones(3)) * lipschitz
        convex = np.abs(line[:, None] - kinks) @ scale
        values = convex + weight / 2 * line**2
        best = np.argmin(values)
        middle = convex[2000]
        assert abs(line[best]) <= lipschitz / weight + 1e-3
        assert middle - values[best] <= lipschitz**2 / (2 * weight) + 1e-9


@pytest.mark.slow
def test_c3_draws_that_all_steps_share_are_worse(monkeypatch):
    """Algorithm 7 with draws indexed by stage and row alone, at equal queries: several times worse."""
    dim, radius, weight, seeds = 10, 0.05, 10.0, 60
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, dim))
    rows = jnp.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), jnp.float32)
    labels = jnp.asarray(0.02 * rng.normal(size=50), jnp.float32)
    objective = losses.absolute(1.001)
    smooth = gaussian_smoothing.smoothed(objective, gaussian_smoothing.absolute, radius)

    def value(x):
        values = jax.vmap(lambda a, b: smooth.loss(x, Example(a, b)))(rows, labels)
        return jnp.mean(values) + weight / 2 * jnp.sum(x**2)

    def gradient(keys, points):
        which = jax.vmap(lambda k: jax.random.randint(k, (), 0, 50))(keys)
        chosen = rows[which]
        return jnp.sign(jnp.sum(chosen * points, axis=1) - labels[which])[:, None] * chosen

    num_steps, sizes = 7, (28, 55, 110, 220)
    draw = _one_round.draw

    def shared(key, *args):
        pool = draw(key, *args)
        index, first = [], 0
        for size in sizes:
            index += [first + row for _ in range(num_steps) for row in range(size)]
            first += num_steps * size
        index += [0] * (len(pool.shifts) - len(index))
        take = jnp.asarray(index)
        return resque.Pool(pool.center, pool.shifts[take], pool.gradients[take])

    def excess():
        def one_run(key):
            return ball_ac_sa.minimize(
                key,
                gradient,
                jnp.zeros(dim),
                weight,
                lipschitz=1.0,
                ball_radius=radius,
                smoothing_radius=radius,
                num_steps=num_steps,
                batch_sizes=np.asarray(sizes, np.int32),
                max_queries=num_steps * sum(sizes),
            )

        points = jax.jit(jax.vmap(one_run))(jax.random.split(jax.random.key(0), seeds))
        return float(jnp.mean(jax.jit(jax.vmap(value))(points)))

    best = jax.lax.fori_loop(0, 500, lambda _, x: x - jax.grad(value)(x) / 26, jnp.zeros(dim))
    fresh = excess() - float(value(best))
    monkeypatch.setattr(ball_ac_sa._one_round, "draw", shared)
    reused = excess() - float(value(best))
    assert fresh > 0
    assert reused > 2.5 * fresh
