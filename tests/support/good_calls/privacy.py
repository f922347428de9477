"""Calls of ``dpsco_jax.privacy`` that work, where the common vocabulary does not say it."""

import functools
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.privacy import resque
from dpsco_jax.privacy.curves import tcdp
from dpsco_jax.privacy.dp_accounting import compositions, events
from dpsco_jax.privacy.pld import pairs, pld_window
from tests.support import kinds
from tests.support.kinds import Fresh, Kind

_ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE = NeighboringRelation.REPLACE_ONE
_CALL = resque.ResqueCall(num_queries=8, beta=0.01, radius_ratio=4.0, population=100)
_PAIRS = Kind("pairs with counts", ("nonsense", 7, None))
_SENTENCES = Kind("sentences", (7, None, (7,), "nonsense"))(())
_CALLS = Kind("calls with counts", ("nonsense", 7, None, [(_CALL, 1.5)], [(_CALL, -1)], [(7, 1)]))
_HALF = Kind("in (0, 1/2]", (0.0, 0.6, *kinds.PROBABILITY.bad))
_CAP = Kind("number in [1, inf]", (0.5, -1.0, float("nan"), "nonsense"))(2.0)
_RELEASES = {"releases": kinds.ANY(compositions.compositions(events.gaussian(2.0), _REPLACE)[0])}
_NOISE = {"noise_multiplier": kinds.NONNEGATIVE_OR_INF}
_LAW = pld_window.discretize(pairs.gaussian(2.0), np.linspace(-3.0, 3.0, 13))
_AMOUNT = kinds.NONNEGATIVE_OR_INF
_STEPS = {
    "num_steps": Kind("whole number >= 1", (0, *kinds.WHOLE.bad)),
    "sampling_probability": kinds.POSITIVE_PROBABILITY,
}
CONCENTRATED = Fresh(functools.cache(lambda: privacy.calibrate_concentrated(4000, 2, 4.0, 1e-6)))

_SIZES = {
    **_NOISE,
    "population_size": Kind("whole number >= 1", (0, *kinds.WHOLE.bad)),
    "batch_size": kinds.WHOLE,
    "relation": kinds.RELATION(_REPLACE),
}
_SIGMA_DELTA = {"noise_multiplier": kinds.POSITIVE}

# Of 12 users: keep_level above 1/2, level from keep_level times 12 to 11.
_CORE = {
    "level": Kind("in [7.2, 11]", (7.0, 12.0, *kinds.POSITIVE.bad))(10.0),
    "keep_level": Kind("in (0.5, 1)", (0.5, *kinds.OPEN_PROBABILITY.bad))(0.6),
}

_STATE = {"opt_state": kinds.OBJECT((privacy.open_ledger(NeighboringRelation.REPLACE_ONE),))}
_TRUST = {"trust": Kind("types", ("nonsense", 7, None, (7,)))(())}

