"""Losses of strangers that no ghost sum can take apart: summed as by a gradient of each, and said to be."""

import re

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.ode import odeint

from dpsco_jax import _effects
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import _convolutions, ghost, gradients
from dpsco_jax.oracles.ghost import _backward, _walk
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.transforms import clipped_mean, privatize

RNG = np.random.default_rng(0)
W = jnp.asarray(0.3 * RNG.standard_normal((3, 3)), jnp.float32)
X = jnp.asarray(RNG.standard_normal((5, 3)), jnp.float32)
CLIP_NORM = 0.5


def _flow(w, x):
    return jnp.sum(odeint(lambda y, t, w: jnp.tanh(w @ y), x, jnp.array([0.0, 1.0]), w)[-1])


def _rule_of_equinox(w, x):
    @eqx.filter_custom_vjp
    def value(w, other):
        return jnp.sum(jnp.tanh(w @ other))

    value.def_fwd(lambda perturbed, w, other: (value(w, other), w @ other))
    value.def_bwd(
        lambda kept, slope, perturbed, w, other: jnp.outer(slope * (1 - jnp.tanh(kept) ** 2), other)
    )
    return value(w, x)


def _loop_of_equinox(w, x):
    """Its rule is right only if it is asked for all that is differentiated, at once."""
    body = lambda state: (state[0] + 1, jnp.tanh(w @ state[1]))  # noqa: E731
    end = eqxi.while_loop(lambda s: s[0] < 3, body, (0, x), kind="checkpointed", max_steps=4)
    return jnp.sum(end[1])


def _never_differentiated(w, x):
    return jnp.sum(jnp.tanh(w @ eqxi.nondifferentiable(x)))


@jax.custom_jvp
def _asking(w, x):
    return jnp.sum(jnp.tanh(w @ x))


def _told(primals, tangents):
    w, x = primals
    zero = type(tangents[0]).__name__ == "SymbolicZero"
    slope = 1 - jnp.tanh(w @ x) ** 2
    # Of x alone it says something else.
    return _asking(w, x), jnp.vdot(slope, (jnp.ones_like(w) if zero else tangents[0]) @ x)


_asking.defjvp(_told, symbolic_zeros=True)


def _asked(w, x):
    return lax.cond(x[0] > 0, _asking, lambda w, x: 0.5 * _asking(w, x), w, x)


CASES = {
    _flow: "a gradient of each example: .*Error",
    _rule_of_equinox: "a gradient of each example: the rule of a custom_vjp_call asks",
    _loop_of_equinox: "a gradient of each example: the rule of a .*custom_vjp_call asks",
    _never_differentiated: "products an example",
    _asked: "a gradient of each example: the rule of a cond asks",
}


def _objective(loss):
    return Objective(loss, np.inf, None, domains.whole_space())


def _sum_of_clipped(rows, clip_norm=CLIP_NORM):
    rows = np.asarray(rows, np.float64)
    norms = np.linalg.norm(rows.reshape(len(rows), -1), axis=1)
    return np.tensordot(np.minimum(1, clip_norm / norms), rows, 1)


@pytest.mark.parametrize("loss", CASES, ids=lambda loss: loss.__name__[1:])
def test_what_jax_differentiates_is_summed_and_its_way_is_said(loss):
    def everything(w, x):
        oracle = gradients.clipped_gradient_sum(
            gradients.user_gradient(_objective(loss)), CLIP_NORM
        )
        by_user = oracle(jax.random.key(0), w, UserData(x[:, None])).gradient
        rows = jax.vmap(jax.grad(loss), (None, 0))(w, x)
        return ghost.clipped_sum(loss, w, x, CLIP_NORM), by_user, rows

    found, by_user, rows = jax.jit(everything)(W, X)
    wanted = _sum_of_clipped(rows)
    assert np.linalg.norm(wanted) > CLIP_NORM
    np.testing.assert_allclose(found, wanted, atol=4e-4)
    np.testing.assert_allclose(by_user, wanted, atol=4e-4)
    (leaf,) = ghost.explain(loss, W, X[0]).leaves
    assert leaf.way == ("factors" if loss is _never_differentiated else "rows")
    assert re.search(CASES[loss], leaf.why), leaf.why


def test_a_program_that_cannot_be_walked_is_taken_whole(monkeypatch):
    """Whatever goes wrong, of which nobody thought."""

    def broken(*_):
        raise KeyError("of nobody")

    loss = lambda w, x: jnp.sum(jnp.tanh(w @ x))  # noqa: E731
    wanted = _sum_of_clipped(jax.vmap(jax.grad(loss), (None, 0))(W, X))
    for module, name in ((_walk, "walk"), (_backward, "_factors")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, broken)
            found = ghost.clipped_sum(loss, W, X, CLIP_NORM)
            (leaf,) = ghost.explain(loss, W, X[0]).leaves
        np.testing.assert_allclose(found, wanted, atol=4e-4)
        assert leaf.way == "rows"
        assert "KeyError: 'of nobody'" in leaf.why


@jax.custom_batching.custom_vmap
def _centred(x):
    return x


_centred.def_vmap(lambda size, batched, x: (x - jnp.mean(x, axis=0), True))


def _all_fail_with_one(w, x):
    return jnp.sum(jnp.tanh(w @ eqx.error_if(x, x[0] > 50, "too much", on_error="nan")))


def _all_are_centred(w, x):
    return jnp.sum(jnp.tanh(w @ jax.jit(_centred)(x)))


def _parameters_fail_with_one(w, x):
    return jnp.sum(jnp.tanh(eqx.error_if(w @ x, x[0] > 50, "too much", on_error="nan")))


