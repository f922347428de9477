"""Draws without a chain: closed forms against SciPy, and rejection at the target against quadrature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import domains
from dpsco_jax.problems import _remainders
from dpsco_jax.solvers.sampling import attempt_bounds, exact, target_rejection

pytestmark = pytest.mark.usefixtures("float64")

DRAWS = 4000
CRITICAL = 1.95 / math.sqrt(DRAWS)


def many(draw, seed, number=DRAWS):
    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(seed), number))


def test_mean_estimation_is_the_gaussian_mechanism():
    mean = jnp.array([1.0, -2.0, 0.5])
    found = many(lambda key: exact.mean_estimation(key, mean, 25.0), 0)
    assert bool(jnp.all(found.accepted))
    for j in range(3):
        law = stats.norm(float(mean[j]), 0.2)
        assert stats.kstest(np.asarray(found.params[:, j]), law.cdf).statistic < CRITICAL
    # The excess of ½‖x - s‖² is d/(2k), within 5 standard errors.
    excess = 0.5 * np.sum(np.asarray(found.params - mean) ** 2, axis=1)
    assert abs(excess.mean() - 3 / 50) < 5 * excess.std() / math.sqrt(DRAWS)


def test_linear_losses_attain_the_bound_of_the_theorem():
    """Opposite users of n = 7: draws by one key are apart by s deviations, exactly."""
    n, k, mu, slope = 7, 3.0, 0.4, 2.5
    center, key = jnp.array([10.0]), jax.random.key(3)
    one, other = (
        exact.linear(key, jnp.array([sign * slope / n]), center, k, mu).params[0]
        for sign in (1, -1)
    )
    s = 2 * slope * math.sqrt(k) / (n * math.sqrt(mu))
    assert abs(float(other - one)) * math.sqrt(k * mu) == pytest.approx(s, rel=1e-12)
    found = many(lambda key: exact.linear(key, jnp.array([slope / n]), center, k, mu), 4)
    law = stats.norm(10.0 - slope / n / mu, 1 / math.sqrt(k * mu))
    assert stats.kstest(np.asarray(found.params[:, 0]), law.cdf).statistic < CRITICAL


def test_on_a_box_the_law_is_truncated_also_six_deviations_outside():
    lower, upper = np.array([-1.0, 0.0]), np.array([1.0, 0.3])
    box = domains.box(lower, upper)
    k, mu = 4.0, 1.0  # deviation ½, mean 4 = upper + 6 deviations, and one inside
    mean = jnp.array([-4.0, -0.1])
    found = many(lambda key: exact.linear(key, mean, jnp.zeros(2), k, mu, box), 5)
    assert bool(jnp.all(found.accepted))
    for j, at in enumerate((4.0, 0.1)):
        law = stats.truncnorm((lower[j] - at) / 0.5, (upper[j] - at) / 0.5, at, 0.5)
        assert stats.kstest(np.asarray(found.params[:, j]), law.cdf).statistic < CRITICAL


def test_on_a_ball_the_law_is_that_of_the_marginal():
    """Mean outside by 6 deviations; along it the density is normal times the mass of a slice."""
    k, mu, dim, radius = 9.0, 1.0, 3, 1.0
    ball = domains.ball(radius)
    mean = jnp.array([-3.0, 0.0, 0.0])
    likely = attempt_bounds.ball_acceptance(dim, radius, 1 / 3, 6.0)
    attempts = 60
    assert attempt_bounds.attempts_variation(likely, attempts) < 1e-4
    found = many(
        lambda key: exact.linear(key, mean, jnp.zeros(3), k, mu, ball, num_attempts=attempts), 6
    )
    assert bool(jnp.all(found.accepted))
    grid = np.linspace(-radius, radius, 20_001)
    across = -np.expm1(-np.maximum(radius**2 - grid**2, 0.0) * 9.0 / 2)
    density = stats.norm.pdf(grid, 3.0, 1 / 3) * across
    mass = np.cumsum(density) / np.sum(density)
    law = np.interp(np.asarray(found.params[:, 0]), grid, mass)
    assert stats.kstest(law, "uniform").statistic < CRITICAL
    assert float(jnp.max(jnp.linalg.norm(found.params, axis=1))) <= radius * (1 + 1e-12)


ROWS = jnp.array([[1.0, 0.0], [0.8, 0.6], [-0.6, 0.8], [1.0, 0.0], [0.0, 1.0], [0.6, -0.8]])
LABELS = jnp.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
K, MU = 30.0, 0.25
SETTING = {"lipschitz": 1.0, "smoothness": 0.25, "linear_model": True}


def gradient_of(rows, labels):
    return lambda x: (jax.nn.sigmoid(rows @ x) - labels) @ rows / len(labels)


def remainder_of(rows):
    return lambda w, move: jnp.mean(_remainders.softplus(rows @ w, rows @ move))


def drawn(numbers, center, seed, rows=ROWS, labels=LABELS, number=DRAWS, k=K):
    return many(
        lambda key: target_rejection.draw(
            *(key, numbers, center, k, MU),
            gradient=gradient_of(rows, labels),
            remainder=remainder_of(rows),
        ),
        seed,
        number,
    )


def target(center):
    """The marginals of the law on a fine grid."""
    ends = np.linspace(-4, 4, 401)
    x = np.stack(np.meshgrid(ends, ends, indexing="ij"), axis=-1)
    margins = x @ np.asarray(ROWS).T
    loss = np.mean(np.logaddexp(0, margins) - np.asarray(LABELS) * margins, axis=-1)
    potential = K * (loss + 0.5 * MU * np.sum((x - np.asarray(center)) ** 2, axis=-1))
    mass = np.exp(potential.min() - potential)
    return ends, mass / mass.sum()


@pytest.mark.parametrize("steps", [None, 0])
def test_rejection_at_the_target_is_exact_whatever_the_anchor(steps):
    numbers = target_rejection.planned(1e-9, 2, K, MU, **SETTING)
    if steps is not None:  # the anchor is the centre, far from the minimizer
        numbers = numbers._replace(num_gradients=steps, num_trials=10_000)
    center = jnp.array([-0.5, 0.25])
    number = DRAWS if steps is None else 1000
    found = drawn(numbers, center, 7, number=number)
    assert bool(jnp.all(found.accepted))
    ends, mass = target(center)
    for j in range(2):
        law = np.cumsum(mass.sum(axis=1 - j))
        # The grid of the quadrature has a tenth of a deviation.
        at = np.interp(np.asarray(found.params[:, j]), ends + 0.5 * (ends[1] - ends[0]), law)
        assert stats.kstest(at, "uniform").statistic < 1.95 / math.sqrt(number) + 0.003


def test_trials_succeed_as_often_as_is_proven_on_the_worst_rows():
    for linear, rows in ((True, jnp.ones((6, 1)) * jnp.array([1.0, 0.0])), (False, ROWS)):
        numbers = target_rejection.planned(1e-9, 2, K, MU, **SETTING | {"linear_model": linear})
        for labels in (jnp.full(6, 0.5), jnp.ones(6), LABELS):
            found = drawn(numbers, jnp.zeros(2), 8, rows, labels, 500)
            share = 500 / float(jnp.sum(found.num_attempts))
            assert share > numbers.acceptance * (1 - 0.1)
            # No more than the three that curvature below its bound makes.
            assert share < 3.5 * numbers.acceptance ** (0.3)


def test_plans_of_rejection():
    numbers = target_rejection.planned(1e-9, 5, K, MU, **SETTING)
    assert numbers.acceptance == pytest.approx(math.exp(-0.5 * 1.25), rel=1e-5)
    wide = target_rejection.planned(1e-9, 5, K, MU, 1.0, 0.25)
    assert wide.acceptance == pytest.approx(math.exp(-0.5 * 5.25), rel=1e-5)
    for made in (numbers, wide):
        assert made.variation == pytest.approx((1 - made.acceptance) ** made.num_trials, rel=1e-6)
        assert made.variation <= 1e-9 < (1 - made.acceptance) ** (made.num_trials - 1)
    with pytest.raises(ValueError, match="smoothness must be a number"):
        target_rejection.planned(1e-9, 3, K, MU, 1.0, None)
    with pytest.raises(Infeasible, match="convexity must be at least") as refusal:
        target_rejection.planned(1e-9, 3, K, 1e-3, 1.0, 1.0)
    enough = refusal.value.needed["convexity"]
    target_rejection.planned(1e-9, 3, K, enough, 1.0, 1.0)
    with pytest.raises(Infeasible):
        target_rejection.planned(1e-9, 3, K, 0.999 * enough, 1.0, 1.0)


@pytest.mark.parametrize("k", [30.0, 3e8])
def test_anchors_are_as_near_as_is_planned(k):
    """The mean of the proposal is within θ = ½ deviations of the anchor, after J gradients."""
    numbers = target_rejection.planned(1e-9, 2, k, MU, **SETTING)
    # Of losses without curvature anchors come nearer as slowly as can be.
    for gradient in (gradient_of(ROWS, jnp.ones(6)), lambda x: jnp.array([0.6, -0.8])):
        x = jnp.zeros(2)
        for _ in range(numbers.num_gradients):
            x = x - numbers.step * (gradient(x) + MU * x)
        move = -(gradient(x) / MU + x)
        assert float(jnp.linalg.norm(move)) * math.sqrt(k * MU) <= 0.25


def test_draws_lie_on_a_grid_that_knows_no_data():
    numbers = target_rejection.planned(1e-9, 2, K, MU, **SETTING)
    deviation = 1 / math.sqrt(K * MU)
    unit = 2.0 ** math.floor(math.log2(deviation / 32))
    for labels in (LABELS, 1.0 - LABELS):
        found = np.asarray(drawn(numbers, jnp.zeros(2), 9, labels=labels, number=200).params) / unit
        np.testing.assert_array_equal(found, np.round(found))


def test_a_draw_that_is_capped_says_so_and_stays_finite():
    numbers = target_rejection.planned(1e-9, 2, K, MU, **SETTING)._replace(num_trials=1)
    found = drawn(numbers, jnp.zeros(2), 10, number=200)
    assert 0 < int(jnp.sum(found.accepted)) < 200
    assert bool(jnp.all(jnp.isfinite(found.params)))
    assert bool(jnp.all(found.num_attempts == 1))


def test_numbers_of_float32_do_not_make_the_variance_one_of_float32():
    key, zero = jax.random.key(0), jnp.zeros(2)
    for kind in (np.float32, jnp.float32):
        k, mu = kind(3.0), kind(0.7)
        wide = float(k), float(mu)
        np.testing.assert_array_equal(
            exact.mean_estimation(key, zero, k).params, exact.mean_estimation(key, zero, 3.0).params
        )
        np.testing.assert_array_equal(
            exact.linear(key, zero + 1.0, zero, k, mu).params,
            exact.linear(key, zero + 1.0, zero, *wide).params,
        )


def test_a_box_of_another_structure_is_refused():
    tree = domains.box({"a": np.zeros(2)}, {"a": np.ones(2)})
    with pytest.raises(ValueError, match="domain must be a box whose ends are vectors"):
        exact.mean_estimation(jax.random.key(0), jnp.zeros(2), 1.0, tree)


def test_anchors_beyond_the_digits_of_float64_are_refused():
    target_rejection.planned(1e-9, 2, 1e25, 0.5, 1.0, 0.25)
    with pytest.raises(ValueError, match=r"inverse_temperature must be such that .* float64"):
        target_rejection.planned(1e-9, 2, 1e30, 0.5, 1.0, 0.25)


def test_bad_arguments():
    key, zero = jax.random.key(0), jnp.zeros(2)
    numbers = target_rejection.planned(1e-9, 2, K, MU, **SETTING)
    calls = {
        "inverse_temperature": lambda: exact.mean_estimation(key, zero, 0.0),
        "mean": lambda: exact.linear(key, jnp.zeros(3), zero, 1.0, 1.0),
        "convexity": lambda: exact.linear(key, zero, zero, 1.0, -1.0),
        "domain": lambda: exact.mean_estimation(key, zero, 1.0, "ball"),
        "numbers": lambda: target_rejection.draw(
            key, 3, zero, 1.0, 1.0, gradient=abs, remainder=max
        ),
        "gradient": lambda: target_rejection.draw(
            key, numbers, zero, 1.0, 1.0, gradient=3, remainder=max
        ),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=name):
            call()
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        exact.mean_estimation(key, jnp.zeros(2), 1.0)