GOOD: dict[str, dict[str, Any]] = {
    "privacy.iteration.last_iterate_gdp": {
        "contraction": kinds.PROBABILITY(0.9),
        "noise_multiplier": kinds.POSITIVE,
    },
    "privacy.iteration.last_iterate_loss": {
        "num_steps": Kind("whole number >= 1", (0, *kinds.WHOLE.bad))(10),
        "shrinkage": kinds.PROBABILITY(0.1),
        "noise_multiplier": kinds.NONNEGATIVE_OR_INF,
    },
    "privacy.iteration.last_iterate_mu": {
        "num_steps": Kind("whole number >= 1", (0, *kinds.WHOLE.bad))(10),
        "shrinkage": kinds.PROBABILITY(0.1),
        "noise_multiplier": kinds.NONNEGATIVE_OR_INF,
    },
    "privacy.iteration.last_iterate_noise_multiplier": {
        "mu": kinds.POSITIVE,
        "contraction": kinds.PROBABILITY(0.9),
    },
    "privacy.variation.gdp_within": {
        "variation": Kind("below δ/(1 + e^ε)", (-1.0, 0.5, np.nan))(0.0)
    },
    "privacy.variation.variation_delta": {
        "mu": kinds.NONNEGATIVE,
        "variation": kinds.PROBABILITY(1e-9),
        "epsilon": kinds.NONNEGATIVE(1.0),
    },
    "privacy.variation.variation_epsilon": {
        "mu": kinds.NONNEGATIVE,
        "variation": kinds.PROBABILITY(1e-9),
    },
    "privacy.variation.with_variation": {
        "variation": kinds.PROBABILITY(1e-15),
        "horizon": kinds.NONNEGATIVE(3.0),
    },
    "privacy.inexact.inexact_certificate": {
        "mu": kinds.NONNEGATIVE(0.2),
        "variation": kinds.PROBABILITY(1e-9),
        "relation": kinds.RELATION(_REPLACE),
        "assumptions": _SENTENCES,
    },
    "privacy.inexact.inexact_loss": {
        "mu": kinds.NONNEGATIVE(0.2),
        "variation": kinds.PROBABILITY(1e-9),
        "epsilon": kinds.POSITIVE(1.0),
    },
    "privacy.attacks.attack_advantage": {
        "guarantee": kinds.OBJECT(privacy.Budget(1.0, 1e-6)),
        "records": kinds.COUNT(1),
    },
    "privacy.budget.Budget": {"delta": kinds.SHARE(1e-5)},
    "privacy.accountants.closed_form": _RELEASES,
    "privacy.accountants.privacy_loss_distribution": _RELEASES,
    "privacy.accountants.renyi": _RELEASES,
    "privacy.accountants.gaussian_epsilon": _SIGMA_DELTA,
    "privacy.accountants.raised": {
        "value": kinds.ANY(1.0),
        "holds": kinds.FUNCTION(lambda _: True),
    },
    "privacy.audits.auditing.audit": {
        "data": kinds.ANY(np.zeros(2)),
        "neighbour": kinds.ANY(np.ones(2)),
        "mechanism": lambda key, data: data[0],
        "num_runs": kinds.COUNT_FROM_TWO(8),
        "delta": kinds.SHARE(0.0),
    },
    "privacy.audits.auditing.audit_scores": {
        "scores": np.arange(8.0),
        "neighbour_scores": kinds.NUMBERS(np.arange(8.0)),
        "delta": kinds.SHARE(0.0),
    },
    "privacy.audits.auditing.check_delta_and_confidence": {"delta": kinds.SHARE, "confidence": 0.9},
    "privacy.audits.auditing.epsilon_lower_bound": {
        "true_positives": kinds.WHOLE(90),
        "false_positives": kinds.WHOLE(10),
        "delta": kinds.SHARE(0.0),
    },
    "privacy.audits.grid_curve.gdp_general_norm_check": {
        "potential": kinds.FUNCTION(lambda x: np.sum(x**2, axis=1) / 2),
        "other": kinds.FUNCTION(lambda x: np.sum((x - 1) ** 2, axis=1) / 2),
        "axes": Kind("axes", ("nonsense", 7, None, [], [np.array([0.0, 1.0])]))(
            [np.linspace(-3.0, 4.0, 29)]
        ),
        "p": Kind("in [1, inf]", (0.5, -1.0, kinds.NAN, "1", None, 1j, True))(2.0),
        "lipschitz_diff": kinds.POSITIVE.also(0.5)(1.0),
        "strong_convexity": kinds.POSITIVE.also(2.0)(1.0),
        "epsilons": kinds.NONNEGATIVE(np.array([0.5, 1.0])),
    },
    "privacy.calibration.calibrate": {
        "lower": kinds.POSITIVE(0.1),
        "upper": kinds.POSITIVE(100.0),
    },
    "privacy.calibration.calibrate_noise_multiplier": _STEPS,
    "privacy.calibration.calibrate_sampling_probability": _STEPS,
    "privacy.calibration.calibrate_num_steps": {"sampling_probability": kinds.PROBABILITY},
    "privacy.certificates.accounted_by": {"accountant": kinds.WORDS("closed form")},
    "privacy.certificates.certificate": {"assumptions": _SENTENCES},
    "privacy.certificates.state_certificate": {"assumptions": _SENTENCES} | _STATE | _TRUST,
    "privacy.certificates.certificate_of": {
        "alternatives": kinds.ANY((_RELEASES["releases"].value,)),
        "assumptions": _SENTENCES,
    },
    "privacy.certified_noise.certified_noise_multiplier": {
        "sampling": kinds.OBJECT(privacy.FullBatch()),
        "near": kinds.POSITIVE(1.0),
    },
    "privacy.curves.subsampling.at_orders": {
        "noise_multiplier": kinds.POSITIVE(1.5),
        "which": kinds.OBJECT(slice(3, 9)),
    },
    "privacy.certified_noise.decreasing_root": {
        "slope": kinds.SIGNED(-1.0),
        "excess": kinds.FUNCTION(lambda x: 1.0 - x),
        "start": kinds.SIGNED(0.0),
        "under": kinds.POSITIVE(1e-3),
    },
    "privacy.certified_noise.root_above": {
        "slope": kinds.SIGNED(-1.0),
        "excess": kinds.FUNCTION(lambda x: 1.0 - x),
        "start": kinds.SIGNED(0.0),
        "under": kinds.POSITIVE(1e-3),
        "low": kinds.SIGNED(-1.0),
        "high": kinds.POSITIVE_OR_INF(5.0),
    },
    "privacy.curves.composition.advanced_composition": {
        "slack": kinds.OPEN_PROBABILITY(1e-6),
        "epsilon": kinds.NONNEGATIVE,
        "delta": kinds.SHARE,
    },
    "privacy.curves.composition.optimal_composition": {
        "epsilon": kinds.NONNEGATIVE,
        "total_epsilon": kinds.NONNEGATIVE,
        "delta": kinds.SHARE,
    },
    "privacy.curves.composition.heterogeneous_composition": {
        "epsilons": Kind("numbers", ("nonsense", 7, None, (-1.0, 0.1)))((0.5, 0.1)),
        "deltas": Kind("numbers", ("nonsense", 7, None, (0.1,), (2.0, 0.0)))((1e-6, 0.0)),
        "slack": kinds.SHARE(1e-6),
    },
    "privacy.sampling.amplify": {
        "epsilon": kinds.NONNEGATIVE,
        "delta": kinds.SHARE,
        "sampling": kinds.OBJECT(privacy.WithoutReplacement(10, 3)),
        "relation": kinds.RELATION(_REPLACE),
    },
    "privacy.curves.composition.group_privacy": {
        "epsilon": kinds.NONNEGATIVE,
        "delta": kinds.SHARE,
    },
    "privacy.curves.composition.log_gaussian_delta": {
        "epsilon": kinds.SIGNED(1.0),
        "mu": kinds.POSITIVE,
    },
    "privacy.curves.composition.log_response_gaussian_delta": {
        "response_epsilon": kinds.NONNEGATIVE(0.5),
        "epsilon": kinds.SIGNED(1.0),
        "mu": kinds.POSITIVE,
    },
    "privacy.curves.composition.response_gaussian_mu": {"response_epsilon": kinds.NONNEGATIVE(0.5)},
    "privacy.curves.closed_forms.approximate_dp": {"epsilon": _AMOUNT, "delta": kinds.PROBABILITY},
    "privacy.curves.closed_forms.bounded_range": {"epsilon": _AMOUNT},
    "privacy.curves.closed_forms.threshold_answer": {"epsilon": _AMOUNT},
    "privacy.curves.closed_forms.pure_dp": {"epsilon": _AMOUNT, "bound": kinds.CHOICE("exact")},
    "privacy.curves.closed_forms.gaussian": _NOISE,
    "privacy.curves.closed_forms.gdp": {"mu": _AMOUNT},
    "privacy.curves.closed_forms.laplace": {"scale": kinds.POSITIVE_OR_INF},
    "privacy.dp_accounting.events.ApproximateDpEvent": {
        "epsilon": kinds.NONNEGATIVE(1.0),
        "delta": kinds.SHARE(0.0),
    },
    "privacy.dp_accounting.events.ParallelDpEvent": {
        "events": Kind("tuple of events", ("nonsense", 7, None, (7,)))((events.gaussian(2.0),))
    },
    "privacy.dp_accounting.events.gaussian": _NOISE,
    "privacy.dp_accounting.events.laplace": {"scale": kinds.NONNEGATIVE_OR_INF},
    "privacy.dp_accounting.events.poisson_subsampled_gaussian": _NOISE,
    "privacy.dp_accounting.events.user_sampled_gaussian": {**_NOISE, "cap": _CAP},
    "privacy.dp_accounting.events.UserSampledDpEvent": {
        "cap": _CAP,
        "event": kinds.OBJECT(events.gaussian(2.0)),
    },
    "privacy.dp_accounting.events.item_sampled_gaussian": {
        **_NOISE,
        "items_per_user": kinds.COUNT(3),
    },
    "privacy.curves.binomial.item_sampled_gaussian": {
        **_NOISE,
        "items_per_user": kinds.COUNT(3),
        "relation": kinds.RELATION(_ADD),
    },
    "privacy.curves.mixtures.poisson_replaced_gaussian": _NOISE,
    "privacy.curves.mixtures.user_sampled_gaussian": {**_NOISE, "cap": _CAP},
    "privacy.pld.mixture_pairs.poisson_replaced_gaussian": {
        "sampling_probability": kinds.POSITIVE_PROBABILITY
    },
    "privacy.pld.binomial_pairs.binomial_replaced_gaussian": {
        "sampling_probability": kinds.POSITIVE_PROBABILITY
    },
    "privacy.pld.binomial_pairs.binomial_removed_gaussian": {
        "sampling_probability": kinds.POSITIVE_PROBABILITY
    },
    "privacy.pld.mixture_pairs.user_sampled_gaussian": {
        "sampling_probability": kinds.POSITIVE_PROBABILITY,
        "cap": _CAP,
    },
    "privacy.pld.pairs.self_mirrored": {
        "half": kinds.OBJECT(pairs.poisson_gaussian(2.0, 0.1)),
        "at_zero": kinds.SHARE(0.1),
    },
    "privacy.dp_accounting.events.subsampled_gaussian_without_replacement": {
        **_NOISE,
        "batch_size": kinds.COUNT_OR_ZERO,
    },
    "privacy.ledger.privacy_spent": _STATE | _TRUST,
    "privacy.ledger.doubts": _STATE | _TRUST,
    "privacy.ledger.relation_of": _STATE,
    "privacy.loss.epsilon": {"loss": kinds.OBJECT},
    "privacy.loss.delta": {"epsilon": _AMOUNT},
    "privacy.loss.scale": {"count": kinds.WHOLE},
    "privacy.loss.unbounded_unless": {"holds": kinds.FLAG(True)},
    "privacy.audits.one_run.one_run_epsilon_lower_bound": {"delta": kinds.SHARE(0.0)},
    "privacy.audits.one_run.one_run_audit": {
        "scores": np.arange(10.0),
        "included": kinds.MASK(np.arange(10) >= 5),
        "num_guesses": kinds.COUNT_FROM_TWO(4),
        "delta": kinds.SHARE(0.0),
    },
    "privacy.pld.pairs.approximate_dp": {"epsilon": kinds.NONNEGATIVE, "delta": kinds.SHARE(0.0)},
    "privacy.pld.pairs.without_replacement_cells": {
        "shifts": kinds.NUMBERS(np.array([0.5, 1.0])),
        "sampling_fraction": kinds.POSITIVE_PROBABILITY(0.5),
        "positive": kinds.NUMBERS(np.array([0.0, 1.0])),
    },
    "privacy.pld.pairs.gaussian_without_replacement": {
        "sampling_fraction": kinds.POSITIVE_PROBABILITY
    },
    "privacy.pld.pairs.poisson_gaussian": {"sampling_probability": kinds.POSITIVE_PROBABILITY},
    "privacy.pld.convolution.epsilon": {"components": _PAIRS([(pairs.gaussian(2.0), 2)])},
    "privacy.curves.poisson.is_exact": _NOISE,
    "privacy.curves.poisson.poisson_subsampled_gaussian": {
        **_NOISE,
        "relation": kinds.RELATION(_ADD),
    },
    "privacy.pld.pld_window.choose_window": {
        "components": kinds.ANY([(pairs.gaussian(2.0), 2)]),
        "supports": kinds.ANY([(-3.0, 3.0)]),
        "spacing": kinds.ANY(None),
        "guess": kinds.ANY(None),
    },
    "privacy.pld.pld_window.discretize": {"losses": kinds.ANY(np.linspace(-3.0, 3.0, 13))},
    "privacy.pld.pld_window.log_moments": {
        "law": kinds.ANY(_LAW),
        "tilts": kinds.ANY(np.array([1.0])),
    },
    "privacy.curves.poisson.log_moments": {
        "sigma": kinds.ANY(np.array(2.0)),
        "q": kinds.ANY(np.array(0.1)),
    },
    "privacy.curves.poisson.minkowski": {
        "sigma": kinds.ANY(np.array(2.0)),
        "q": kinds.ANY(np.array(0.1)),
    },
    "privacy.resque.calls.ResqueCall": {
        "num_queries": kinds.COUNT_FROM_TWO(8),
        "beta": kinds.POSITIVE(0.01),
        "radius_ratio": Kind("real >= 2", (1.5, *kinds.POSITIVE.bad))(4.0),
        "population": kinds.COUNT_FROM_TWO(100),
        "replacement": kinds.FLAG(False),
    },
    "privacy.resque.calls.conditional_cost": {
        "call": kinds.OBJECT(_CALL),
        "failure": kinds.POSITIVE_PROBABILITY,
    },
    "privacy.resque.calls.call_loss": {"call": kinds.OBJECT(_CALL), "failure": _HALF},
    "privacy.resque.calls.calls_loss": {"calls": _CALLS([(_CALL, 2)]), "failure": _HALF},
    "privacy.resque.calls.calls_epsilon": {"calls": _CALLS([(_CALL, 2)])},
    "privacy.resque.calls.calibrate_beta": {
        "calls_at": kinds.FUNCTION(
            lambda beta: [(resque.ResqueCall(8, beta, 4.0, 100), 2)],
        ),
        "near": Kind("in (1e-7, 4)", (1e-8, 5.0, *kinds.POSITIVE.bad)),
    },
    "privacy.resque.calls.violated_preconditions": {"call": kinds.OBJECT(_CALL)},
    "privacy.curves.subsampling.subsampled_gaussian_without_replacement": _SIZES,
    "privacy.curves.subsampling.subsampled_gaussian_of_fraction": {
        **_NOISE,
        "relation": kinds.RELATION(_REPLACE),
    },
    "privacy.curves.subsampling.subsampled_gaussian_with_replacement": {
        **_SIZES,
        "population_size": Kind("whole number >= 2", (0, 1, *kinds.WHOLE.bad)),
    },
    "privacy.curves.tcdp.epsilon": {"loss": tcdp.gaussian(10.0)},
    "privacy.curves.tcdp.gaussian": {"noise_multiplier": kinds.POSITIVE_OR_INF(10.0)},
    "privacy.curves.tcdp.scale": {"loss": tcdp.gaussian(10.0)},
    "privacy.curves.tcdp.subsampled": {
        "loss": tcdp.gaussian(10.0),
        "sampling_fraction": Kind("in (0, 0.1]", (0.0, 0.2, *kinds.PROBABILITY.bad))(0.01),
    },
    "privacy.concentrated.threshold_phase.calibrate_concentrated": {
        "num_users": kinds.COUNT_FROM_TWO(4000),
        "batch_size": kinds.COUNT_FROM_TWO,
        "epsilon": 4.0,
        "relation": kinds.REPLACE_ONLY.but(NeighboringRelation.REPLACE_SPECIAL),
    },
    "privacy.concentrated.threshold_phase.coupled_sensitivity": _CORE,
    "privacy.concentrated.threshold_phase.mean_sensitivity": _CORE,
    "privacy.concentrated.threshold_phase.fewest_users": {
        "calibrate": kinds.FUNCTION(
            lambda users: privacy.calibrate_concentrated(users, 2, 4.0, 1e-6)
        )
    },
}