@pytest.mark.parametrize("loss", [_all_fail_with_one, _all_are_centred, _parameters_fail_with_one])
def test_rules_for_batches_are_never_asked(loss):
    """They would make of each example what another one says."""

    @jax.jit
    def both(x):
        oracle = gradients.clipped_gradient_sum(
            gradients.user_gradient(_objective(loss)), CLIP_NORM
        )
        by_user = oracle(jax.random.key(0), W, UserData(x[:, None])).gradient
        return ghost.clipped_sum(loss, W, x, CLIP_NORM), by_user

    bad = X.at[2, 0].set(99.0)
    rows = lax.map(lambda e: jax.grad(loss)(W, e), bad)
    wanted = _sum_of_clipped(rows[jnp.all(jnp.isfinite(rows), (1, 2))])
    assert np.linalg.norm(wanted) > CLIP_NORM / 2
    found, by_user = both(bad)
    np.testing.assert_allclose(found, wanted, atol=4e-4)
    # Items of a user are a batch of his own: the only one is its mean.
    own = 0 * wanted if loss is _all_are_centred else wanted
    np.testing.assert_allclose(by_user, own, atol=4e-4)


def test_a_loop_that_waits_for_all_is_run_in_a_batch():
    loop = jax.make_jaxpr(_loop_of_equinox)(W, X[0])
    assert not _convolutions.of_batches(loop)
    assert _convolutions.of_batches(jax.make_jaxpr(_all_fail_with_one)(W, X[0]))


def test_bad_examples_of_such_a_loss_are_left_out_alone():
    bad = X.at[2].set(jnp.nan)
    found = jax.jit(lambda x: ghost.clipped_sum(_asked, W, x, CLIP_NORM))(bad)
    wanted = _sum_of_clipped(jax.vmap(jax.grad(_asked), (None, 0))(W, X[jnp.arange(5) != 2]))
    np.testing.assert_allclose(found, wanted, atol=4e-4)


def test_sums_of_other_ranks_may_be_refused_to_the_loss_alone():
    params = {"a": W, "b": jnp.ones(3), "table": jnp.ones((4, 3))}

    def fitting(p, x):
        picked = p["table"][jnp.array([1, 1])]
        return jnp.sum(jnp.tanh(p["a"] @ x + p["b"])) + jnp.sum(picked @ x)

    wanted = ghost.clipped_sum(fitting, params, X, CLIP_NORM)
    with jax.numpy_rank_promotion("raise"):
        found = ghost.clipped_sum(fitting, params, X, CLIP_NORM)
        with pytest.raises(ValueError, match="rank_promotion"):
            ghost.clipped_sum(lambda p, x: jnp.sum(p["a"] * x), params, X, CLIP_NORM)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_parameters_of_eight_bits(dtype):
    narrow = W.astype(dtype)
    loss = lambda w, x: jnp.sum(jnp.tanh(w.astype(jnp.float32) @ x))  # noqa: E731
    rows = jax.vmap(jax.grad(loss), (None, 0))(narrow, X)
    wanted = _sum_of_clipped(rows)
    found = ghost.clipped_sum(loss, narrow, X, CLIP_NORM)
    assert found.dtype == jnp.float32
    exact = _sum_of_clipped(jax.vmap(jax.grad(loss), (None, 0))(narrow.astype(jnp.float32), X))
    assert np.linalg.norm(found - exact) < 0.1 * CLIP_NORM  # gradients are rounded to 8 bits
    by_user = gradients.clipped_gradient_sum(gradients.user_gradient(_objective(loss)), CLIP_NORM)
    summed = by_user(jax.random.key(0), narrow, UserData(X[:, None])).gradient
    np.testing.assert_allclose(summed, wanted, atol=1e-3)
    chain = privatize(clipped_mean(CLIP_NORM, 1), jax.random.key(0), noise_multiplier=1e-4)
    updates, _ = chain.update(rows, chain.init(narrow), narrow)
    np.testing.assert_allclose(np.asarray(updates, np.float32), wanted, rtol=0.13, atol=0.02)


def test_constants_of_an_open_program_are_its_operands():
    program = jax.make_jaxpr(lambda x: x * jnp.arange(3.0))(jnp.ones(3)).jaxpr
    constants = len(program.constvars)
    (closed,) = _effects.programs_in(program)
    assert len(closed.jaxpr.invars) == constants + 1
    assert not closed.consts


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: jnp.sum(jnp.real(jnp.fft.fft(x) @ w.T) ** 2),
        lambda w, x: jnp.sum(jnp.abs(w @ (x + 1j * x[::-1])) ** 2),
        lambda w, x: jnp.sum(jnp.abs(lax.dot_general(w, x * (1 + 2j), (((1,), (0,)), ((), ())))) ** 2),
    ],
)  # fmt: skip
def test_products_with_complex_numbers_go_by_whole_gradients(loss):
    wanted = _sum_of_clipped(jax.vmap(jax.grad(loss), (None, 0))(W, X))
    np.testing.assert_allclose(
        ghost.clipped_sum(loss, W, X, CLIP_NORM), wanted, rtol=2e-3, atol=1e-4
    )
    said = str(ghost.explain(loss, W, X[0]))
    assert "complex" in said or "no rearrangement" in said


def test_a_number_of_examples_that_is_a_symbol_is_refused_by_name():
    (rows,) = jax.export.symbolic_shape("rows")
    examples = jax.ShapeDtypeStruct((rows, *X.shape[1:]), X.dtype)
    loss = lambda w, x: jnp.sum((w @ x) ** 2)  # noqa: E731
    with pytest.raises(ValueError, match="examples must be of a number of rows that is an integer"):
        jax.export.export(jax.jit(lambda w, x: ghost.clipped_sum(loss, w, x, CLIP_NORM)))(
            W, examples
        )
