"""Dependence by structure: what depends is found wherever it hides, and nothing else is."""

import jax
import jax.numpy as jnp
import pytest

from tests.support.taint import dependent, draws

X = jnp.arange(3.0)


def _by_scan(x):
    # The second number of the carry is marked in the second turn only.
    def step(carry, _):
        a, b, c = carry
        return (x[0], a, c + 1), (b, c)

    (_, b, c), (ys, zs) = jax.lax.scan(step, (0.0, 0.0, 0.0), None, length=3)
    return b, c, ys, zs


def _by_while(x):
    """The number of turns depends on x, so does all that changes in one."""
    return jax.lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1, c[1] + 2), (0.0, 0.0))


def _by_branch(x):
    return jax.lax.cond(x[0] > 0, lambda: (1.0, 2.0), lambda: (3.0, 2.0))


def _by_call(x):
    return jax.jit(lambda a, b: (a + 1, b + 1))(x, jnp.ones(3))


def _by_custom_rule(x):
    @jax.custom_jvp
    def double(y):
        return 2 * y

    double.defjvp(lambda primals, tangents: (double(primals[0]), 2 * tangents[0]))
    return double(x), double(jnp.ones(3))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x: (x, 1.0, x.shape[0]), ["[0]"]),
        (lambda x: (jnp.where(x > 0, 1.0, 2.0), jnp.ones(2)), ["[0]"]),
        (_by_scan, ["[0]", "[2]"]),
        (_by_while, ["[0]", "[1]"]),
        (_by_branch, ["[0]", "[1]"]),
        (_by_call, ["[0]"]),
        (_by_custom_rule, ["[0]"]),
        (lambda x: jax.vmap(lambda y: (y, 1.0))(x), ["[0]"]),
        (
            lambda x: (jax.grad(lambda y: jnp.sum(y**2))(x), jax.random.normal(jax.random.key(0))),
            ["[0]"],
        ),
    ],
)
def test_what_depends_is_found_and_nothing_else(run, expected):
    assert dependent(run, X) == expected


def test_draws_are_counted_through_loops_and_branches():
    def noise(key):
        return jax.random.normal(key, (2,))

    def loop(key, length):
        keys = jax.random.split(key, length)
        return jax.lax.scan(lambda total, k: (total + noise(k), None), jnp.zeros(2), keys)[0]

    key = jax.random.key(0)
    assert draws(noise, key) == 1
    assert draws(lambda k: loop(k, 5), key) - draws(lambda k: loop(k, 3), key) in (2, 4)
    both = draws(lambda k: jax.lax.cond(X[0] > 0, lambda: loop(k, 4), lambda: noise(k)), key)
    assert both == draws(lambda k: loop(k, 4), key)
    assert draws(jax.jit(jax.vmap(noise)), jax.random.split(key, 3)) == 1
