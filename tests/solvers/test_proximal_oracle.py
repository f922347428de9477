"""One step of the proximal sampler against quadrature, and its bounds on the worst data there are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import alternating_sampler
from dpsco_jax.solvers.sampling import proximal_oracle as proximal
from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle

pytestmark = pytest.mark.usefixtures("float64")

K, MU, CENTER = 40.0, 0.3, 0.7
LOGISTIC = losses.logistic(1.0)


def one_column(num_rows=20, seed=1):
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (num_rows, 1, 1))
    labels = (rng.uniform(size=(num_rows, 1)) < 0.7).astype(float)
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)))


def mean_loss(points, data):
    """The logistic loss, in NumPy."""
    a = np.asarray(data.items.features)[:, 0]
    y = np.asarray(data.items.label)[:, 0]
    margins = points @ a.T
    return np.mean(np.logaddexp(0.0, margins) - y * margins, axis=1)


def kolmogorov(draws, grid, log_density):
    density = np.exp(log_density - log_density.max())
    steps = 0.5 * (density[1:] + density[:-1]) * np.diff(grid)
    law = np.append(0.0, np.cumsum(steps))
    at = np.interp(np.sort(draws), grid, law / law[-1])
    count = len(draws)
    return max(np.max(np.arange(1, count + 1) / count - at), np.max(at - np.arange(count) / count))


@functools.cache
def trials_at(shift, noised, count=60_000):
    """Accepted proposals at a fixed y, with the anchor moved away from where it should be."""
    data, center = one_column(), jnp.array([CENTER])
    arguments = {"inverse_temperature": K, "convexity": MU, "num_steps": 1}
    oracle = proximal_oracle(LOGISTIC, data, center, **arguments)
    numbers = proximal.numbers(proximal.setting_of(LOGISTIC, data, center), K, MU, 3.0, 1, 1)
    # A noise of zero puts y at the point itself.
    point = jnp.array([noised - CENTER])
    key = jax.random.key(3)
    found = jax.jit(lambda: _without_noise(oracle, key, point))()
    moved = _moved(found, shift, data, center, numbers) if shift else found
    keys = jax.random.split(jax.random.key(5), count)
    states, accepted = jax.jit(jax.vmap(oracle.trial, in_axes=(0, None)))(keys, moved)
    # Before they are put on the grid on which they leave, which the sample is fine enough to show.
    ends = CENTER + np.asarray(states.anchor + states.offset)[:, 0]
    return ends[np.asarray(accepted)], float(np.mean(accepted)), data, numbers


def _without_noise(oracle, key, point):
    normal = jax.random.normal
    jax.random.normal = lambda key, shape: 0.0 * normal(key, shape)
    try:
        return oracle.diffuse(key, oracle.init(point))
    finally:
        jax.random.normal = normal


def _moved(state, shift, data, center, numbers):
    """The state at another anchor for the same y, from the formulas of the documentation."""
    unit = float(numbers.anchor_unit)
    anchor = np.round((np.asarray(state.anchor) + shift) / unit) * unit
    a = np.asarray(data.items.features)[:, 0]
    y = np.asarray(data.items.label)[:, 0]
    margins = (np.asarray(center) + anchor) @ a.T
    gradient = np.mean((1.0 / (1.0 + np.exp(-margins)) - y)[:, None] * a, axis=0)
    eta, m, precision = (
        float(x) for x in (numbers.step_size, numbers.convexity, numbers.precision)
    )
    noised = np.asarray(state.anchor + state.offset)
    move = ((noised - anchor) / eta - m * anchor - K * gradient) / precision
    return state._replace(
        anchor=jnp.asarray(anchor),
        offset=jnp.asarray(noised - anchor),
        margins=jnp.asarray(margins),
        gradient=jnp.asarray(gradient),
        move=jnp.asarray(move),
    )


@pytest.mark.parametrize("noised", [0.0, 2.5])
@pytest.mark.parametrize("shift", [0.0, 0.35, -0.8])
def test_a_step_is_exact_for_any_anchor(shift, noised):
    draws, _, data, numbers = trials_at(shift, noised)
    grid = np.linspace(-6, 8, 40_001)
    log_density = -K * (mean_loss(grid[:, None], data) + MU / 2 * (grid - CENTER) ** 2)
    log_density -= (grid - noised) ** 2 / (2.0 * float(numbers.step_size))
    assert kolmogorov(draws, grid, log_density) <= 1.95 / np.sqrt(len(draws))


def test_only_the_speed_depends_on_the_anchor():
    rates = [trials_at(shift, 0.0)[1] for shift in (0.0, 0.35, -0.8)]
    assert rates[0] > 0.85
    assert rates[0] > rates[1] > rates[2]


def worst_data(kind, num_users=64, dim=4):
    rng = np.random.default_rng(7)
    features = rng.standard_normal((num_users, dim))
    labels = rng.integers(0, 2, num_users).astype(float)
    if kind == "collinear":
        features = np.outer(rng.choice([-1.0, 1.0], num_users), np.eye(dim)[0])
    elif kind == "one label":
        features, labels = np.tile(np.eye(dim)[1], (num_users, 1)), np.ones(num_users)
    elif kind == "far labels":
        features, labels = np.tile(np.ones(dim), (num_users, 1)), np.full(num_users, 1e9)
    elif kind == "kinks":
        features, labels = np.tile(np.ones(dim), (num_users, 1)), np.zeros(num_users)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return UserData(Example(jnp.asarray(features)[:, None], jnp.asarray(labels)[:, None]))


KINDS = ("random", "collinear", "one label", "far labels", "kinks")


OBJECTIVES = {"logistic": LOGISTIC, "huber": losses.huber(1.0, 0.5)}


@functools.partial(jax.jit, static_argnums=0)
def steps_from(name, data, k, mu, relative_step, starts, keys):
    """From each start, of one step: how often it is accepted, how far its anchor is, and its gradients."""
    oracle = proximal_oracle(
        OBJECTIVES[name],
        data,
        jnp.zeros(starts.shape[1]),
        inverse_temperature=k,
        convexity=mu,
        relative_step=relative_step,
        num_steps=500,
    )

    def once(start, key):
        first, second = jax.random.split(key)
        state = oracle.diffuse(first, oracle.init(start))
        accepted = jax.vmap(lambda key: oracle.trial(key, state)[1])(jax.random.split(second, 400))
        return jnp.mean(accepted), jnp.linalg.norm(state.move), state.evaluations

    return jax.vmap(once)(starts, keys)


@pytest.mark.parametrize("relative_step", [1.0, 3.0, 6.0])
@pytest.mark.parametrize(
    ("name", "kind"), [("logistic", k) for k in KINDS[:3]] + [("huber", k) for k in KINDS]
)
def test_acceptance_and_gradients_stay_within_their_bounds(name, kind, relative_step):
    data, k, mu = worst_data(kind), 3e4, 1e-2
    numbers = proximal.numbers(
        proximal.setting_of(OBJECTIVES[name], data, jnp.zeros(4)),
        *(k, mu, relative_step, 500, 500),
    )
    # Points near the mode, near the kink, and as far away as the chain may come.
    reach = float(numbers.reach)
    starts = jnp.asarray(
        [[0.0] * 4, [0.25] * 4, [-0.3, 0.2, 0.0, 1.0], [0.4 * reach] * 4, [-30.0, 1, 1, 1]]
    )
    keys = jax.random.split(jax.random.key(1), len(starts))
    rates, away, gradients = steps_from(name, data, k, mu, relative_step, starts, keys)
    assert float(jnp.max(away) * jnp.sqrt(numbers.precision)) <= proximal.TOLERANCE
    assert int(jnp.max(gradients)) <= float(numbers.most_gradients)
    # Four standard errors of 400 trials below the bound at most.
    least = float(numbers.acceptance)
    assert float(jnp.min(rates)) >= least - 4.0 * np.sqrt(least * (1 - least) / 400)


@pytest.mark.parametrize("relative_step", [1.0, 3.0])
def test_the_bound_on_acceptance_is_nearly_attained(relative_step):
    # One row for each direction, within the threshold: the exponent hardly varies, at all its mean.
    dim, k, mu = 64, 1e4, 1e-3
    data = UserData(Example(np.eye(dim)[:, None], np.zeros((dim, 1))))

    @jax.jit
    def rate_at(start):
        oracle = proximal_oracle(
            losses.huber(1.0, 100.0),
            data,
            jnp.zeros(dim),
            inverse_temperature=k,
            convexity=mu,
            relative_step=relative_step,
            num_steps=100,
        )
        state = oracle.diffuse(jax.random.key(0), oracle.init(start))
        keys = jax.random.split(jax.random.key(1), 20_000)
        return jnp.mean(jax.vmap(lambda key: oracle.trial(key, state)[1])(keys))

    claimed = proximal.numbers(
        proximal.setting_of(losses.huber(1.0, 100.0), data, jnp.zeros(dim)),
        *(k, mu, relative_step, 100, 100),
    ).acceptance
    rate = float(rate_at(np.full(dim, 0.1)))
    assert float(claimed) <= rate <= 1.1 * np.exp(-0.5 * relative_step)


def test_a_bound_on_gradients_is_needed():
    # Far from the anchor of before many are taken, and the bound is of the right size.
    data, center = worst_data("one label"), np.zeros(4)
    numbers = proximal.numbers(
        proximal.setting_of(LOGISTIC, data, center), 3e4, 1e-2, 3.0, 500, 500
    )

    @jax.jit
    def states(start):
        oracle = proximal_oracle(
            LOGISTIC, data, center, inverse_temperature=3e4, convexity=1e-2, num_steps=500
        )
        state = oracle.diffuse(jax.random.key(0), oracle.init(start))
        return state, oracle.diffuse(jax.random.key(1), state)

    state, again = states(np.full(4, -4.0))
    assert int(state.evaluations) > 0.25 * float(numbers.most_gradients)
    assert int(again.evaluations) - int(state.evaluations) < int(state.evaluations)


def test_chains_have_the_law_of_the_target():
    data, center = one_column(), jnp.array([CENTER])

    def chain(key):
        oracle = proximal_oracle(
            LOGISTIC, data, center, inverse_temperature=K, convexity=MU, num_steps=25
        )
        start = jnp.zeros(1)
        return alternating_sampler.run(key, oracle, start, num_steps=25, num_trials=60)

    made = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 8_000))
    assert np.all(np.asarray(made.num_accepted) == 25)
    grid = np.linspace(-6, 8, 40_001)
    log_density = -K * (mean_loss(grid[:, None], data) + MU / 2 * (grid - CENTER) ** 2)
    draws = CENTER + np.asarray(made.params)[:, 0]
    assert kolmogorov(draws, grid, log_density) <= 1.95 / np.sqrt(len(draws))


@pytest.mark.slow
def test_draws_are_those_of_the_mean_over_users_of_their_means():
    # Huber's loss within its threshold: a Gaussian, of a weighted least squares problem.
    temperature, bend = 30.0, 0.5
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 5, 2))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    labels = rng.standard_normal((12, 5))
    counts = np.array([5, 1, 1, 0, 2, 5, 4, 3, 1, 1, 1, 2])
    mask = np.arange(5) < counts[:, None]
    data = UserData(Example(jnp.asarray(features), jnp.asarray(labels)), jnp.asarray(mask))
    oracle = proximal_oracle(
        losses.huber(1.0, 40.0),
        *(data, jnp.zeros(2)),
        **{"inverse_temperature": temperature, "convexity": bend, "num_steps": 25},
    )

    def chain(key):
        run = alternating_sampler.run(key, oracle, jnp.zeros(2), num_steps=25, num_trials=200)
        return run.params

    draws = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 6_000)))
    shares = mask / np.maximum(counts, 1)[:, None] / 12
    curvature = np.einsum("um,umi,umj->ij", shares, features, features) + bend * np.eye(2)
    mean = np.linalg.solve(curvature, np.einsum("um,umi,um->i", shares, features, labels))
    covariance = np.linalg.inv(curvature) / temperature
    errors = np.sqrt(np.diag(covariance) / len(draws))
    assert np.all(np.abs(draws.mean(0) - mean) <= 4 * errors)
    whitened = (draws - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(2), atol=5 / np.sqrt(len(draws)))
