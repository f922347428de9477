"""Calls of online solvers, of streams and of lazy draws that work."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import Budget
from dpsco_jax.problems import streams
from dpsco_jax.solvers.online import convex, experts, fake_switch, lazy_to_private, noised_leader
from tests.support import kinds
from tests.support.kinds import Fresh, Kind

_BUDGET = Kind("budget with a positive delta", (*kinds.OBJECT.bad, 1.0, Budget(1.0)))(
    Budget(1.0, 1e-6)
)
_SIZES = {"num_rounds": kinds.COUNT(20), "dim": kinds.COUNT_FROM_TWO(3)}
_BATCH = {"batch_size": kinds.COUNT.but(None)(4)}
_CHANCE = {"redraw_probability": kinds.POSITIVE_PROBABILITY(0.5)}
_MEASURE = lazy_to_private.Measure(
    init=lambda: jnp.zeros(3),
    update=lambda total, loss: total + loss,
    sample=lambda key, total: jax.random.categorical(key, -0.1 * total),
    loss_at=lambda loss, x: loss[x],
)
_PLAN = Fresh(functools.cache(lambda: experts.plan(20, 3, Budget(1.0, 1e-6), batch_size=4)))
_LAZY = Fresh(
    functools.cache(
        lambda: lazy_to_private.plan(
            20, learning_rate=0.1, clip=0.1, draw_zcdp=0.005, redraw_probability=0.2, delta=1e-6
        )
    )
)
_FAKE = Fresh(functools.cache(lambda: fake_switch.plan(20, 3, redraw_probability=0.1)))
_BALL = {"radius": kinds.POSITIVE(1.0), "lipschitz": kinds.POSITIVE(1.0)}
_ON_BALL = Fresh(
    functools.cache(
        lambda: convex.plan(
            20, 3, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0, redraw_probability=1.0
        )
    )
)
_LEADER = Fresh(
    functools.cache(lambda: noised_leader.plan(20, 3, Budget(1.0, 1e-6), radius=1.0, lipschitz=1.0))
)
_STREAM = {"losses": kinds.FUNCTION(streams.rows(jnp.zeros((20, 3))))}
_LOSS = Kind("losses of experts", ("nonsense", None, 7, np.zeros(2), np.zeros((3, 1))))(np.zeros(3))
_ANY_MEASURE = {"measure": kinds.OBJECT(_MEASURE)}
_MEANS = {"means": Kind("chances", ("nonsense", None, 1.5, np.array([-0.1, 0.5])))(np.full(3, 0.5))}


def _state() -> Any:
    return experts.init(jax.random.key(0), _PLAN.make())


def _convex_state() -> Any:
    return jax.jit(lambda key: convex.init(key, _ON_BALL.make()))(jax.random.key(0))


def _leader_state() -> Any:
    return noised_leader.init(jax.random.key(0), _LEADER.make())


def _lazy_state() -> Any:
    return lazy_to_private.init(jax.random.key(0), _LAZY.make(), _MEASURE)


GOOD: dict[str, dict[str, Any]] = {
    "solvers.online.experts.plan": {
        **_SIZES,
        **_BATCH,
        "budget": _BUDGET,
        "reference": kinds.CHOICE("none"),
        "redraw_probability": kinds.POSITIVE_PROBABILITY.but(None)(0.5),
    },
    "solvers.online.experts.init": {"plan": kinds.OBJECT(_PLAN)},
    "solvers.online.experts.step": {"state": kinds.OBJECT(Fresh(_state)), "loss": _LOSS},
    "solvers.online.experts.solve": {"plan": kinds.OBJECT(_PLAN), **_STREAM},
    "solvers.online.convex.plan": {
        **_BALL,
        **_BATCH,
        "num_rounds": kinds.COUNT(20),
        "dim": kinds.COUNT(3),
        "budget": _BUDGET,
        "redraw_probability": kinds.POSITIVE_PROBABILITY.but(None)(1.0),
    },
    "solvers.online.convex.init": {"plan": kinds.OBJECT(_ON_BALL)},
    "solvers.online.convex.step": {"state": kinds.OBJECT(Fresh(_convex_state)), "loss": _LOSS},
    "solvers.online.convex.solve": {"plan": kinds.OBJECT(_ON_BALL), **_STREAM},
    "solvers.online.noised_leader.plan": {
        **_BALL,
        "num_rounds": kinds.COUNT(20),
        "dim": kinds.COUNT(3),
        "budget": _BUDGET,
        "losses": kinds.CHOICE("linear"),
        "constants": kinds.CHOICE("tight"),
        "bands": kinds.COUNT(8),
    },
    "solvers.online.noised_leader.init": {"plan": kinds.OBJECT(_LEADER)},
    "solvers.online.noised_leader.step": {
        "state": kinds.OBJECT(Fresh(_leader_state)),
        "gradient": _LOSS,
    },
    "solvers.online.noised_leader.solve": {"plan": kinds.OBJECT(_LEADER), **_STREAM},
    "solvers.online.batched_redraw.plan": {**_SIZES, **_BATCH, "budget": _BUDGET},
    "solvers.online.shrinking_dartboard.plan": {
        **_SIZES,
        "learning_rate": kinds.POSITIVE.but(None)(0.1),
    },
    "solvers.online.fake_switch.plan": {
        **_SIZES,
        "redraw_probability": kinds.PROBABILITY(0.1),
        "learning_rate": kinds.POSITIVE.but(None)(0.1),
    },
    "solvers.online.fake_switch.solve": {"plan": kinds.OBJECT(_FAKE), **_STREAM},
    "solvers.online.lazy_to_private.plan": {
        **_CHANCE,
        "num_rounds": kinds.COUNT(20),
        "learning_rate": kinds.POSITIVE(0.1),
        "clip": kinds.POSITIVE(0.1),
        "draw_zcdp": kinds.NONNEGATIVE(0.005),
        "delta": kinds.OPEN_PROBABILITY(1e-6),
        "batch_size": kinds.COUNT(4),
        "reference": kinds.CHOICE("lagged"),
        "reference_probability": kinds.PROBABILITY.but(None)(0.5),
        "envelope_factor": kinds.AT_LEAST_ONE(1.0),
        "variation": kinds.PROBABILITY.but(None)(1e-9),
    },
    "solvers.online.lazy_to_private.init": {"plan": kinds.OBJECT(_LAZY), **_ANY_MEASURE},
    "solvers.online.lazy_to_private.step": {
        "state": kinds.OBJECT(Fresh(_lazy_state)),
        **_ANY_MEASURE,
        "loss": kinds.ANY(jnp.zeros(3)),
    },
    "solvers.online.lazy_to_private.solve": {
        "plan": kinds.OBJECT(_LAZY),
        **_ANY_MEASURE,
        **_STREAM,
    },
    "rates.online.regret": {
        "method": kinds.CHOICE("L2P, experts"),
        "num_rounds": kinds.POSITIVE(1e4),
        "epsilon": kinds.POSITIVE(0.5),
        "dim": kinds.POSITIVE(10.0),
    },
    "rates.online.regret_exponent": {
        "method": kinds.CHOICE("L2P, experts"),
        "privacy_exponent": kinds.Kind("fraction >= 0", (0.5, -1, "1", None, True))(0),
        "dim_exponent": kinds.Kind("fraction >= 0", (0.5, -1, "1", None, True))(0),
    },
    "problems.hard_instances.low_switching_adversary": {
        "num_rounds": kinds.COUNT(10**6),
        "dim": kinds.COUNT_FROM_TWO(4),
        "epsilon": kinds.POSITIVE.also(1.0)(1e-3),
    },
    "problems.streams.bernoulli": _MEANS,
    "problems.streams.drifting": {**_MEANS, "period": kinds.COUNT(10)},
    "problems.streams.repeated": {"dim": kinds.COUNT(3), "length": kinds.COUNT(10)},
    "problems.streams.rows": {
        "table": Kind("table", ("nonsense", None, 7, np.zeros(3)))(np.zeros((2, 3)))
    },
    "mechanisms.lazy_draws.lazy_draw": {
        "point": kinds.ANY(jnp.float32(1.0)),
        "exponent": Kind("real >= 0", ("nonsense", None, 1j, True))(0.5),
        "draw": kinds.FUNCTION(lambda key: jax.random.uniform(key)),
    },
}

EXEMPT: dict[tuple[str, str], str] = {}
