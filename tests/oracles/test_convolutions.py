"""An example that is not finite changes nothing of the others, in convolutions that compiled batches mix."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dpsco_jax.geometry import domains
from dpsco_jax.oracles import _convolutions, ghost, gradients, resque, smoothed
from dpsco_jax.oracles.ghost import _backward
from dpsco_jax.oracles.ghost._program import Program
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level._unit_updates import gradient_update
from dpsco_jax.solvers.sampling import _cells
from dpsco_jax.solvers.user_level.phased_sgd import group_averages

RNG = np.random.default_rng(0)
IMAGES = jnp.asarray(np.float32(RNG.standard_normal((4, 1, 3, 3, 4))))
CLIP_NORM = 0.3


def _conv(images, kernel, groups=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def _grouped(p, x):
    return jnp.sum(jnp.tanh(_conv(x, p, 2)))


def _in_a_loop(p, x):
    """Parameters are carried, so that the loop is one use of them."""
    (_, x), _ = lax.scan(lambda c, _: ((0.9 * c[0], _conv(c[1], c[0], 2)), None), (p, x), length=2)
    return jnp.sum(jnp.tanh(x))


def _own_kernels(p, x):
    """Every example has a kernel of its own."""
    kernel = jnp.tanh(p * x[0, 0, 0]).reshape(3, 3, 4, 2)
    return jnp.sum(jnp.tanh(_conv(x, kernel)))


def _derivative_of_its_own(p, x):
    """The derivative in the kernel of a grouped convolution is a part of the loss."""
    return jnp.sum(jnp.square(jax.grad(_grouped)(p, x)))


KERNEL = jnp.asarray(np.float32(0.5 * RNG.standard_normal((3, 3, 2, 4))))
CASES = [
    _grouped,
    *(
        pytest.param(f, marks=pytest.mark.slow)
        for f in (_in_a_loop, _derivative_of_its_own, _own_kernels)
    ),
]


@pytest.mark.parametrize("loss", CASES)
def test_an_image_that_is_not_finite_is_left_out_alone(loss):
    bad = IMAGES.at[2].set(jnp.nan)  # one infinity stays where it is
    others = jnp.arange(4) != 2

    @jax.jit
    def ghosts(images, counted):
        return ghost.clipped_sum(loss, KERNEL, images, CLIP_NORM, counted=counted)

    found = ghosts(bad, jnp.ones(4, bool))
    np.testing.assert_array_equal(found, ghosts(IMAGES, others))
    rows = np.asarray(jax.jit(lambda x: lax.map(lambda e: jax.grad(loss)(KERNEL, e), x))(IMAGES))
    clipped = [g * min(1.0, CLIP_NORM / np.linalg.norm(g)) for g in rows]
    assert np.linalg.norm(found - sum(clipped[:2] + clipped[3:])) < 1e-2 * CLIP_NORM

    objective = Objective(loss, np.inf, None, domains.whole_space())
    whole = gradients.clipped_gradient_sum(gradients.user_gradient(objective), CLIP_NORM)
    run = jax.jit(lambda x: whole(jax.random.key(0), KERNEL, UserData(x[:, None])).gradient)
    np.testing.assert_allclose(run(bad), found, atol=1e-3)


@pytest.mark.slow
def test_points_that_are_shifted_for_each_item_too():
    objective = Objective(_grouped, np.inf, None, domains.whole_space())
    gradient = smoothed.user_gradient_by_item(objective, 1e-6)
    rows = jax.jit(jax.vmap(lambda x: gradient(jax.random.key(0), KERNEL, x[None], None)))
    finite = np.isfinite(rows(IMAGES.at[2].set(jnp.nan))).all((1, 2, 3, 4))
    np.testing.assert_array_equal(finite, np.arange(4) != 2)


def test_kernels_that_all_share_are_taken_in_batches():
    """Where nothing mixes, there is no loop over examples."""
    program = jax.make_jaxpr(lambda p, x: _conv(x, p))(KERNEL, IMAGES[0, ..., :2])
    assert not _convolutions.grouped(program)
    assert not _convolutions.of_two(program, (False, True))
    assert _convolutions.of_two(program, (True, True))
    nested = jax.make_jaxpr(jax.jit(jax.checkpoint(_in_a_loop)))(KERNEL, IMAGES[0])
    assert _convolutions.grouped(nested)
    assert not _convolutions.of_two(nested, (False, False))
    assert _convolutions.of_two(nested, (False, True))  # as far as one sees of what is carried


@jax.custom_vjp
def _with_a_rule(p, x):
    return _conv(x, jnp.concatenate(2 * [p], axis=2))


_with_a_rule.defvjp(
    lambda p, x: (_with_a_rule(p, x), (p, x)),
    lambda kept, slope: (jax.grad(lambda p: jnp.vdot(_conv(kept[1], p, 2), slope))(kept[0]), None),
)


def _by_a_rule(p, x):
    """Groups of channels are in the rule for the derivative alone."""
    return jnp.sum(jnp.tanh(_with_a_rule(p, x)))


def _solved(p, x):
    """A linear solve whose operator has a kernel of the example, and whose other programs have not."""
    kernel = (x[0, :, 0, 0] * p[0, 0, 0, 0]).reshape(1, 1, 3)

    def line(v):
        return lax.conv_general_dilated(v[None, None], kernel, (1,), "SAME")[0, 0]

    return jnp.sum(lax.custom_linear_solve(line, p[0, 0, 0], lambda f, b: b, lambda f, b: b))


def test_rules_for_derivatives_and_linear_solves_are_looked_into():
    program = jax.make_jaxpr(jax.jit(_by_a_rule))(KERNEL, IMAGES[0])
    assert not _convolutions.grouped(program)
    assert _convolutions.grouped(jax.make_jaxpr(jax.grad(_by_a_rule))(KERNEL, IMAGES[0]))
    assert _convolutions.grouped_in_rules(program)
    assert not _convolutions.grouped_in_rules(jax.make_jaxpr(_grouped)(KERNEL, IMAGES[0]))
    assert Program(_by_a_rule, KERNEL, IMAGES[0]).mixes
    assert _convolutions.of_two(jax.make_jaxpr(_solved)(KERNEL, IMAGES[0]), (False, True))


def test_what_is_an_examples_own_is_followed_into_loops_and_branches():
    image, kernel = IMAGES[0, ..., :2], KERNEL

    def of_a_slice(x, k):
        return lax.scan(lambda c, one: (c + jnp.sum(_conv(x, one)), None), 0.0, k[None])[0]

    def of_a_carry(x, k):
        def body(state):
            number, seen, total = state
            return number + 1, seen + x, total + jnp.sum(_conv(seen, k))

        return lax.while_loop(lambda state: state[0] < 2, body, (0, jnp.zeros_like(x), 0.0))[2]

    def of_a_branch(x, k):
        return lax.cond(jnp.pi < 4, _conv, lambda x, k: 2 * _conv(x, k), x, k)

    for function in (of_a_slice, of_a_carry, of_a_branch):
        program = jax.make_jaxpr(function)(image, kernel)
        assert _convolutions.of_two(program, (True, True))
        assert not _convolutions.of_two(program, (False, False))

    def in_groups_of_images(x, k):
        return lax.conv_general_dilated(x, k, (1, 1), "SAME", batch_group_count=2)

    program = jax.make_jaxpr(in_groups_of_images)(jnp.zeros((2, 1, 3, 3)), jnp.zeros((2, 1, 3, 3)))
    assert _convolutions.grouped(program)


def _users(images):
    own = gradients.user_gradient(OBJECTIVE._replace(loss=_own_kernels))
    two = jnp.stack([images, images], 1)
    return jax.vmap(lambda items: own(jax.random.key(0), KERNEL, items, None))(two)


OBJECTIVE = Objective(_grouped, np.inf, None, domains.whole_space())
LINE = OBJECTIVE._replace(loss=lambda p, x: _grouped(p.reshape(KERNEL.shape), x))


def _drawn_by_tangents(images):
    flat = jnp.zeros(KERNEL.size)
    users = UserData(images[:, None].astype(flat.dtype))
    numbers = {"inverse_temperature": 1.0, "lipschitz": 1.0, "cells": 2}
    return _cells.draw_linear(jax.random.key(0), LINE, users, flat - 1, flat + 1, **numbers)


def _queries(images):
    keys, points = jax.random.split(jax.random.key(0), 4), jnp.zeros((4, KERNEL.size))
    return resque.sampled_user_gradient(LINE, UserData(images[:, None]))(keys, points)


@pytest.mark.parametrize(
    "ways",
    [
        lambda x: jax.vmap(lambda e: gradient_update(OBJECTIVE)(0, KERNEL, e[None], None))(x),
        lambda x: group_averages(OBJECTIVE, UserData(x[:, None]), 4, KERNEL, 0.1),
        _drawn_by_tangents,
        _queries,
        _users,
    ],
    ids=["units", "groups", "tangents", "queries", "users"],
)
def test_every_batch_of_gradients_is_kept_apart(ways):
    """Of a batch that mixes, the groups of images would be as many as examples times those of one."""
    with jax.enable_x64(ways is _drawn_by_tangents):
        program = str(jax.make_jaxpr(ways)(IMAGES))
    found = {int(number) for number in re.findall(r"batch_group_count=(\d+)", program)}
    assert found == {1, 2}


def test_what_mixes_is_seen_before_it_runs():
    seen = {f: Program(f, KERNEL, IMAGES[0]) for f in (_grouped, _own_kernels, _in_a_loop)}
    assert [x.mixes for x in seen.values()] == [False, True, True]
    assert [any(map(_mixes, x.uses)) for x in seen.values()] == [True, False, True]
    assert [x.slope_mixes for x in seen.values()] == [True, True, True]
    assert not Program(
        lambda p, x: jnp.sum(_conv(x, p) ** 2), KERNEL, IMAGES[0, ..., :2]
    ).slope_mixes


def _mixes(use):
    slope = _backward._derivative(use, list(use.held))
    return use.mixes(_backward._of_operands(use, slope))