EXEMPT: dict[tuple[str, str], str] = {
    (f"privacy.{name}", "*"): "arithmetic of the accountants, behind the checks of what they serve"
    for name in (
        "accountants.raised",
        "certified_noise.decreasing_root",
        "certified_noise.root_above",
        "pld.pairs.without_replacement_cells",
        "pld.pld_window.choose_window",
        "pld.pld_window.discretize",
        "pld.pld_window.log_moments",
        "curves.poisson.log_moments",
        "curves.poisson.minkowski",
    )
} | {
    (f"privacy.releases.{name}_certificate", "*"): "tests/privacy/test_releases.py"
    for name in ("parallel", "sequential")
}


def _poisson_loss(probability: Any, noise_multiplier: Any, relation: Any = _ADD) -> Any:
    return privacy.Poisson(probability).gaussian_loss(noise_multiplier, relation)


def _poisson_event(probability: Any, noise_multiplier: Any) -> Any:
    return privacy.Poisson(probability).gaussian_event(noise_multiplier)


def _poisson_release(probability: Any, noise_multiplier: Any, relation: Any) -> Any:
    return privacy.Poisson(probability).gaussian_release(noise_multiplier, relation)


def _users_loss(probability: Any, cap: Any, noise_multiplier: Any, relation: Any = _REPLACE) -> Any:
    return privacy.PoissonUsers(probability, cap).gaussian_loss(noise_multiplier, relation)


