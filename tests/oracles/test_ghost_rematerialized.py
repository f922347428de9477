"""What a loss asks not to hold, by ``jax.checkpoint`` or a loop, ghost sums hold as far as they need it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from dpsco_jax.oracles import ghost

EXAMPLES, ROWS, DIM, LAYERS, CLIP_NORM = 8, 16, 16, 6, 0.5
RNG = np.random.default_rng(0)
W = jnp.asarray(0.3 * RNG.standard_normal((LAYERS, DIM, DIM)), jnp.float32)
X = jnp.asarray(RNG.standard_normal((EXAMPLES, ROWS, DIM)), jnp.float32)


def _many_numbers(h, w):
    """A layer of many results, one for each of the roots that its derivative needs."""
    z = h @ w
    for i in range(16):
        z = jnp.sin(z * (1 + 0.1 * i)) + 0.5 * z
    return z


def _scanned(layer):
    return lambda w, x: jnp.mean(lax.scan(lambda h, w: (layer(h, w), None), x, w)[0] ** 2)


def _mapped(layer):
    def of_row(w, row):
        for i in range(LAYERS):
            row = layer(row[None], w[i])[0]
        return jnp.mean(row**2)

    def loss(w, x):
        return jnp.mean(lax.map(jax.checkpoint(lambda row: of_row(w, row)), x))

    return loss


def _rows_of_a_branch(layer):
    """A leaf that goes by rows, in a loop: its gradient is that of all trips together."""

    def of_row(w, row):
        return lax.cond(row[0] > 0, lambda w: jnp.sum(jnp.tanh(row @ w)), lambda w: row @ w[0], w)

    return lambda w, x: jnp.mean(lax.map(lambda row: of_row(layer(w[0], w[1]), row), x))


def _gradients(loss, w, x):
    return jax.vmap(jax.grad(loss), (None, 0))(w, x)


def _bytes(function):
    return jax.jit(function).lower(W, X).compile().memory_analysis().temp_size_in_bytes


def _assert_equal_to_gradients(loss, w=W, x=X):
    rows = np.asarray(jax.jit(lambda w, x: _gradients(loss, w, x))(w, x), np.float64)
    norms = np.linalg.norm(rows.reshape(len(rows), -1), axis=1)
    wanted = np.tensordot(np.minimum(1, CLIP_NORM / norms), rows, 1)
    assert np.median(norms) > CLIP_NORM / 10
    found = jax.jit(lambda w, x: ghost.clipped_sum(loss, w, x, CLIP_NORM))(w, x)
    np.testing.assert_allclose(found, wanted, atol=5e-3 * np.linalg.norm(wanted))


def test_what_is_computed_again_is_not_held():
    """Sixteen results of every layer are not; what enters and leaves its product is, as the report says."""
    plain, asked = _scanned(_many_numbers), _scanned(jax.checkpoint(_many_numbers))
    sums = [_bytes(lambda w, x, f=f: ghost.clipped_sum(f, w, x, CLIP_NORM)) for f in (plain, asked)]
    rows = _bytes(lambda w, x: _gradients(asked, w, x))
    report = ghost.explain(asked, W, X[0])
    held = LAYERS * 2 * ROWS * DIM
    assert "jax.checkpoint: what is inside is computed again, but" in report.not_kept[0]
    assert all(f"{held:,} numbers for an example" in said for said in report.not_kept)
    assert str(report).endswith(report.not_kept[1])
    assert len(ghost.explain(plain, W, X[0]).not_kept) == 1
    assert sums[0] > 3 * sums[1]
    # Taps go in, cotangents come out, and gradients are built: once more each.
    assert sums[1] < rows + 4 * EXAMPLES * (1.6 * held + 2 * W.size)
    _assert_equal_to_gradients(asked)


def test_one_row_at_a_time():
    asked = _mapped(_many_numbers)
    sums = _bytes(lambda w, x: ghost.clipped_sum(asked, w, x, CLIP_NORM))
    held = 2 * LAYERS * ROWS * DIM
    assert sums < 4 * EXAMPLES * (1.6 * held + 4 * W.size)
    assert sums < 4 * EXAMPLES * 16 * LAYERS * ROWS * DIM / 2  # what is not held
    _assert_equal_to_gradients(asked, x=2 * X)


def test_rows_are_added_up_trip_by_trip(monkeypatch):
    loss = _rows_of_a_branch(lambda a, b: a * b)
    found = {}
    for most in (2**10, 2**30):
        monkeypatch.setattr(ghost._backward, "_MOST_IN_TRIPS", most)
        found[most] = _bytes(lambda w, x: ghost.clipped_sum(loss, w, x, CLIP_NORM))
        _assert_equal_to_gradients(loss)
    assert found[2**30] > 1.25 * found[2**10]


def _named(h, w):
    z = checkpoint_name(h @ w, "kept")
    return jnp.tanh(jnp.sin(z) + z)


@jax.checkpoint
def _with_parts_of_parameters(h, w):
    """Of parameters alone, of data alone, of both, and of neither; a call in a call, and a loop in it."""
    scale = jnp.tanh(w[0])
    inner = jax.checkpoint(lambda h: jnp.sin(h @ w) * scale)(h)
    looped = lax.scan(lambda c, row: (c + jnp.tanh(row @ w), None), jnp.zeros(DIM), inner)[0]
    return jnp.tanh(h) + looped * 0.3, scale, jnp.arange(3.0), 2 * h


def _nested(w, x):
    h = x
    for i in range(3):
        h, scale, numbers, doubled = _with_parts_of_parameters(h, w[i])
        h = h * scale + numbers[1] * doubled
    return jnp.mean(jnp.square(jax.checkpoint(lambda w, h: h @ w[0] @ w[1].T)(w, h)))


NAMES = jax.checkpoint_policies.save_only_these_names("kept")
LOSSES = {
    "nested": _nested,
    "names": _scanned(jax.checkpoint(_named, policy=NAMES)),
    "products": _scanned(jax.checkpoint(_named, policy=jax.checkpoint_policies.dots_saveable)),
    "whole": jax.checkpoint(_scanned(lambda h, w: jnp.tanh(h @ w))),
    "no barrier": _scanned(jax.checkpoint(_named, prevent_cse=False)),
    "of a loop": lambda w, x: jnp.mean(
        lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w + w[0]), None)), x, w)[0] ** 2
    ),
    "of parameters": lambda w, x: jnp.mean(jnp.tanh(x @ jax.checkpoint(jnp.sin)(w[0])) @ w[1]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_sums_are_those_of_gradients(name):
    _assert_equal_to_gradients(LOSSES[name], x=2 * X)


def test_policies_are_kept():
    """A call of which everything may be saved is not computed again; one without a policy is."""

    def program(**how):
        loss = _scanned(jax.checkpoint(_named, **how))
        return str(jax.make_jaxpr(lambda w, x: ghost.clipped_sum(loss, w, x, 1.0))(W, X))

    everything = program(policy=jax.checkpoint_policies.everything_saveable)
    assert everything.count("= sin ") == 1
    assert program().count("= sin ") == 2
    assert "prevent_cse=False" in program(prevent_cse=False)
    assert "prevent_cse=True" in program()
