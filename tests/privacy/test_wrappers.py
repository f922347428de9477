"""What stands around and before a release: unknown wrappers are doubted until somebody vouches for them."""

import dataclasses
import io
from typing import Any, NamedTuple

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from dp_accounting import NeighboringRelation
from flax import nnx

from dpsco_jax import privacy, transforms

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
PARAMS = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
FIRST = {"a": True, "b": False}


def _release(seed=0):
    aggregate = transforms.summed_contributions(1.0, 10, ADD_REMOVE)
    return transforms.privatize(aggregate, jax.random.key(seed), 2.0)


def _spent(state, **options):
    return float(privacy.epsilon(privacy.privacy_spent(state, **options), 1e-5))


class _OwnState(NamedTuple):
    inner: Any
    norm: jax.Array


def _own_wrapper(inner):
    return optax.GradientTransformation(
        lambda params: _OwnState(inner.init(params), jnp.zeros(())), inner.update
    )


CHAIN = optax.chain(_release(), optax.sgd(0.1))
ACCOUNT = transforms.account(privacy.pure_dp(0.1), ADD_REMOVE)
ONCE = float(privacy.epsilon(privacy.gaussian(2.0), 1e-5))


@pytest.mark.parametrize(
    ("wrapped", "trust"),
    [
        (
            optax.MultiSteps(CHAIN, 2, should_skip_update_fn=optax.skip_not_finite),
            optax.MultiStepsState,
        ),
        # A skip whose state is empty leaves no trace in the state.
        (
            optax.MultiSteps(CHAIN, 2, should_skip_update_fn=lambda *_: (jnp.asarray(True), ())),
            optax.MultiStepsState,
        ),
        (optax.transforms.conditionally_mask(CHAIN, lambda *_: True), None),
        (optax.conditionally_transform(CHAIN, lambda *_: True), optax.ConditionallyTransformState),
        (optax.apply_if_finite(CHAIN, 3), optax.ApplyIfFiniteState),
        (optax.masked(CHAIN, FIRST), optax.MaskedState),
        (optax.contrib.mechanize(CHAIN), None),
        (optax.contrib.split_real_and_imaginary(CHAIN), None),
        (_own_wrapper(CHAIN), _OwnState),
        (optax.chain(_own_wrapper(_release()), optax.adam(0.1)), _OwnState),
        (optax.partition({True: CHAIN, False: optax.sgd(0.1)}, FIRST), optax.PartitionState),
        (optax.chain(optax.trace(0.9), CHAIN), optax.TraceState),
        (optax.chain(optax.scale_by_adam(), CHAIN), optax.ScaleByAdamState),
        (optax.chain(optax.snapshot("norm", optax.tree.norm), CHAIN), None),
        (optax.chain(optax.sgd(1.0, momentum=0.9), CHAIN), optax.TraceState),
        (optax.chain(optax.chain(optax.chain(optax.trace(0.9))), optax.chain(CHAIN)), optax.TraceState),
        (optax.chain(optax.named_chain(("a", optax.trace(0.9))), CHAIN), optax.TraceState),
        (optax.named_chain(("z", optax.trace(0.9)), ("a", CHAIN)), optax.TraceState),
        (optax.named_chain(("a", optax.trace(0.9)), ("z", CHAIN)), optax.TraceState),
        (optax.chain(optax.masked(optax.trace(0.9), FIRST), CHAIN), optax.TraceState),
        (optax.chain(optax.apply_if_finite(optax.identity(), 5), CHAIN), optax.ApplyIfFiniteState),
        (optax.chain(optax.zero_nans(), CHAIN), None),
        (optax.chain(transforms.halt_when(optax.identity(), lambda *_: False), CHAIN), transforms.HaltState),
        (optax.chain(optax.chain(optax.trace(0.9), ACCOUNT), CHAIN), optax.TraceState),
    ],
    ids=[
        "MultiSteps skips", "MultiSteps skips without a trace", "conditionally_mask",
        "conditionally_transform", "apply_if_finite", "masked", "mechanize", "split", "own",
        "own in a chain",
        "partition", "trace before", "Adam before", "snapshot before", "sgd before", "nested before",
        "names before", "named last", "named first", "masked before", "finite before", "NaN before",
        "halt before", "trace and account before",
    ],
)  # fmt: skip
def test_what_is_not_known_is_doubted_until_it_is_trusted(wrapped, trust):
    state = wrapped.init(PARAMS)
    assert _spent(state) == np.inf
    assert len(privacy.doubts(state)) == 1
    if trust is not None:
        assert _spent(state, trust=trust) == 0
        assert privacy.doubts(state, trust=trust) == ()