def _users_event(probability: Any, cap: Any, noise_multiplier: Any) -> Any:
    return privacy.PoissonUsers(probability, cap).gaussian_event(noise_multiplier)


def _users_release(probability: Any, cap: Any, noise_multiplier: Any, relation: Any) -> Any:
    return privacy.PoissonUsers(probability, cap).gaussian_release(noise_multiplier, relation)


def _items_loss(
    probability: Any, items_per_user: Any, noise_multiplier: Any, relation: Any = _ADD
) -> Any:
    scheme = privacy.PoissonItems(probability, items_per_user)
    return scheme.gaussian_loss(noise_multiplier, relation)


def _items_event(probability: Any, items_per_user: Any, noise_multiplier: Any) -> Any:
    return privacy.PoissonItems(probability, items_per_user).gaussian_event(noise_multiplier)


def _items_release(
    probability: Any, items_per_user: Any, noise_multiplier: Any, relation: Any
) -> Any:
    scheme = privacy.PoissonItems(probability, items_per_user)
    return scheme.gaussian_release(noise_multiplier, relation)


def _full_loss(noise_multiplier: Any, relation: Any) -> Any:
    return privacy.FullBatch().gaussian_loss(noise_multiplier, relation)


def _full_event(noise_multiplier: Any) -> Any:
    return privacy.FullBatch().gaussian_event(noise_multiplier)


