"""Noisy SGD on a sample: its models in closed form, its law, and partitions that do not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import elements, losses, synthetic_elements
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.partition import Partition, assign_elements
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import first_order, methods
from dpsco_jax.solvers.element_level import aprox, glm, m_estimation
from dpsco_jax.solvers.user_level import sgd

SECOND = np.array([[1.0, 0.3], [0.3, 0.7]])
SLOPE = np.array([0.5, -0.3])
NOISE = 0.8
START = jnp.array([0.7, -0.2])
ITEM = Example(jnp.array([1.5, -2.0]), jnp.float32(1.0))


def logistic(point):
    return losses.logistic(10.0).loss(point, ITEM)


def test_models_of_one_item_in_closed_form():
    whole, x = domains.whole_space(), np.array([1.5, -2.0])
    margin = float(x @ np.asarray(START))
    value, slope = np.log1p(np.exp(-margin)), -1 / (1 + np.exp(margin))
    for step in (0.1, 3.0):
        linear = aprox.mapping(logistic, START, step, whole)
        np.testing.assert_allclose(linear, slope * x, rtol=1e-5)
        truncated = aprox.mapping(logistic, START, step, whole, "truncated")
        length = min(step, value / (slope**2 * x @ x))
        np.testing.assert_allclose(truncated, length / step * slope * x, rtol=1e-4)

        # The proximal point moves along x to the root of one equation.
        def root(m, step=step):
            return m - margin - step * (x @ x) / (1 + np.exp(m))

        wanted = scipy.optimize.brentq(root, margin, margin + 100)
        proximal = aprox.mapping(
            logistic, START, step, whole, "proximal", smoothness=0.25 * x @ x, inner_steps=200
        )
        np.testing.assert_allclose(proximal, (margin - wanted) / (step * (x @ x)) * x, rtol=1e-4)
    assert length < 3.0  # the truncated model was met


def test_models_with_a_constraint_minimize_what_they_say():
    domain, step = domains.ball(0.8), 2.0
    value, slope = jax.value_and_grad(logistic)(START)
    models = {
        "linear": lambda v: value + slope @ (v - START),
        "truncated": lambda v: jnp.maximum(value + slope @ (v - START), 0.05),
        "proximal": logistic,
    }
    angles, radii = np.linspace(0, 2 * np.pi, 721), np.linspace(0, 0.8, 161)
    grid = np.stack([np.outer(radii, np.cos(angles)), np.outer(radii, np.sin(angles))], -1)
    for name, model in models.items():
        g = aprox.mapping(
            logistic, START, step, domain, name, infimum=0.05, smoothness=1.6, inner_steps=300
        )
        after = START - step * g

        def regularized(v, model=model):
            return model(v) + jnp.sum((v - START) ** 2) / (2 * step)

        best = jnp.min(jax.vmap(regularized)(grid.reshape(-1, 2).astype(np.float32)))
        assert float(jnp.linalg.norm(after)) <= 0.8 + 1e-5
        assert float(regularized(after)) <= float(best) + 1e-5, name
        assert float(jnp.linalg.norm(g)) <= float(jnp.linalg.norm(slope)) * (1 + 1e-5)


def test_no_noise_and_one_record_is_gradient_descent_on_the_element_loss():
    data = synthetic_elements.logistic(jax.random.key(0), 1, 3, items_per_user=12).data
    objective = losses.logistic(2.0, domains.ball(1.0), ridge=0.1)
    start, wanted, total = jnp.zeros(10), np.zeros(10), np.zeros(10)
    steps = {"num_steps": 6, "initial_step": 1.5, "decay": 0.7}
    run = jax.jit(lambda key: m_estimation.noisy_sgd(key, objective, data, start, **steps))(
        jax.random.key(1)
    )
    slope = jax.jit(jax.grad(elements.mean_element_loss(objective)))
    for k in range(1, 7):
        wanted = wanted - 1.5 * k**-0.7 * np.asarray(slope(jnp.asarray(wanted, jnp.float32), data))
        wanted /= max(1.0, np.linalg.norm(wanted))
        total += wanted
    np.testing.assert_allclose(run.last, wanted, atol=1e-5)
    np.testing.assert_allclose(run.average, total / 6, atol=1e-5)


def test_records_are_drawn_with_replacement_and_noise_stays_in_the_domain():
    points = jnp.eye(4)[:, None]
    objective = losses.squared_distance(1.0, 5.0)
    arguments = {"num_steps": 1, "initial_step": 1.0, "decay": 0.6}

    def last(key, stddev=0.0, steps=1):
        given = {**arguments, "num_steps": steps, "noise_stddev": stddev}
        return m_estimation.noisy_sgd(key, objective, UserData(points), jnp.zeros(4), **given).last

    found = np.asarray(jax.jit(jax.vmap(last))(jax.random.split(jax.random.key(2), 400)))
    shares = found.mean(axis=0)
    assert (np.abs(shares - 0.25) < 4 * np.sqrt(0.1875 / 400)).all()
    loud = jax.jit(jax.vmap(lambda k: last(k, 100.0, 3)))(jax.random.split(jax.random.key(3), 20))
    np.testing.assert_allclose(np.linalg.norm(loud, axis=1), 5.0, rtol=1e-5)
    # The noise of a step of length one is what is added to it: variance σ² on each coordinate.
    quiet = jax.jit(jax.vmap(lambda k: last(k, 0.01)))(jax.random.split(jax.random.key(4), 400))
    away = np.asarray(quiet) - np.round(np.asarray(quiet))
    np.testing.assert_allclose(away.std(), 0.01, rtol=0.1)


def covariance_ratio(num_records, runs, stddev, ratio=2.0):
    root = np.linalg.cholesky(SECOND)
    objective = losses.squared(feature_bound=100.0, label_bound=1e3, radius=5.0)

    def one(key):
        x_key, noise_key, run_key = jax.random.split(key, 3)
        x = jax.random.normal(x_key, (num_records, 2)) @ root.T.astype(np.float32)
        y = x @ SLOPE.astype(np.float32) + NOISE * jax.random.normal(noise_key, (num_records,))
        data = UserData(Example(x[:, None], y[:, None]))
        return m_estimation.noisy_sgd(
            run_key,
            objective,
            data,
            jnp.zeros(2),
            num_steps=int(ratio * num_records),
            initial_step=0.5,
            decay=0.6,
            noise_stddev=stddev,
        ).average

    averages = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), runs))
    found = num_records * np.cov(np.asarray(averages, np.float64).T)
    wanted = m_estimation.limit_covariance(SECOND, NOISE**2 * SECOND, ratio, stddev)
    return found / wanted


def test_covariance_near_theorem_1():
    ratio = covariance_ratio(300, 300, 1.0)
    assert (np.abs(np.diag(ratio) - 1.0) < 0.45).all()


def test_limit_covariance_in_closed_form():
    inverse = np.linalg.inv(SECOND)
    own = NOISE**2 * SECOND
    np.testing.assert_allclose(
        m_estimation.limit_covariance(SECOND, own, 2.0, 1.5),
        NOISE**2 * 1.5 * inverse + 1.125 * inverse @ inverse,
    )
    shape = np.diag([1.0, 4.0])
    np.testing.assert_allclose(
        m_estimation.limit_covariance(SECOND, own, np.inf, 3.0, shape), NOISE**2 * inverse
    )
    np.testing.assert_allclose(
        m_estimation.limit_covariance(np.eye(2), 0 * own, 0.5, 1.0, shape), 2 * shape
    )
    for bad in (-SECOND, SECOND[0], np.array([[1.0, 1.0], [0.0, 1.0]])):
        with pytest.raises(ValueError, match=r"^hessian must be"):
            m_estimation.limit_covariance(bad, own, 2.0)


def grouped_rows(num_users=150, items=30, dim=3):
    rng = np.random.default_rng(6)
    who = np.repeat(np.arange(num_users), items)
    x = rng.normal(size=(len(who), dim)) + 0.5 * rng.normal(size=(num_users, dim))[who]
    y = rng.random(len(who)) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5, 0.25])))
    return who, Example(x.astype(np.float32), y.astype(np.float32)), rng


@pytest.mark.slow
def test_the_slope_is_the_same_for_every_partition():
    who, rows, rng = grouped_rows()
    objective = losses.logistic(20.0, ridge=1e-7)
    truth, found, influences = np.array([1.0, -0.5, 0.25]), [], []
    for number in (1, 5, 20):
        partition = Partition(rng.normal(size=(number, 3)), public=True)
        element = assign_elements(partition, rows.features)
        data = elements.from_rows(
            jax.random.key(7), who, element, rows, number, None, order="sorted"
        )
        slope = glm.minimizer(objective, data, 3)
        gradients = np.asarray(glm.user_gradients(objective, slope, data), np.float64)
        np.testing.assert_allclose(gradients.mean(axis=0), 0.0, atol=2e-6 * number)
        shares, given = glm.by_elements(objective, slope, data)
        whole = jax.jit(elements.mean_element_loss(objective))(
            jnp.asarray(slope, jnp.float32), data
        )
        np.testing.assert_allclose(np.asarray(shares) @ np.asarray(given), whole, rtol=1e-4)
        influence = gradients @ np.linalg.inv(glm.hessian(objective, slope, data))
        own = np.sqrt((influence**2).sum(axis=0)) / len(influence)
        assert (np.abs(slope - truth) < 4 * own).all()
        if number == 5:
            stated = glm.standard_errors(objective, slope, data)
            np.testing.assert_allclose(stated, own, rtol=1e-3)
        found.append(slope)
        influences.append(influence)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        error = (influences[i] - influences[j]).std(axis=0) / np.sqrt(150)
        assert (np.abs(found[i] - found[j]) < 3 * error).all()
        assert (np.abs(found[i] - found[j]) > 1e-4).any()


def test_hessian_and_covariance_by_hand():
    who, rows, _ = grouped_rows(6, 4)
    data = elements.from_rows(jax.random.key(8), who, np.arange(24) % 2, rows, 2, 2, order="sorted")
    w = np.array([0.3, 0.1, -0.2])
    x = rows.features.reshape(6, 4, 3).astype(float)
    p = 1 / (1 + np.exp(-x @ w))
    # Two elements with two items each: sums over items, halved.
    wanted = np.einsum("ui,uij,uik->jk", p * (1 - p), x, x) / 2 / 6
    objective = losses.logistic(100.0)
    np.testing.assert_allclose(glm.hessian(objective, w, data), wanted, rtol=1e-4)
    gradients = np.einsum("ui,uij->uj", p - rows.label.reshape(6, 4), x) / 2
    np.testing.assert_allclose(glm.user_gradients(objective, w, data), gradients, rtol=1e-4)
    np.testing.assert_allclose(
        glm.gradient_covariance(objective, w, data), np.cov(gradients.T, bias=True), rtol=1e-4
    )
    # The ridge is that of the loss over elements, whatever their number is.
    slope = glm.minimizer(losses.logistic(100.0, ridge=0.3), data, 3)
    p = 1 / (1 + np.exp(-x @ slope))
    gradients = np.einsum("ui,uij->uj", p - rows.label.reshape(6, 4), x) / 2
    np.testing.assert_allclose(gradients.mean(axis=0) + 0.3 * slope, 0.0, atol=1e-5)


def test_the_method_drives_a_private_mean_of_one_record():
    objective = losses.logistic(2.0, domains.ball(1.0))
    made = synthetic_elements.logistic(jax.random.key(9), 10, 2, items_per_user=6)
    units = elements.as_units(made.data)
    problem = Problem(objective, num_users=100, dim=10)
    plan = sgd.plan(
        problem, Budget(2.0, 1e-5), num_steps=5, batch_size=1, sampling="fixed", accountant="rdp"
    )
    assert plan.certificate().epsilon <= 2.0
    arguments = (plan.mean, methods.PowerSteps(0.5, 0.6), objective, units, jnp.zeros(10), 5, 5)
    found = jax.jit(lambda key: first_order.run(key, *arguments))(jax.random.key(10))
    assert float(jnp.linalg.norm(found.params)) <= 1.0 + 1e-5
    paid, planned = (float(privacy.epsilon(loss, 1e-5)) for loss in (found.privacy, plan.loss()))
    assert paid == pytest.approx(planned, rel=1e-4)
    assert paid <= 2.0 + 1e-6


def test_bad_arguments_are_refused_by_name():
    data = ElementData(Example(jnp.zeros((2, 3, 1, 2)), jnp.zeros((2, 3, 1))))
    smooth, kinked = losses.logistic(1.0), losses.hinge(1.0)
    good = {
        "objective": smooth,
        "data": data,
        "params": jnp.zeros(2),
        "num_steps": 2,
        "initial_step": 1.0,
    }
    for data in (None, (1, 2)):
        with pytest.raises(ValueError, match=r"^data must be"):
            m_estimation.noisy_sgd(jax.random.key(0), **{**good, "data": data})
    with pytest.raises(ValueError, match=r"^objective.smoothness must be"):
        m_estimation.noisy_sgd(
            jax.random.key(0), **{**good, "objective": kinked, "model": "proximal"}
        )