@pytest.mark.parametrize(
    "wrapped",
    [
        CHAIN,
        optax.chain(_release(), optax.trace(0.9), optax.adam(0.1), optax.apply_if_finite(optax.sgd(1.0), 2)),
        optax.inject_hyperparams(lambda rate: optax.chain(_release(), optax.sgd(rate)))(0.1),
        optax.contrib.schedule_free(CHAIN, 0.1),
        optax.partition({True: CHAIN, False: optax.chain(_release(1), optax.adam(0.1))}, FIRST),
        optax.named_chain(("release", _release()), ("rest", optax.sgd(lambda count: 0.1))),
        optax.chain(optax.scale_by_schedule(lambda count: 1.0), CHAIN),
        optax.chain(optax.chain(optax.sgd(lambda count: 0.1), optax.clip(1.0)), CHAIN),
        optax.chain(optax.masked(optax.scale(2.0), FIRST), ACCOUNT, CHAIN),
        optax.chain(_release(), optax.adam(0.1), transforms.account(privacy.pure_dp(0.1), ADD_REMOVE)),
        transforms.halt_when(CHAIN, lambda state, updates: False),
        transforms.private_chain(None, _release(), optax.adam(0.1), FIRST),
    ],
    ids=[
        "chain", "beside", "hyperparameters", "schedule_free", "partition", "named", "schedule",
        "nested schedule", "mask without a memory",
        "account", "halt", "private_chain",
    ],
)  # fmt: skip
def test_what_hands_everything_on_is_free_of_friction(wrapped):
    state = wrapped.init(PARAMS)
    assert privacy.doubts(state) == ()
    assert _spent(state) == 0
    # So is a checkpoint with other things beside the state.
    assert _spent({"step": 3, "params": PARAMS, "state": state}) == 0
    assert _spent((PARAMS, state)) == 0


def test_states_restored_as_lists_keep_their_order():
    before = optax.chain(optax.trace(0.9), CHAIN).init(PARAMS)
    behind = optax.chain(CHAIN, optax.trace(0.9)).init(PARAMS)
    assert _spent(list(before)) == _spent([list(before[:1]), [before[1]]]) == np.inf
    assert _spent(list(behind)) == _spent([list(behind[:1]), [behind[1]]]) == 0
    # Two optimizers in one call, each with its memory behind its release.
    second = optax.chain(_release(1), optax.adam(0.1)).init(PARAMS)
    assert _spent((behind, second)) == 0


def test_the_certificate_says_who_was_vouched_for():
    state = optax.masked(CHAIN, FIRST).init(PARAMS)
    trusted = privacy.state_certificate(
        state, 1e-5, trust=(optax.MaskedState,), assumptions=("the key is secret",)
    )
    assert trusted.epsilon == 0
    assert trusted.relation is ADD_REMOVE
    assert trusted.assumptions[0] == "the key is secret"
    assert "optax.transforms.MaskedState hands every update" in str(trusted)
    doubted = privacy.state_certificate(state, 1e-5)
    assert doubted.epsilon == np.inf
    assert "optax.masked passes on" in str(doubted)
    both = privacy.state_certificate((state, state), 1e-5, trust=optax.MaskedState)
    assert both.epsilon == np.inf  # two equal keys
    vouched = privacy.state_certificate(CHAIN.init(PARAMS), 1e-5, independent_draws=True)
    assert "no two releases" in str(vouched)
    with pytest.raises(ValueError, match="opt_state must be one optimizer's"):
        privacy.state_certificate(jax.vmap(lambda _: CHAIN.init(PARAMS))(jnp.zeros(2)), 1e-5)


@pytest.mark.parametrize("trust", ["MaskedState", 3, [optax.MaskedState, None]])
def test_trust_is_in_types(trust):
    with pytest.raises(ValueError, match="trust must be a type"):
        privacy.privacy_spent(CHAIN.init(PARAMS), trust=trust)


def _charged():
    state = CHAIN.init(PARAMS)
    return CHAIN.update(PARAMS, state, PARAMS, clipped_to=1.0)[1]


