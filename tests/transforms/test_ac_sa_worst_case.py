"""The worst case of AC-SA over all smooth convex functions, by semidefinite programming (PEPit)."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PEPit import PEP, Point
from PEPit.functions import SmoothStronglyConvexFunction

from dpsco_jax import transforms


def our_coefficients(smoothness, strong_convexity, horizon):
    """Query points and last aggregate as combinations of (w_0, g_1, ..., g_T), from the code itself.

    The method is linear in its start and its gradients, so it is run on unit vectors.
    """
    method = transforms.ac_sa(smoothness, strong_convexity)
    params = jnp.eye(horizon + 1)[0]
    state, queries = method.init(params), []
    for gradient in jnp.eye(horizon + 1)[1:]:
        queries.append(np.asarray(params, np.float64))
        updates, state = method.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    final = np.asarray(transforms.ac_sa_eval_params(state, params), np.float64)
    return np.stack(queries), final


def textbook_coefficients(smoothness, mu, horizon):
    """The same from the thesis's formulas, in float64."""
    unit = np.eye(horizon + 1)
    x = ag = unit[0]
    queries = []
    for t in range(1, horizon + 1):
        alpha, gamma = 2 / (t + 1), 4 * smoothness / (t * (t + 1))
        query = (1 - alpha) * (mu + gamma) * ag + alpha * ((1 - alpha) * mu + gamma) * x
        query = query / (gamma + (1 - alpha**2) * mu)
        center = (alpha * mu * query + ((1 - alpha) * mu + gamma) * x) / (mu + gamma)
        x = center - alpha / (mu + gamma) * unit[t]
        ag = alpha * x + (1 - alpha) * ag
        queries.append(query)
    return np.stack(queries), ag


def worst_case(smoothness, mu, horizon, queries, final):
    """The largest f(ag_T) - f* over all functions and starts at distance at most 1."""
    problem = PEP()
    function = problem.declare_function(SmoothStronglyConvexFunction, mu=mu, L=smoothness)
    optimum = function.stationary_point()
    start = problem.set_initial_point()
    problem.set_initial_condition((start - optimum) ** 2 <= 1)
    basis: list[Point] = [start]

    def combination(weights):
        total = weights[0] * basis[0]
        for weight, vector in zip(weights[1:], basis[1:], strict=False):
            total = total + weight * vector
        return total

    for weights in queries:
        basis.append(function.gradient(combination(weights)))
    problem.set_performance_metric(function(combination(final)) - function(optimum))
    return problem.solve(verbose=0)


@pytest.mark.parametrize(("mu", "horizon"), [(0.0, 3), (0.0, 5), (0.1, 4)])
def test_worst_case_is_within_the_guarantee(mu, horizon):
    queries, final = our_coefficients(1.0, mu, horizon)
    expected_queries, expected_final = textbook_coefficients(1.0, mu, horizon)
    np.testing.assert_allclose(queries, expected_queries, atol=1e-6)
    np.testing.assert_allclose(final, expected_final, atol=1e-6)
    value = worst_case(1.0, mu, horizon, queries, final)
    assert 0.1 < value / (2 / (horizon * (horizon + 1))) <= 1
