"""Every function that returns a privacy loss: what is not a valid number costs infinitely much, or raises."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.privacy.loss import PrivacyLoss
from tests.support import public

NAN, INF = math.nan, math.inf


ZERO = "zero"  # the loss of releasing nothing, exactly
LEAST = "least"  # as good as zero: where sums are taken, the smallest number stands for it
BAD = "bad"  # eager: ValueError; traced: infinite at every order
INFINITE = "infinite"  # a valid value, of which nothing is proven

# What each argument makes of NaN, -1, inf, 0 and 1.5. Where a value is in its range, the loss is said; None
# means an ordinary loss.
MULTIPLIER = {NAN: BAD, -1.0: BAD, INF: ZERO, 0.0: INFINITE, 1.5: None}
SAMPLED = {**MULTIPLIER, INF: LEAST}
AMOUNT = {NAN: BAD, -1.0: BAD, INF: INFINITE, 0.0: ZERO, 1.5: None}
LAPLACE = {NAN: BAD, -1.0: BAD, INF: ZERO, 0.0: BAD, 1.5: None}
POSITIVE = {NAN: BAD, -1.0: BAD, INF: BAD, 0.0: BAD, 1.5: None}
SENSITIVITY = {NAN: BAD, -1.0: BAD, INF: BAD, 0.0: BAD, 1.5: None}
PROBABILITY = {NAN: BAD, -0.1: BAD, INF: BAD, 0.0: ZERO, 1.5: BAD, 1.0: None}
FAILURE = {NAN: BAD, -0.1: BAD, INF: BAD, 0.0: None, 1.5: BAD}
TAIL = {NAN: BAD, -0.1: BAD, INF: BAD, 0.0: None, 1.5: BAD}
COUNT = {NAN: BAD, -3.0: BAD, INF: BAD, 0.0: ZERO, 2.99: BAD, 3.0: None}
BATCH = {NAN: BAD, -3.0: BAD, INF: BAD, 0.0: ZERO, 5.99: BAD, 101.0: BAD, 100.0: None}
DRAWS = {NAN: BAD, -3.0: BAD, INF: BAD, 0.0: ZERO, 5.99: BAD, 101.0: None}
POPULATION = {NAN: BAD, -3.0: BAD, INF: BAD, 0.0: BAD, 99.5: BAD, 4.0: BAD, 5.0: None}
POPULATION_OF_DRAWS = {NAN: BAD, -3.0: BAD, INF: BAD, 0.0: BAD, 1.0: BAD, 99.5: BAD, 2.0: None}

_SUBSAMPLED = {"noise_multiplier": SAMPLED, "batch_size": BATCH, "population_size": POPULATION}
TABLE = {
    "mechanisms.additive.gaussian_loss": {"stddev": MULTIPLIER, "sensitivity": SENSITIVITY},
    "mechanisms.additive.laplace_loss": {"scale": LAPLACE, "sensitivity": SENSITIVITY},
    "mechanisms.additive.bounded_laplace_loss": {
        "scale": POSITIVE,
        "sensitivity": SENSITIVITY,
    },
    "mechanisms.sparse_vector.fixed_threshold_loss": {
        "threshold_epsilon": POSITIVE,
        "answer_epsilon": POSITIVE,
    },
    "mechanisms.heavy_hitters.heavy_hitter_loss": {"stddev": MULTIPLIER},
    "mechanisms.private_selection.geometric_selection_loss": {"candidate_epsilon": AMOUNT},
    "mechanisms.winsorized.winsorized_mean.winsorized_mean_1d_loss": {"epsilon": POSITIVE},
    "privacy.curves.closed_forms.approximate_dp": {
        "epsilon": {**AMOUNT, 0.0: None},
        "delta": FAILURE,
    },
    "privacy.curves.closed_forms.bounded_range": {"epsilon": AMOUNT},
    "privacy.curves.closed_forms.gaussian": {"noise_multiplier": MULTIPLIER},
    "privacy.curves.closed_forms.gdp": {"mu": AMOUNT},
    "privacy.curves.closed_forms.laplace": {"scale": LAPLACE},
    "privacy.curves.closed_forms.pure_dp": {"epsilon": AMOUNT},
    "privacy.curves.closed_forms.threshold_answer": {"epsilon": AMOUNT},
    "privacy.inexact.inexact_loss": {
        "mu": {NAN: BAD, -1.0: BAD, INF: BAD, 0.0: None, 0.3: None, 9.0: INFINITE},
        "variation": {NAN: BAD, -1.0: BAD, INF: BAD, 0.0: None, 1.5: BAD, 1e-3: INFINITE},
        "epsilon": {**POSITIVE, 1000.0: INFINITE},
        "delta": {NAN: BAD, -1.0: BAD, 0.0: BAD, 1.0: BAD, 1.5: BAD, 1e-5: None},
    },
    "privacy.iteration.last_iterate_loss": {
        "num_steps": {NAN: BAD, -3.0: BAD, INF: BAD, 0.0: BAD, 2.99: BAD, 3.0: None},
        "shrinkage": {NAN: BAD, -0.1: BAD, INF: BAD, 0.0: None, 1.5: BAD, 1.0: None},
        "noise_multiplier": MULTIPLIER,
    },
    "privacy.loss.scale": {"count": COUNT},
    "privacy.variation.with_variation": {
        "variation": {NAN: BAD, -1.0: BAD, INF: BAD, 0.0: None, 1.5: BAD, 1e-12: None},
        "horizon": {NAN: BAD, -1.0: BAD, INF: BAD, 3.0: None},
        "delta": {NAN: BAD, -1.0: BAD, 0.0: BAD, 1.0: BAD, 1e-6: None},
    },
    "privacy.curves.poisson.poisson_subsampled_gaussian": {
        "noise_multiplier": SAMPLED,
        "sampling_probability": PROBABILITY,
    },
    "privacy.curves.mixtures.poisson_replaced_gaussian": {
        "noise_multiplier": SAMPLED,
        "sampling_probability": PROBABILITY,
    },
    "privacy.curves.mixtures.user_sampled_gaussian": {
        "noise_multiplier": SAMPLED,
        "sampling_probability": PROBABILITY,
        "cap": {NAN: BAD, -1.0: BAD, 0.5: BAD, 2.0: None, INF: None},
    },
    "privacy.curves.binomial.item_sampled_gaussian": {
        "noise_multiplier": SAMPLED,
        "sampling_probability": PROBABILITY,
    },
    "privacy.sampling.PoissonItems.gaussian_loss": {
        "noise_multiplier": SAMPLED,
        "probability": PROBABILITY,
    },
    "privacy.sampling.FullBatch.gaussian_loss": {"noise_multiplier": MULTIPLIER},
    "privacy.sampling.Poisson.gaussian_loss": {
        "noise_multiplier": SAMPLED,
        "probability": PROBABILITY,
    },
    "privacy.sampling.WithReplacement.gaussian_loss": {
        "noise_multiplier": SAMPLED,
        "num_draws": DRAWS,
        "population_size": POPULATION_OF_DRAWS,
    },
    "privacy.sampling.WithoutReplacement.gaussian_loss": _SUBSAMPLED,
    "privacy.curves.subsampling.subsampled_gaussian_of_fraction": {
        "noise_multiplier": SAMPLED,
        "sampling_fraction": PROBABILITY,
    },
    "privacy.curves.subsampling.subsampled_gaussian_with_replacement": {
        "noise_multiplier": SAMPLED,
        "batch_size": DRAWS,
        "population_size": POPULATION_OF_DRAWS,
        "tail_probability": TAIL,
    },
    "privacy.curves.subsampling.subsampled_gaussian_without_replacement": _SUBSAMPLED,
}
# Static counts, no numbers that a program may trace: what is bad of them, tests/test_bad_arguments.py knows.
STATIC = {"items_per_user", "max_answers"}
# Losses that no number is turned into, with the reason.
NO_NUMBERS = {
    "privacy.ledger.privacy_spent": "reads a ledger",
    "privacy.loss.compose": "adds losses, see below",
    "privacy.loss.parallel": "the largest of losses, see below",
    "privacy.loss.unbounded": "takes nothing",
    "privacy.loss.unbounded_unless": "is told whether the loss holds",
    "privacy.loss.zero": "takes nothing",
    "privacy.curves.subsampling.at_orders": "on the host alone, where bad numbers raise",
    "privacy.resque.calls.call_loss": "on the host alone, where bad numbers raise",
    "privacy.resque.calls.calls_loss": "on the host alone, where bad numbers raise",
}


def _returns_a_loss(function):
    return "PrivacyLoss" in str(inspect.signature(function).return_annotation)


def test_the_table_has_every_function_that_returns_a_loss():
    found = {
        path
        for path, function in public.public_functions().items()
        if path in TABLE or _returns_a_loss(function)
    }
    for path in found & set(TABLE):
        positional, named = public.good_call(path)
        assert isinstance(public.public_functions()[path](*positional, **named), PrivacyLoss), path
    assert found == set(TABLE) | set(NO_NUMBERS)


@pytest.mark.parametrize("path", TABLE)
def test_every_number_of_a_loss_is_in_the_table(path):
    numeric = {
        found.name
        for found in public.parameters(path)
        if (
            isinstance(found.argument.value, int | float)
            and not isinstance(found.argument.value, bool)
        )
        or found.name == "tail_probability"
    }
    assert numeric - {"relation", "bound"} - STATIC == set(TABLE[path])


def _called(path, **changes):
    positional, named = public.good_call(path, **changes)
    return public.public_functions()[path](*positional, **named)


def _rows(path):
    """Calls in which one number is changed: what is changed, to what, and what is to come of it."""
    return [
        (name, value, what)
        for name, expected in TABLE[path].items()
        for value, what in expected.items()
    ]


@pytest.mark.parametrize("path", TABLE)
def test_traced_numbers_fail_closed(path):
    rows = _rows(path)
    good = {
        found.name: 1e-15 if found.name == "tail_probability" else found.argument.good()
        for found in public.parameters(path)
        if found.name in TABLE[path]
    }
    numbers = {
        name: jnp.array([value if name == changed else usual for changed, value, _ in rows])
        for name, usual in good.items()
    }
    # One program for all of them: every number is traced.
    losses = jax.jit(jax.vmap(lambda given: _called(path, **given)))(numbers)
    spent = jax.jit(lambda loss: privacy.epsilon(loss, 1e-6))(losses)
    for row, rdp, failure, epsilon in zip(rows, *map(np.asarray, (*losses, spent)), strict=True):
        assert 0 <= failure <= 1, row
        _check(row, rdp)
        if row[2] == BAD:
            assert epsilon == np.inf, row


@pytest.mark.parametrize("path", TABLE)
def test_eager_numbers_raise(path):
    for row in _rows(path):
        name, value, what = row
        if what == BAD:
            # Of a batch that is larger than the population, either may be named.
            named = "population_size|batch_size" if name == "population_size" else name
            with pytest.raises(ValueError, match=rf"\b({named})\b"):
                _called(path, **{name: value})
        else:
            if "WithReplacement" in path or "WithoutReplacement" in path:
                # The sizes of a scheme are integers where they are concrete; the floats of a curve are not.
                value = int(value) if isinstance(public.good_call(path)[1][name], int) else value
            _check(row, np.asarray(_called(path, **{name: value}).rdp))


def _check(row, rdp):
    what = row[2]
    if what == ZERO:
        assert np.all(rdp == 0), row
    elif what == LEAST:
        assert np.all((rdp >= 0) & (rdp < 1e-30)), row
    elif what in (INFINITE, BAD):
        assert np.all(rdp == np.inf), row
    else:
        assert np.all(rdp >= 0), row
        assert np.any(np.isfinite(rdp)), row


@pytest.mark.parametrize("both", [(-1.0, -1.0), (NAN, NAN)])
def test_two_bad_numbers_do_not_make_a_good_one(both):
    for path in ("mechanisms.additive.gaussian_loss", "mechanisms.additive.laplace_loss"):
        loss = jax.jit(public.public_functions()[path])(*map(jnp.float32, both))
        assert np.all(np.asarray(loss.rdp) == np.inf)


@pytest.mark.parametrize("value", [NAN, -1.0])
def test_of_a_loss_that_no_loss_can_be_nothing_follows(value):
    good = privacy.gaussian(2.0)
    rdp = np.array(good.rdp)
    rdp[7] = value
    for bad in (good._replace(rdp=rdp), good._replace(delta=np.asarray(value))):
        for loss in (
            bad,
            privacy.compose(good, bad) if math.isnan(value) else bad,
            privacy.parallel(good, bad) if math.isnan(value) else bad,
            privacy.scale(bad, 3),
        ):
            assert privacy.epsilon(loss, 1e-6) == np.inf
            assert privacy.delta(loss, 100.0) == 1.0
            traced = jax.tree.map(jnp.float32, loss)
            assert jax.jit(privacy.epsilon)(traced, 1e-6) == np.inf
            assert jax.jit(privacy.delta)(traced, 100.0) == 1.0


def test_traced_budgets_out_of_their_range_prove_nothing():
    loss = jax.tree.map(jnp.asarray, privacy.gaussian(2.0))
    for delta in (NAN, -0.1, 0.0, 1.0, 1.5):
        assert jax.jit(privacy.epsilon)(loss, delta) == np.inf
    for epsilon in (NAN, -1.0):
        assert jax.jit(privacy.delta)(loss, epsilon) == 1.0


def _fixed_size(sigma):
    return privacy.subsampled_gaussian_without_replacement(sigma, 100, 5)


@pytest.mark.parametrize(
    ("curve", "at"),
    [
        pytest.param(privacy.gaussian, 1.0, id="gaussian"),
        pytest.param(privacy.gdp, 1.0, id="gdp"),
        pytest.param(privacy.laplace, 1.0, id="laplace"),
        pytest.param(privacy.pure_dp, 0.5, id="pure"),
        pytest.param(privacy.bounded_range, 0.5, id="range"),
        pytest.param(_fixed_size, 1.0, marks=pytest.mark.slow, id="fixed"),
    ],
)
def test_gradients_are_finite_wherever_the_loss_is(curve, at):
    """That of Poisson samples: tests/privacy/test_poisson.py."""
    slope_of = jax.grad(lambda x: privacy.epsilon(curve(x), 1e-6))
    # Operation by operation the largest of these programs takes half of the time.
    slope = slope_of(at) if curve is _fixed_size else jax.jit(slope_of)(at)
    assert np.isfinite(slope)
    assert slope != 0.0


def test_a_condition_that_is_no_boolean_is_refused():
    loss = jax.tree.map(jnp.asarray, privacy.gaussian(2.0))
    with pytest.raises(ValueError, match="holds"):
        jax.jit(privacy.unbounded_unless)(jnp.float32(NAN), loss)