def _full_release(noise_multiplier: Any, relation: Any) -> Any:
    return privacy.FullBatch().gaussian_release(noise_multiplier, relation)


def _without_loss(
    population_size: Any, batch_size: Any, noise_multiplier: Any, relation: Any
) -> Any:
    scheme = privacy.WithoutReplacement(population_size, batch_size)
    return scheme.gaussian_loss(noise_multiplier, relation)


def _without_event(population_size: Any, batch_size: Any, noise_multiplier: Any) -> Any:
    return privacy.WithoutReplacement(population_size, batch_size).gaussian_event(noise_multiplier)


def _without_release(
    population_size: Any, batch_size: Any, noise_multiplier: Any, relation: Any
) -> Any:
    scheme = privacy.WithoutReplacement(population_size, batch_size)
    return scheme.gaussian_release(noise_multiplier, relation)


def _with_loss(population_size: Any, num_draws: Any, noise_multiplier: Any, relation: Any) -> Any:
    scheme = privacy.WithReplacement(population_size, num_draws)
    return scheme.gaussian_loss(noise_multiplier, relation)


SCHEMES: dict[str, Any] = {
    "privacy.sampling.Poisson.gaussian_loss": _poisson_loss,
    "privacy.sampling.Poisson.gaussian_event": _poisson_event,
    "privacy.sampling.Poisson.gaussian_release": _poisson_release,
    "privacy.sampling.PoissonUsers.gaussian_loss": _users_loss,
    "privacy.sampling.PoissonUsers.gaussian_event": _users_event,
    "privacy.sampling.PoissonUsers.gaussian_release": _users_release,
    "privacy.sampling.PoissonItems.gaussian_loss": _items_loss,
    "privacy.sampling.PoissonItems.gaussian_event": _items_event,
    "privacy.sampling.PoissonItems.gaussian_release": _items_release,
    "privacy.sampling.FullBatch.gaussian_loss": _full_loss,
    "privacy.sampling.FullBatch.gaussian_event": _full_event,
    "privacy.sampling.FullBatch.gaussian_release": _full_release,
    "privacy.sampling.WithoutReplacement.gaussian_loss": _without_loss,
    "privacy.sampling.WithoutReplacement.gaussian_event": _without_event,
    "privacy.sampling.WithoutReplacement.gaussian_release": _without_release,
    "privacy.sampling.WithReplacement.gaussian_loss": _with_loss,
}
GOOD |= {path: dict(_NOISE) for path in SCHEMES}
GOOD["privacy.sampling.Poisson.gaussian_loss"]["relation"] = kinds.RELATION(_ADD)
GOOD["privacy.sampling.Poisson.gaussian_release"]["relation"] = kinds.RELATION(_ADD)
for _path in ("gaussian_loss", "gaussian_event", "gaussian_release"):
    GOOD[f"privacy.sampling.PoissonUsers.{_path}"]["cap"] = _CAP
for _path in ("gaussian_loss", "gaussian_event", "gaussian_release"):
    GOOD[f"privacy.sampling.PoissonItems.{_path}"] |= {
        "relation": kinds.RELATION(_ADD),
        "items_per_user": kinds.COUNT(3),
    }
del GOOD["privacy.sampling.PoissonItems.gaussian_event"]["relation"]
# A scheme draws as many users as it says: a float is none, even where it is a whole number.
_DRAWN = Kind("integer >= 0", (5.0, *kinds.COUNT_OR_ZERO.bad))
for _path in ("gaussian_loss", "gaussian_event", "gaussian_release"):
    GOOD[f"privacy.sampling.WithoutReplacement.{_path}"] |= {
        "population_size": Kind("integer >= 1", (100.0, *kinds.COUNT.bad)),
        "batch_size": _DRAWN,
    }
GOOD["privacy.sampling.WithReplacement.gaussian_loss"] |= {
    "population_size": Kind("integer >= 2", (100.0, *kinds.COUNT_FROM_TWO.bad)),
    "num_draws": _DRAWN(5),
}
