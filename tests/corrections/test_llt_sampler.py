"""What T prints of the sampler by log-Laplace transforms, and what is true: X29 to X32."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.problems import losses
from dpsco_jax.rates import sampling
from dpsco_jax.solvers.sampling import llt_sampler, rejection_oracle, zeroth_order
from dpsco_jax.solvers.sampling.restricted_gaussian import Restricted
from tests.support.gaussians import gaussian_delta


def test_the_law_of_the_mixture_is_tilted():
    """X29, p = 4/3, d = 2, x = 0: ‖y‖_4² has the mean d/2 = 1; λ from the stable law gives 0.64 of it."""
    with jax.enable_x64(True):
        psi = llt_sampler.transform(4 / 3, 2, 1.0)
        keys = jax.random.split(jax.random.key(0), 4000)
        found = jax.jit(jax.vmap(lambda key: psi.draw(key, jnp.zeros(2))))(keys)
        right = np.sum(np.asarray(found) ** 4, axis=1) ** 0.5
    assert abs(right.mean() - 1.0) <= 4 / math.sqrt(4000)
    # The stable law of index 1/2 is that of 1/(2g²), g a normal number.
    rng = np.random.default_rng(0)
    rate = 0.5 / rng.standard_normal(200_000) ** 2
    powers = rng.gamma(0.25, size=(200_000, 2))
    printed = np.sqrt(np.sum(powers, axis=1) / rate)
    error = printed.std() / math.sqrt(200_000)
    exact = (
        math.sqrt(2)
        * math.sqrt(2 / math.pi)
        * math.exp(special.gammaln(1.0) - special.gammaln(0.5))
    )
    assert abs(printed.mean() - exact) <= 5 * error
    assert exact < 0.65


def test_half_of_the_trials_fail_at_the_best():
    """X30: with losses that are all alike ρ = 1, and u ≤ ρ/2 has the probability ½, not E ρ̄ = 1."""
    with jax.enable_x64(True):
        oracle = rejection_oracle.oracle(
            lambda x, record: 0.0 * record,
            jnp.zeros(2),
            Restricted(1.0, lambda y: y, lambda key, y: (y, jnp.array(True))),
            num_records=2,
            scale=1.0,
            num_terms=3,
        )
        state = oracle.init(jnp.zeros(1))
        keys = jax.random.split(jax.random.key(1), 4000)
        accepted = np.asarray(jax.jit(jax.vmap(lambda key: oracle.trial(key, state)[1]))(keys))
    assert abs(accepted.mean() - 0.5) <= 4 * 0.5 / math.sqrt(4000)


def test_the_printed_steps_of_the_tail_ask_for_a_smaller_step_size():
    """X31: (5.40) at η = 1/(500·G²H), and at 1/(1728·G²H) and with the modulus 1/η in place of 1/(12η)."""

    def holds(inverse, modulus):
        terms = math.ceil(10 * math.log(1 / 0.01))
        left = [
            (k + 1) * terms * math.log(2) + 2 * math.log(terms) - 4**k * inverse * terms / modulus
            for k in (1, 2, 3)
        ]
        return all(
            value <= 4 * k * terms * math.log(2) - 2 * 4**k * terms
            for k, value in zip((1, 2, 3), left, strict=True)
        )

    assert not holds(500, 864)
    assert not holds(1450, 864)
    assert holds(1728, 864)
    assert holds(500, 864 / 12)


def test_the_population_s_regularization_is_twice_the_printed_one():
    """X32: with μ as printed and G_Δ = G a draw has δ(1) = 1.6e-5 where 1e-6 is claimed; 1.2e-2 with G_Δ =
    2G.
    """
    epsilon, delta, n, dim = 1.0, 1e-6, 10, 1000
    log = math.log(1 / (2 * delta))
    k = 1.0
    printed = k * max(log / (n * epsilon) ** 2, 1 / (n * dim))
    s = math.sqrt(k / printed) / n
    assert math.isclose(gaussian_delta(epsilon, s), 1.6e-5, rel_tol=0.05)
    assert math.isclose(gaussian_delta(epsilon, 2 * s), 1.2e-2, rel_tol=0.05)
    assert gaussian_delta(epsilon, sampling.gdp_of_draw(k, 2 * 4 * printed, n, 2.0)) <= delta
    with jax.enable_x64(True):
        plan = zeroth_order.plan(
            Problem(losses.absolute(1.0), num_users=4, dim=1, distance=1.0),
            Budget(0.5, 1e-3),
            norm=2.0,
            risk="population",
        )
        k, mu = float(plan.inverse_temperature), float(plan.regularization)
        assert gaussian_delta(0.5, 2 * math.sqrt(k / mu) / 4) <= 1e-3
        assert plan.certificate().epsilon <= 0.5
        # Half of that μ, and half again for G_Δ = G: the certificate tells.
        wrong = plan.__class__(**{**vars(plan), "regularization": mu / 8})
        assert wrong.certificate().epsilon > 0.5
        assert float(privacy.epsilon(wrong.loss(), 1e-3)) > 0.5
