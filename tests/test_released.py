"""Nothing can be differentiated through a release, in any order of transformations; whatever it does not
depend on can.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from jax.sharding import PartitionSpec

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.mechanisms import additive, correlated_noise
from dpsco_jax.problems import synthetic
from dpsco_jax.solvers.sampling import (
    alternating_sampler,
    exact,
    llt_sampler,
    restricted_gaussian,
    target_rejection,
)
from dpsco_jax.solvers.user_level import sgd

ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE
MEAN = transforms.clipped_mean(1.0, 10, ADDED)
REFUSED = "the argument that is differentiated must be one that no private release depends on"
TWO = jnp.float32(2.0)
STATISTIC = jnp.arange(3.0)


def _noised(size):
    return additive.gaussian(jax.random.key(0), STATISTIC, size)


def _in_a_scan(size):
    return jax.lax.scan(lambda carry, _: (carry, _noised(size)), 0.0, None, length=2)[1]


def _carried(size):
    return jax.lax.scan(lambda carry, _: (carry + _noised(size), None), STATISTIC, None, length=2)[
        0
    ]


def _on_a_device(size):
    mesh, all_of_it = jax.make_mesh((1,), ("lanes",)), PartitionSpec()
    return jax.shard_map(_noised, mesh=mesh, in_specs=all_of_it, out_specs=all_of_it)(size)


WAYS = {
    "jacfwd": jax.jacfwd(_noised),
    "jacrev": jax.jacrev(_noised),
    "jvp": lambda size: jax.jvp(_noised, (size,), (size,)),
    "vjp": lambda size: jax.vjp(_noised, size),
    "linearize": lambda size: jax.linearize(_noised, size),
    "hessian": jax.hessian(lambda size: size * size * jnp.sum(_noised(size))),
    "jit of jacfwd": jax.jit(jax.jacfwd(_noised)),
    "jacfwd of jit": jax.jacfwd(jax.jit(_noised)),
    "jacrev of jit": jax.jacrev(jax.jit(_noised)),
    "jacfwd of scan": jax.jacfwd(_in_a_scan),
    "jacrev of scan": jax.jacrev(_carried),
    "jacfwd of cond": jax.jacfwd(lambda s: jax.lax.cond(s > 0, _noised, lambda _: STATISTIC, s)),
    "jacfwd of while": jax.jacfwd(
        lambda s: jax.lax.while_loop(lambda x: x[0] < 0, lambda x: x + _noised(s), STATISTIC - 1)
    ),
    "jacrev of checkpoint": jax.jacrev(jax.checkpoint(_noised)),
    "jacfwd of vmap": lambda size: jax.jacfwd(jax.vmap(_noised))(jnp.stack([size, size])),
    "vmap of jacrev": lambda size: jax.vmap(jax.jacrev(_noised))(jnp.stack([size, size])),
    "jacrev of vmap of jit": lambda s: jax.jacrev(jax.vmap(jax.jit(_noised)))(jnp.stack([s, s])),
    "jacfwd of shard_map": jax.jacfwd(_on_a_device),
}


@pytest.mark.parametrize("way", WAYS)
def test_noise_cannot_be_told_from_its_derivative(way):
    with pytest.raises(ValueError, match=REFUSED):
        WAYS[way](TWO)


def _updated(rows, multiplier, correlation=None):
    release = transforms.privatize(
        MEAN, jax.random.key(0), multiplier, noise_correlation=correlation
    )
    return release.update(rows, release.init(STATISTIC))


@pytest.mark.parametrize("correlation", [None, correlated_noise.banded_square_root(3, 1)])
@pytest.mark.parametrize("by", ["rows", "multiplier"])
def test_a_released_update_has_no_derivatives(by, correlation):
    rows = jnp.ones((10, 3))

    def released(x):
        given = (rows * x, 2.0) if by == "rows" else (rows, x)
        return _updated(*given, correlation)

    assert np.isfinite(jax.eval_shape(lambda x: released(x)[0], TWO).shape).all()
    with pytest.raises(ValueError, match=REFUSED):
        jax.jacfwd(released, has_aux=True)(TWO)
    with pytest.raises(ValueError, match=REFUSED):
        jax.grad(lambda x: (x, released(x)), has_aux=True)(TWO)


@pytest.mark.parametrize("field", ["noise_multiplier", "start"])
def test_a_solve_has_no_derivatives(field):
    made = synthetic.logistic_regression(jax.random.key(0), num_users=9, items_per_user=1, dim=2)
    problem = Problem(made.objective, num_users=9, items_per_user=1, dim=2, distance=2.0)
    plan = sgd.plan(problem, Budget(1.0, 1e-3), num_steps=2, batch_size=3)

    def solved(x):
        used = plan if field == "start" else plan.replace(noise_multiplier=x)
        start = jnp.full(2, x if field == "start" else 0.0)
        return sgd.solve(jax.random.key(1), used, made.objective, made.data, start).params

    with pytest.raises(ValueError, match=REFUSED):
        jax.jvp(solved, (TWO,), (TWO,))


def _on_a_chain(x):
    oracle = alternating_sampler.Oracle(
        init=lambda start: start,
        diffuse=lambda key, state: state + x * jax.random.normal(key, (2,)),
        trial=lambda key, state: (state, jnp.array(True)),
        point=lambda state: state,
    )
    return alternating_sampler.run(jax.random.key(0), oracle, jnp.zeros(2), 2, 2)


def _by_rejection(x):
    numbers = target_rejection.planned(1e-9, 2, 20.0, 0.5, lipschitz=1.0, smoothness=0.25)
    slopes = {"gradient": lambda point: point, "remainder": lambda w, move: 0.0}
    return target_rejection.draw(jax.random.key(0), numbers, jnp.zeros(2), x, 0.5, **slopes)


def _primal(x):
    psi = llt_sampler.transform(1.5, dim=2)
    return llt_sampler.primal_draw(jax.random.key(0), psi, x * jnp.ones(2), power=1.1, radius=9.0)


SAMPLERS = {
    "alternating": lambda x: _on_a_chain(x).params,
    "state of alternating": lambda x: _on_a_chain(x).state,
    "exact": lambda x: exact.mean_estimation(jax.random.key(0), jnp.zeros(2), x).params,
    "restricted": lambda x: (
        restricted_gaussian.draw(
            *(jax.random.key(0), restricted_gaussian.whole_space(x, 0.0, jnp.zeros(2))),
            *(jnp.zeros(2), 1),
        ).params
    ),
    "target rejection": lambda x: _by_rejection(x).params,
    "dual": lambda x: llt_sampler.dual_draw(
        jax.random.key(0), llt_sampler.transform(2.0, dim=2), x * jnp.ones(2)
    ),
    "primal": lambda x: _primal(x).params,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_draw_that_is_released_has_no_derivatives(name):
    with jax.enable_x64(True):
        x = jnp.asarray(20.0, jnp.float64)
        jax.eval_shape(SAMPLERS[name], x)
        with pytest.raises(ValueError, match=REFUSED):
            jax.eval_shape(lambda x: jax.jvp(SAMPLERS[name], (x,), (x,)), x)


def _other(w, size):
    def step(carry, _):
        point, other = carry
        return (point - 0.1 * _noised(size), jnp.sin(other)), None

    (point, other), _ = jax.lax.scan(step, (STATISTIC, w), None, length=2)
    return jnp.vdot(point, other), point


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
def test_derivatives_of_what_no_release_depends_on_are_as_ever(around):
    w = jnp.array([0.3, 0.5, 0.7])
    with jax.debug_key_reuse(False):
        slope, point = jax.grad(around(_other), has_aux=True)(w, TWO)
    np.testing.assert_allclose(slope, point * jnp.cos(jnp.sin(w)) * jnp.cos(w), rtol=1e-5)


def test_what_is_released_is_a_constant_of_a_public_loss():
    """As the message says: derivatives at a released point, which are not derivatives through it."""

    def loss(x):
        return jnp.sum(x * x * _noised(jax.lax.stop_gradient(TWO * x[0])))

    with jax.debug_key_reuse(False):
        np.testing.assert_allclose(jax.grad(loss)(jnp.ones(3)), 2 * _noised(TWO), rtol=1e-6)