def test_the_state_of_an_nnx_optimizer_is_read():
    class Model(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.zeros(3))

    optimizer = nnx.Optimizer(Model(), CHAIN, wrt=nnx.Param)
    assert _spent(optimizer.opt_state) == 0
    model = Model()
    optimizer = nnx.Optimizer(model, optax.chain(_release(), optax.adam(0.1)), wrt=nnx.Param)
    gradients = jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param))
    optimizer.update(model, gradients, clipped_to=1.0)
    assert _spent(optimizer.opt_state) == pytest.approx(ONCE, rel=1e-5)


@dataclasses.dataclass
class _TrainState:
    params: Any
    opt_state: Any


class _Called(_TrainState):
    def __call__(self):
        return self.params


@pytest.mark.parametrize(
    "hidden",
    [
        lambda state: _TrainState(PARAMS, state),
        lambda state: _Called(PARAMS, state),
        lambda state: np.array([state[0].ledger, None], object),
        flax.serialization.to_state_dict,
        lambda state: [flax.serialization.to_state_dict(state[0].ledger)],
        lambda state: dataclasses.asdict(state[0].ledger),
    ],
    ids=["dataclass", "called", "objects", "flax", "ledger in flax", "dictionary"],
)
def test_a_ledger_that_cannot_be_seen_is_refused(hidden):
    """Beside one that is seen it would be left out."""
    state = _charged()
    live = optax.chain(_release(1), optax.sgd(0.1)).init(PARAMS)
    for look in (privacy.privacy_spent, privacy.doubts):
        for tree in ((live, hidden(state)), {"a": live, "b": [hidden(state)]}):
            with pytest.raises(ValueError, match="opt_state must be"):
                look(tree)


def test_other_leaves_of_a_checkpoint_are_seen_through():
    beside = {"step": 3, "rate": 0.1, "name": "run", "fn": jax.nn.relu, "jit": jax.jit(abs)}
    beside |= {"none": None, "numpy": np.zeros(2), "scalar": np.float32(1), "f": lambda x: x}
    assert _spent((_charged(), beside, PARAMS)) == pytest.approx(ONCE, rel=1e-5)


def _with_words(state):
    """With the words of keys, which formats of files know."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, state)


def test_a_ledger_goes_through_flax_and_equinox():
    state = _charged()
    written = flax.serialization.to_bytes(_with_words(state))
    back = flax.serialization.from_bytes(_with_words(CHAIN.init(PARAMS)), written)
    assert _spent(back) == pytest.approx(ONCE, rel=1e-5)
    file = io.BytesIO()
    ledger = state[0].ledger
    eqx.tree_serialise_leaves(file, ledger)
    file.seek(0)
    again = eqx.tree_deserialise_leaves(file, privacy.open_ledger(ADD_REMOVE))
    np.testing.assert_array_equal(again.total.rdp, ledger.total.rdp)


def test_a_checkpoint_is_restored_under_its_own_relation_alone():
    """What is written of a ledger says under what it was charged; the ledger that it goes to has to agree."""
    given = {"relation": ADD_REMOVE, "sampled": True, "shareable": True}
    ledger = privacy.charge(privacy.open_ledger(**given), privacy.gaussian(2.0))
    written = flax.serialization.to_bytes(ledger)
    back = flax.serialization.from_bytes(privacy.open_ledger(**given), written)
    np.testing.assert_array_equal(back.total.rdp, ledger.total.rdp)
    assert (back.relation, back.sampled, back.shareable) == tuple(given.values())
    for other in (
        {"relation": NeighboringRelation.REPLACE_ONE},
        {"sampled": False},
        {"shareable": False},
    ):
        with pytest.raises(ValueError, match="fixed of the ledger of a checkpoint must be"):
            flax.serialization.from_bytes(privacy.open_ledger(**given | other), written)
    untold = flax.serialization.to_state_dict(ledger)
    del untold["fixed"]
    with pytest.raises(
        ValueError, match=r"fixed of the ledger of a checkpoint must be .* got None"
    ):
        flax.serialization.from_state_dict(privacy.open_ledger(**given), untold)


def test_a_state_of_32_bits_goes_on_under_64():
    update = jax.jit(CHAIN.update)
    state = update(PARAMS, CHAIN.init(PARAMS), PARAMS, clipped_to=1.0)[1]
    with jax.enable_x64(True):
        narrow = jax.tree.map(lambda x: x.astype(jnp.float32), PARAMS)
        state = jax.jit(CHAIN.update)(narrow, state, narrow, clipped_to=1.0)[1]
    twice = float(privacy.epsilon(privacy.scale(privacy.gaussian(2.0), 2), 1e-5))
    assert _spent(state) == pytest.approx(twice, rel=1e-5)
