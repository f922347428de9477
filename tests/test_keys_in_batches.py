"""Keys by which JAX would draw for all lanes of a batch are refused where noise or samples are drawn, in any
order of transformations; by such a key alone everything is drawn as ever.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from dpsco_jax import _keys, privacy, transforms
from dpsco_jax.geometry import log_laplace
from dpsco_jax.mechanisms import _draws, additive
from dpsco_jax.mechanisms.winsorized import private_range, winsorized_mean
from dpsco_jax.privacy.audits import auditing
from dpsco_jax.solvers.sampling import alternating_sampler, exact, llt_sampler, target_rejection
from dpsco_jax.sweeps.cells import key_words
from dpsco_jax.sweeps.compile import Program, compile_chunk
from tests.support import public

SHARED = ("rbg", "unsafe_rbg")
REFUSED = r"key must be one of threefry2x32 under jax.vmap, got \d+ of (unsafe_)?rbg"
X = jnp.arange(3.0)


def _noise(key):
    return additive.gaussian(key, X, 2.0)


def _in_a_scan(key):
    def step(key, _):
        key, own = jax.random.split(key)
        return key, _noise(own)

    return jax.lax.scan(step, key, None, length=2)[1]


def _in_branches(key):
    return jax.lax.cond(jax.random.key_data(key)[0] > 5, _noise, lambda key: X, key)


def _slope(key):
    return jax.grad(lambda x: jnp.vdot(x, _noise(key)))(X)


BATCHES = {
    "vmap": jax.vmap(_noise),
    "jit of vmap": jax.jit(jax.vmap(_noise)),
    "vmap of jit": jax.vmap(jax.jit(_noise)),
    "vmap of vmap": lambda keys: jax.vmap(jax.vmap(_noise))(keys.reshape(2, 2)),
    "vmap of scan": jax.vmap(_in_a_scan),
    "vmap of a branch": jax.vmap(_in_branches),
    "scan of vmap": lambda keys: jax.lax.map(jax.vmap(_noise), keys.reshape(2, 2)),
    "map of some at once": lambda keys: jax.lax.map(_noise, keys, batch_size=2),
    "vmap of grad": jax.vmap(_slope),
}


def _keys_of(impl, number=4):
    return jnp.stack([jax.random.key(seed, impl=impl) for seed in range(number)])


@pytest.mark.parametrize("impl", SHARED)
@pytest.mark.parametrize("way", BATCHES)
def test_batches_that_would_draw_by_one_key_are_refused(way, impl):
    with jax.debug_key_reuse(False), pytest.raises(ValueError, match=REFUSED):
        BATCHES[way](_keys_of(impl))


@pytest.mark.parametrize("way", BATCHES)
def test_batches_of_threefry_draw_as_their_keys_do_alone(way):
    with jax.debug_key_reuse(False):
        found = np.asarray(BATCHES[way](_keys_of("threefry2x32"))).reshape(4, -1)
        one = {"vmap of grad": _slope, "vmap of scan": _in_a_scan, "vmap of a branch": _in_branches}
        draw = one.get(way, _noise)
        each = [np.ravel(draw(key)) for key in _keys_of("threefry2x32")]
    np.testing.assert_allclose(found, each, rtol=2e-5, atol=1e-6)


def _expected(key):
    """The noise by the words of the key as it is."""
    (own,) = jax.random.split(key, 1)
    if jax.random.key_impl(own) == "threefry2x32":
        words = threefry2x32_p.bind(
            *jax.random.key_data(own),
            jnp.full(3, _draws._NOISE, jnp.uint32),
            jnp.arange(3, dtype=jnp.uint32),
        )
    else:
        words = jax.random.bits(own, (2, 3), jnp.uint32)
    return np.asarray(X) + 2 * np.asarray(_draws.normal_of_words(*words, jnp.float32))


@pytest.mark.parametrize("impl", ["threefry2x32", *SHARED])
def test_by_a_key_alone_everything_is_drawn_as_ever(impl):
    keys = _keys_of(impl, 1)
    with jax.debug_key_reuse(False):
        expected = _expected(keys[0])
        common = jax.vmap(lambda x: additive.gaussian(keys[0], x, 2.0))(jnp.stack([X, X + 1]))
        found = [
            _noise(keys[0]),
            jax.jit(_noise)(keys[0]),
            jax.lax.map(_noise, keys)[0],
            _slope(keys[0]),
            common[0],
            common[1] - 1,
            jax.jit(lambda key: jax.hessian(lambda x: _noise(key) @ x * x[0])(X)[0])(keys[0])
            - jnp.asarray([expected[0], 0, 0]),
        ]
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("impl", SHARED)
def test_a_release_and_its_charge_run_by_such_a_key(impl):
    release = transforms.privatize(transforms.clipped_sum(1.0), jax.random.key(1, impl=impl), 2.0)
    state = release.init(X)
    rows = jnp.zeros((4, 3))
    one, after = jax.jit(release.update)(rows, state)
    two, after = jax.jit(release.update)(rows, after)
    assert np.all(np.asarray(one) != np.asarray(two))
    assert np.isfinite(privacy.epsilon(privacy.privacy_spent(after), 1e-5))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), after)
    with jax.debug_key_reuse(False), pytest.raises(ValueError, match=REFUSED):
        jax.vmap(release.update)(jnp.zeros((2, 4, 3)), states)


DRAWING = sorted(
    path
    for path, function in public.public_functions().items()
    if path.startswith(("mechanisms.", "oracles.sampling."))
    and "key" in inspect.signature(function).parameters
)


@pytest.mark.parametrize("path", DRAWING)
def test_every_mechanism_and_sampler_refuses_them(path):
    positional, named = public.good_call(path)
    named.pop("key")

    def call(key):
        result = public.public_functions()[path](*positional, key=key, **named)
        return [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]

    with pytest.raises(ValueError, match=REFUSED):
        jax.eval_shape(jax.vmap(call), _keys_of("rbg", 2))


def _by_rejection(key):
    numbers = target_rejection.planned(1e-9, 2, 20.0, 0.5, lipschitz=1.0, smoothness=0.25)
    slopes = {"gradient": lambda x: x, "remainder": lambda w, move: 0.0}
    return target_rejection.draw(key, numbers, jnp.zeros(2), 20.0, 0.5, **slopes).params


def _on_a_chain(key):
    def trial(key, state):
        return state, jnp.array(True)

    oracle = alternating_sampler.Oracle(lambda x: x, lambda key, x: x, trial, lambda x: x)
    return alternating_sampler.run(key, oracle, jnp.zeros(2), num_steps=2, num_trials=2).params


def _dual(key):
    return llt_sampler.dual_draw(key, llt_sampler.transform(1.5, dim=2), jnp.ones(2))


def _primal(key):
    psi, tilt = llt_sampler.transform(1.5, dim=2), jnp.ones(2)
    return llt_sampler.primal_draw(key, psi, tilt, power=1.1, radius=9.0).params


def _power(key):
    return log_laplace.LpLogLaplace(1.5, 1.0, 2).coordinate_draw(key, jnp.ones(2))


SAMPLERS = {
    "exact": lambda key: exact.mean_estimation(key, jnp.zeros(2), 9.0).params,
    "target rejection": _by_rejection,
    "alternating": _on_a_chain,
    "dual": _dual,
    "primal": _primal,
    "coordinates": _power,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_refuses_them(name):
    with jax.enable_x64(True):
        jax.eval_shape(SAMPLERS[name], jax.random.key(0, impl="rbg"))
        with pytest.raises(ValueError, match=REFUSED):
            jax.eval_shape(jax.vmap(SAMPLERS[name]), _keys_of("rbg", 2))


@pytest.mark.parametrize("impl", SHARED)
def test_coordinates_of_one_mean_are_drawn_each_by_its_own_key(impl):
    key, signs = jax.random.key(0, impl=impl), jnp.ones(4)
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(20, 4)), jnp.float32)
    numbers = 1.0, 0.5, 4.0, 0.25
    with jax.debug_key_reuse(False):
        found = winsorized_mean._mean_in_box(key, signs, rows, (*numbers, None))
        columns = winsorized_mean.rotations.rotate(signs, rows).T
        for index, values in enumerate(columns):
            own = private_range.private_range(jax.random.fold_in(key, index), values, *numbers)
            low, high = own.center - own.half_width, own.center + own.half_width
            np.testing.assert_allclose(found[index], np.clip(values, low, high).mean(), rtol=1e-5)


@pytest.mark.parametrize("impl", ["threefry2x32", *SHARED])
def test_batches_of_our_own_are_taken_in_turn(impl):
    keys = _keys_of(impl)
    with jax.debug_key_reuse(False):
        found = _keys.over(lambda key, x: additive.gaussian(key, x, 2.0))(keys, jnp.stack([X] * 4))
        each = [_noise(key) for key in keys]
    np.testing.assert_allclose(found, each, rtol=1e-6)
    if impl in SHARED:
        with pytest.raises(ValueError, match=REFUSED):
            jax.vmap(_keys.over(_noise))(keys.reshape(2, 2))


def test_audits_run_by_any_key():
    def found(impl):
        return auditing.audit(
            *(jax.random.key(0, impl=impl), lambda key, x: x[0] + _noise(key)[0] / 2),
            *(jnp.zeros(1), jnp.full(1, 9.0), lambda output: output),
            *(400, 0.0),
        )

    assert all(found(impl).epsilon > 2 for impl in ("threefry2x32", *SHARED))


def test_cells_of_a_sweep_have_draws_of_their_own_whatever_the_default_is():
    program = Program(lambda shared, key, inputs: {"drawn": jax.random.normal(key)}, ())
    words = key_words([f"{cell:016x}" for cell in (7, 8)])

    def drawn():
        chunk = compile_chunk(program, jnp.zeros(1), 2, 1e9, jax.devices()[:1])
        return np.asarray(chunk.call(words, jnp.zeros((2, 1)))["drawn"])

    expected = drawn()
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(drawn(), expected)
