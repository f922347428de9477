"""What the certificate of the proximal sampler costs: gradients for an effective sample, beside BlackJAX.

The target is a posterior of logistic regression, exp(-k·(F + (μ/2)‖x‖²)), as ``regularized`` draws from; 64
chains each, from the same start, effective samples of the coordinate that has the fewest. MALA has the step
at which it accepts 0.574 of its proposals and NUTS the step and diagonal masses of its warm-up; neither
counts its warm-up. A proximal step counts its gradients, and beside them its trials, each of which is a
pass over the rows that takes two products with them as a gradient does.
"""

import functools
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.problems import losses, synthetic
from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle
from experiments.benchmarks.timing import Row

CHAINS, DRAWS, DIM, NUM_ROWS = 64, 400, 10, 1_000
CONVEXITY, TARGET, MALA_RATE = 2e-3, 0.5, 0.574
TEMPERATURE = (0.2366 * NUM_ROWS / 2.0) ** 2 * CONVEXITY  # of (1, 1e-6)
OBJECTIVE = losses.logistic(1.0)


def made() -> Any:
    """The rows, one a user."""
    return synthetic.logistic_regression(
        jax.random.key(0), num_users=NUM_ROWS, items_per_user=1, dim=DIM
    ).data


def log_density(data: Any) -> Any:
    """Of the target, without constants."""
    features, labels = data.items.features[:, 0], data.items.label[:, 0]

    def found(x: Any) -> Any:
        margins = features @ x
        risk = jnp.mean(jax.nn.softplus(margins) - labels * margins)
        return -TEMPERATURE * (risk + CONVEXITY / 2.0 * x @ x)

    return found


@functools.partial(jax.jit, static_argnums=2)
def proximal(key: Any, data: Any, draws: int) -> tuple[Any, Any, Any]:
    """Points of chains ``[chains, draws, dim]``, gradients and trials of all of them."""
    oracle = proximal_oracle(
        OBJECTIVE,
        data,
        jnp.zeros(DIM),
        inverse_temperature=TEMPERATURE,
        convexity=CONVEXITY,
        num_steps=10_000,
    )

    def step(state: Any, key: Any) -> tuple[Any, Any]:
        diffuse_key, trial_key = jax.random.split(key)
        state = oracle.diffuse(diffuse_key, state)

        def again(carry: Any) -> Any:
            held, _, count = carry
            proposed, good = oracle.trial(jax.random.fold_in(trial_key, count), state)
            return jax.tree.map(lambda a, b: jnp.where(good, a, b), proposed, held), good, count + 1

        first = (state, jnp.array(False), jnp.zeros((), jnp.int32))
        state, _, count = jax.lax.while_loop(lambda carry: ~carry[1], again, first)
        return state, (oracle.point(state), count)

    def chain(key: Any) -> Any:
        end, (points, trials) = jax.lax.scan(
            step, oracle.init(jnp.zeros(DIM)), jax.random.split(key, draws)
        )
        return points, end.evaluations, jnp.sum(trials)

    points, gradients, trials = jax.vmap(chain)(jax.random.split(key, CHAINS))
    return points, jnp.sum(gradients), jnp.sum(trials)


@functools.partial(jax.jit, static_argnums=2)
def mala(key: Any, data: Any, draws: int, step_size: Any) -> tuple[Any, Any]:
    """Points of chains and the mean acceptance."""
    algorithm = blackjax.mala(log_density(data), step_size)

    def chain(key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, info = algorithm.step(key, state)
            return state, (state.position, info.acceptance_rate)

        start = algorithm.init(jnp.zeros(DIM))
        return jax.lax.scan(step, start, jax.random.split(key, draws))[1]

    points, rates = jax.vmap(chain)(jax.random.split(key, CHAINS))
    return points, jnp.mean(rates[:, draws // 2 :])


@functools.partial(jax.jit, static_argnums=(2, 3))
def nuts(key: Any, data: Any, draws: int, warmup: int) -> tuple[Any, Any]:
    """Points of chains and their gradients, after a warm-up."""
    density = log_density(data)

    def chain(key: Any) -> Any:
        first, rest = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density)
        (state, parameters), _ = adaptation.run(first, jnp.zeros(DIM), num_steps=warmup)
        kernel = blackjax.nuts(density, **parameters)

        def step(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(step, state, jax.random.split(rest, draws))[1]

    points, counts = jax.vmap(chain)(jax.random.split(key, CHAINS))
    return points, jnp.sum(counts)


def tuned_mala_step(key: Any, data: Any) -> float:
    """The step at which the acceptance is ``MALA_RATE``, by bisection."""
    low, high = np.log(1e-8), np.log(1e2)
    for _ in range(20):
        middle = (low + high) / 2.0
        # A chain at rest in the mode tells too little: the second half counts.
        rate = float(mala(key, data, 200, np.exp(middle))[1])
        low, high = (middle, high) if rate > MALA_RATE else (low, middle)
    return float(np.exp(low))


def fewest(points: Any) -> float:
    """Effective samples of the coordinate that has the fewest, without the first quarter of each chain."""
    kept = points[:, points.shape[1] // 4 :]
    return float(jnp.min(blackjax.diagnostics.effective_sample_size(kept)))


def rows() -> list[Row]:
    """All rows; they need float64."""
    with jax.enable_x64(True):
        data, keys = made(), jax.random.split(jax.random.key(1), 4)
        later = 0.75  # of a chain, whose samples and gradients count
        points, gradients, trials = proximal(keys[0], data, DRAWS)
        ours = fewest(points)
        bare, all_passes = (
            later * float(count) / ours for count in (gradients, gradients + trials)
        )
        step = tuned_mala_step(keys[1], data)
        points, rate = mala(keys[2], data, 5 * DRAWS, step)
        of_mala = later * CHAINS * 5 * DRAWS / fewest(points)
        points, count = nuts(keys[3], data, DRAWS, 300)
        of_nuts = later * float(count) / fewest(points)
        work = f"an effective sample, {NUM_ROWS:,} × {DIM}"
        note = f"MALA accepts {float(rate):.3f}; ours {float(trials) / (CHAINS * DRAWS):.2f} trials a step"
        chosen = (("BlackJAX MALA", of_mala, TARGET), ("BlackJAX NUTS", of_nuts, None))
        return [
            Row(work, f"proximal, {name}", cost, peer, peer_cost, target, note, unit="gradients")
            for peer, peer_cost, target in chosen
            for name, cost in (("gradients", bare), ("gradients and trials", all_passes))
        ]
