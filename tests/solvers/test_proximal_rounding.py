"""What float64 does to a step of the proximal sampler, against 60 digits.

The bounds are those of docs/theory/proximal_sampler.md, of which each line is checked by itself: gradients,
means of proposals, and the test of acceptance, on data where plain sums lose most.
"""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _rows
from dpsco_jax.solvers.sampling import proximal_oracle as proximal
from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle

UNIT = 2.0**-53
ROWS, DIM, MU, STEPS = 3000, 3, 1e-2, 1000
K = 1e7
DELTA = 0.5


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True), mpmath.workdps(60):
        yield


def objective(name):
    return losses.logistic(1.0) if name == "logistic" else losses.huber(1.0, DELTA)


@functools.cache
def made(name):
    """Rows that pull one way first and back afterwards: partial sums are ROWS times the result."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, DIM))
    features[ROWS // 2 :] = -features[: ROWS - ROWS // 2] + 1e-7
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = (
        rng.integers(0, 2, ROWS).astype(float) if name == "logistic" else rng.standard_normal(ROWS)
    )
    data = UserData(Example(jnp.asarray(features)[:, None], jnp.asarray(labels)[:, None]))
    center = jnp.array([0.3, -0.2, 0.1])
    setting = proximal.setting_of(objective(name), data, center)
    numbers = proximal.numbers(setting, K, MU, 3.0, STEPS, STEPS)
    oracle = proximal_oracle(
        objective(name), data, center, inverse_temperature=K, convexity=MU, num_steps=STEPS
    )
    rows = _rows.prepare(objective(name).linear_model, data, DIM)
    features, labels = np.asarray(rows.features), np.asarray(rows.labels)
    unit = float(numbers.anchor_unit) * _rows.feature_unit(1.0)
    shifts = np.round(features @ np.asarray(center) / unit) * unit
    return oracle, numbers, setting, features, labels, shifts


@functools.cache
def states(name):
    """A state, the one after a move to another y, and the noise of that move."""
    oracle, numbers, *_ = made(name)
    first = jax.jit(
        lambda: oracle.diffuse(jax.random.key(1), oracle.init(jnp.array([0.5, 0.1, -0.4])))
    )()
    key = jax.random.key(2)
    noise = np.sqrt(float(numbers.step_size)) * np.asarray(
        jax.random.normal(jax.random.key(2), (DIM,))
    )
    return first, jax.jit(oracle.diffuse)(key, first), noise


def big(values):
    return [mpmath.mpf(float(value)) for value in values]


def link(name, margin, label):
    """The link and its derivative, with as many digits as wanted."""
    if name == "logistic":
        return mpmath.log1p(mpmath.exp(margin)) - label * margin, 1 / (
            1 + mpmath.exp(-margin)
        ) - label
    slope = min(max(margin - label, -mpmath.mpf(DELTA)), mpmath.mpf(DELTA))
    return slope * (margin - label) - slope * slope / 2, slope


def exact_margins(name, anchor):
    _, _, _, features, _, shifts = made(name)
    w = big(anchor)
    return [
        mpmath.mpf(float(shift))
        + sum(mpmath.mpf(float(a)) * b for a, b in zip(row, w, strict=True))
        for row, shift in zip(features, shifts, strict=True)
    ]


def exact_gradient(name, anchor):
    _, _, _, features, labels, _ = made(name)
    total = [mpmath.mpf(0)] * DIM
    for row, margin, label in zip(features, exact_margins(name, anchor), labels, strict=True):
        slope = link(name, margin, mpmath.mpf(float(label)))[1]
        total = [t + slope * mpmath.mpf(float(a)) for t, a in zip(total, row, strict=True)]
    return [t / ROWS for t in total]


def norm(values):
    return mpmath.sqrt(sum(value * value for value in values))


NAMES = ("logistic", "huber")


@pytest.mark.parametrize("name", NAMES)
def test_margins_of_anchors_are_exact(name):
    state = states(name)[1]
    for found, true in zip(state.margins, exact_margins(name, state.anchor), strict=True):
        assert mpmath.mpf(float(found)) == true


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_exact_to_some_roundings_of_the_slope(name):
    setting, state = made(name)[2], states(name)[1]
    true = exact_gradient(name, state.anchor)
    off = norm([mpmath.mpf(float(g)) - t for g, t in zip(state.gradient, true, strict=True)])
    summed = 2.0 ** (2 * 12 - 33)
    assert off <= (7 + summed) * UNIT * setting.lipschitz
    # Of a plain sum in the worst order nothing like this is known.
    assert norm(true) < 0.2 * setting.lipschitz


@pytest.mark.parametrize("name", NAMES)
def test_means_of_proposals_are_exact_to_their_share(name):
    _, numbers, setting, *_ = made(name)
    before, after, noise = states(name)
    eta, m, precision = (
        mpmath.mpf(float(x)) for x in (numbers.step_size, numbers.convexity, numbers.precision)
    )
    true = exact_gradient(name, after.anchor)
    mean = []
    for j in range(DIM):
        point = sum(big([before.anchor[j], before.offset[j], noise[j]]))
        away = point - mpmath.mpf(float(after.anchor[j]))
        mean.append(
            (away / eta - m * mpmath.mpf(float(after.anchor[j])) - mpmath.mpf(K) * true[j])
            / precision
        )
    off = norm([mpmath.mpf(float(q)) - t for q, t in zip(after.move, mean, strict=True)])
    kappa = K * setting.lipschitz / mpmath.sqrt(precision)
    rho = m * float(numbers.reach) / mpmath.sqrt(precision)
    # Half of it is what a Gaussian moves by; the link's share of κ is not in here.
    allowed = 2 * UNIT * (9 * kappa + 5 * rho + 4 + DIM**0.5)
    assert off * mpmath.sqrt(precision) <= allowed
    # It is not far above what happens either.
    assert off * mpmath.sqrt(precision) >= 1e-4 * allowed


@pytest.mark.parametrize("name", NAMES)
def test_the_test_of_acceptance_is_exact_to_its_share(name, monkeypatch):
    oracle, _, _, features, labels, _ = made(name)
    state = states(name)[1]
    # Three proposals: with thresholds just above and just below they are refused and accepted.
    for seed in range(3):
        key = jax.random.key(10 + seed)
        proposed, _ = oracle.trial(key, state)
        offset = big(proposed.offset)
        exponent = mpmath.mpf(0)
        for row, margin, label in zip(
            features, exact_margins(name, state.anchor), labels, strict=True
        ):
            y = mpmath.mpf(float(label))
            change = sum(mpmath.mpf(float(a)) * b for a, b in zip(row, offset, strict=True))
            value, slope = link(name, margin, y)
            exponent += link(name, margin + change, y)[0] - value - slope * change
        exponent *= mpmath.mpf(K) / ROWS
        share = UNIT * (70 * float(exponent) + 2 * 3.0 + 6 + 6.5 * 3.0 * (DIM + 1) ** 0.5)
        chance = float(mpmath.exp(-exponent))
        assert 1e-3 < chance < 1.0
        for factor, expected in ((1 - 2 * share, True), (1 + 2 * share, False)):
            threshold = chance * factor
            monkeypatch.setattr(jax.random, "uniform", lambda key, threshold=threshold: threshold)
            accepted = oracle.trial(jax.random.key(10 + seed), state)[1]
            monkeypatch.undo()
            assert bool(accepted) is expected


def test_points_are_not_rounded_to_the_anchor():
    before, after, _ = states("logistic")
    for j in range(DIM):
        point = sum(big([before.anchor[j], before.offset[j]]))
        again = sum(big([after.anchor[j], after.offset[j]]))
        assert abs(point - again) <= UNIT * abs(float(after.offset[j]))
