"""Calls of ``dpsco_jax.transforms`` that work, where the common vocabulary does not say it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.tree import TreeCorrelation
from tests.support import kinds
from tests.support.good_calls import mechanisms
from tests.support.good_calls import privacy as privacy_calls
from tests.support.kinds import Fresh, Kind
from tests.support.objects import VECTOR

_PARAMS = {"params": jnp.asarray(VECTOR)}
_INNER = kinds.OBJECT(optax.sgd(0.1))
_USERS = {"num_users": Kind("real > 0", kinds.POSITIVE.bad)(12)}
_AVERAGE = Fresh(lambda: transforms.average().init(jnp.asarray(VECTOR)))
_AC_SA = Fresh(lambda: transforms.ac_sa(1.0).init(jnp.asarray(VECTOR)))
_CORRELATED = Fresh(
    lambda: transforms.privatize(
        transforms.clipped_sum(1.0), jax.random.key(0), 1.0, noise_correlation=TreeCorrelation(3)
    )
)
_ADAPTIVE = Fresh(
    lambda: transforms.adaptive_spider(_CORRELATED.make(), 1.0).init(jnp.asarray(VECTOR))
)
_PROX_STEP = Fresh(
    lambda: transforms.prox_step(1.0, 1.0, domains.whole_space()).init(jnp.asarray(VECTOR))
)
_SMALLEST = Fresh(lambda: transforms.smallest().init(jnp.asarray(VECTOR)))
_O2NC = Fresh(lambda: transforms.o2nc(jax.random.key(0), 0.1, 0.1, 2, 2).init(jnp.asarray(VECTOR)))
_BALL = {
    "center": kinds.NUMBERS(VECTOR),
    "gradient": kinds.NUMBERS(VECTOR),
    "anchor": kinds.NUMBERS(VECTOR),
    "step_size": kinds.NONNEGATIVE,
}

_PAIR = Kind("two numbers", ("nonsense", 7, None, (1.0,), (1.0, 0.0), (-1.0, 1.0)))
GOOD: dict[str, dict[str, Any]] = {
    "transforms.prox_step.prox_step": dict.fromkeys(("strength", "radius"), kinds.POSITIVE(0.5)),
    "transforms.prox_step.prox_step_eval_params": {"state": kinds.OBJECT(_PROX_STEP), **_PARAMS},
    "transforms.spider.spider": {
        "clips": _PAIR((1.0, 1.0)),
        "divisors": _PAIR((8, 8)),
        "multipliers": _PAIR((2.0, 3.0)),
        "loss": kinds.OBJECT(privacy.curves.gaussian(2.0)),
        "relation": kinds.RELATION(NeighboringRelation.REPLACE_ONE),
    },
    "transforms.ac_sa.ac_sa": {
        "smoothness": kinds.POSITIVE,
        "strong_convexity": kinds.NONNEGATIVE,
        "prox": kinds.FUNCTION(None),
    },
    "transforms.ac_sa.ac_sa_eval_params": {"state": kinds.OBJECT(_AC_SA), **_PARAMS},
    "transforms.ac_sa.balanced_smoothness": {
        "smoothness": kinds.NONNEGATIVE,
        "gradient_variance": kinds.NONNEGATIVE,
        "num_steps": kinds.POSITIVE,
    },
    "transforms.adaptive_spider.adaptive_spider": {
        "release": kinds.OBJECT(_CORRELATED),
        "share_norm": kinds.ANY(1.0),
    },
    "transforms.adaptive_spider.adaptive_state": {"opt_state": kinds.ANY(_ADAPTIVE)},
    "transforms.aggregates.clipped_mean": _USERS,
    "transforms.aggregates.summed_contributions": {
        **_USERS,
        "relation": kinds.RELATION(NeighboringRelation.REPLACE_ONE),
    },
    "transforms.aggregates.sum_in_chunks": {"user_mask": None, "microbatch_size": None},
    "transforms.average.average": {"shares": kinds.SHARES(np.array([1.0, 0.5]))},
    "transforms.average.average_eval_params": {"state": kinds.OBJECT(_AVERAGE), **_PARAMS},
    "transforms.centred_clip.centred_clip": {
        **_USERS,
        "centre_rate": kinds.PROBABILITY(0.5),
        "start": kinds.TREE(VECTOR),
        "quantile_rate": kinds.POSITIVE(0.5),
    },
    "transforms.centred_clip.stable_centre_rate": {
        **_USERS,
        "dim": Kind("real > 0", kinds.POSITIVE.bad)(4),
    },
    "transforms.halt_when.halt_when": {
        "inner": _INNER,
        "condition": kinds.FUNCTION(lambda updates, state: False),
    },
    "transforms.o2nc.o2nc": {
        "radius": kinds.POSITIVE(0.1),
        "step_size": kinds.POSITIVE(0.1),
        "block_length": kinds.COUNT(2),
    },
    "transforms.o2nc.o2nc_eval_params": {"state": kinds.OBJECT(_O2NC), **_PARAMS},
    "transforms.outlier_removed_mean.outlier_removed_mean": {
        "releases": kinds.OBJECT(privacy_calls.CONCENTRATED),
        "anchor": kinds.CHOICE.but(None)("last release"),
    },
    "transforms.outlier_removed_mean.halted": {"opt_state": kinds.ANY(())},
    "transforms.perturb_when_small.perturb_when_small": {
        "threshold": kinds.NONNEGATIVE(0.5),
        "stddev": kinds.NONNEGATIVE(0.5),
        "wait": kinds.POSITIVE(2.0),
    },
    "transforms.smallest.smallest_eval_params": {"state": kinds.OBJECT(_SMALLEST), **_PARAMS},
    "transforms.private_chain.private_chain": {
        "before": kinds.OBJECT.but(None)(optax.clip(1.0)),
        "release": kinds.OBJECT(optax.sgd(0.1)),
        "after": _INNER,
        "trainable": Kind("flags", ("nonsense", 7, None, {"a": 1.0}))(True),
    },
    "transforms.privatize.privatize": {
        "aggregate": kinds.OBJECT(transforms.clipped_sum(1.0)),
        "noise_multiplier": kinds.POSITIVE,
        "sampling": kinds.OBJECT(privacy.FullBatch()),
    },
    "transforms.project_subspace.project_subspace": {
        "aggregate": kinds.OBJECT(transforms.clipped_sum(1.0)),
        "basis": Kind(
            "orthonormal columns", ("nonsense", None, np.ones(3), 2 * np.eye(3), 1j * np.eye(3))
        )(np.eye(4)[:, :2]),
        "provenance": kinds.CHOICE("public"),
        "rank": kinds.COUNT.but(None).also(3)(1),
    },
    "transforms.project_subspace.projected_certificate": {
        "certificate": kinds.OBJECT(
            privacy.Certificate(1.0, 1e-5, NeighboringRelation.REPLACE_ONE, "closed form")
        ),
        "provenance": kinds.CHOICE("public"),
    },
    "transforms.restart.restart_every": {"inner": _INNER},
    "transforms.restart.restart_stages": {
        "of_stage": kinds.FUNCTION(lambda stage: optax.sgd(0.1)),
        "lengths": kinds.COUNTS((2, 3)),
    },
    "transforms.steps.ball_domain": _BALL,
    "transforms.steps.ball_step": _BALL,
    "transforms.steps.combined_quadratics": _BALL,
    "transforms.until_halted.until_halted": {
        "release": _INNER,
        "rest": kinds.OBJECT(optax.sgd(0.1)),
    },
    "transforms.winsorized_mean.winsorized_mean": {"releases": mechanisms.RELEASES},
}
EXEMPT: dict[tuple[str, str], str] = {
    ("transforms.outlier_removed_mean.halted", "*"): "looks for states in any tree",
    ("transforms.aggregates.sum_in_chunks", "*"): "a part of aggregates, behind their checks",
}
