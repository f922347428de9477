"""The table of transformations, over which the shared properties of ``test_table`` run.

A new transformation gets a row here and the tests of its own mathematics in a file of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms import correlated_noise, tree
from dpsco_jax.mechanisms.winsorized import winsorized_releases
from tests.support.tested import phase

NUM_USERS = 6

PARAMS = {
    "vector": lambda: jnp.asarray(np.asarray([0.3, -0.2, 0.5], jnp.result_type(float))),
    "nested": lambda: {"w": _filled(2, 3), "deep": (_filled(), [_filled(2)])},
    "bfloat16": lambda: {"w": _filled(3, dtype=jnp.bfloat16), "b": _filled(dtype=jnp.bfloat16)},
    "mixed": lambda: {"w": _filled(3, dtype=jnp.float16), "b": _filled(2)},
    "empty leaf": lambda: {"w": _filled(3), "b": _filled(0, 2)},
}


def _filled(*shape: int, dtype: Any = None) -> jax.Array:
    # Through NumPy: jnp.full makes weakly typed arrays, which optax.trace would keep.
    return jnp.asarray(np.full(shape, 0.25, dtype or jnp.result_type(float)))


class Row(NamedTuple):
    """One transformation.

    Attributes:
        name: what the tests call it.
        make: the factory, a function of its numeric hyper-parameters by name.
        settings: two values of each of them; every one of them may be traced.
        per_user: whether updates have a leading axis of users.
        private: whether the state holds a ledger.
        keeps_dtype: whether updates come back in their own dtype (aggregates: at least float32).
        charged_at_once: whether the first update is charged for all.
    """

    name: str
    make: Callable[..., Any]
    settings: dict[str, tuple[float, float]]
    per_user: bool = False
    private: bool = False
    keeps_dtype: bool = True
    charged_at_once: bool = False

    @property
    def numbers(self) -> tuple[dict[str, float], ...]:
        """The first of all settings, and the second."""
        return tuple({name: two[i] for name, two in self.settings.items()} for i in (0, 1))


def _ridge(point: Any, step: Any) -> Any:
    return jax.tree.map(lambda x: x / (1 + 0.1 * step), point)


def _privatize(noise_multiplier, clip_norm, num_users):
    aggregate = transforms.clipped_mean(clip_norm, num_users)
    return transforms.privatize(aggregate, jax.random.key(0), noise_multiplier)


def _made_anew(of):
    """A transformation that depends on the parameters, as one that does not."""
    of(jnp.zeros(3))
    return optax.GradientTransformationExtraArgs(
        lambda params: of(params).init(params),
        lambda updates, state, params=None, **extra: of(params).update(updates, state, **extra),
    )


def _privatize_layers(noise_multiplier, clip_norm):
    """A clip norm for every leaf."""

    def of(params):
        bounds = jax.tree.map(lambda leaf: clip_norm, params)
        aggregate = transforms.clipped_mean(bounds, NUM_USERS, microbatch_size=4)
        return transforms.privatize(aggregate, jax.random.key(0), noise_multiplier)

    return _made_anew(of)


def _privatize_projected(noise_multiplier, clip_norm):
    """A basis has a row for every number."""

    def of(params):
        dim = sum(leaf.size for leaf in jax.tree.leaves(params))
        basis = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, 2)))[0]
        aggregate = transforms.clipped_mean(clip_norm, NUM_USERS)
        aggregate = transforms.project_subspace(aggregate, basis, provenance="public")
        return transforms.privatize(aggregate, jax.random.key(0), noise_multiplier)

    return _made_anew(of)


def _privatize_poisson(noise_multiplier, clip_norm, probability):
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    aggregate = transforms.clipped_sum(clip_norm, relation, microbatch_size=4)
    sampling = privacy.Poisson(probability)
    return transforms.privatize(aggregate, jax.random.key(0), noise_multiplier, sampling)


def _privatize_correlated(noise_multiplier, clip_norm):
    correlation = correlated_noise.banded_square_root(3, max_participations=1, bands=2)
    aggregate = transforms.clipped_sum(clip_norm)
    return transforms.privatize(
        aggregate, jax.random.key(0), noise_multiplier, noise_correlation=correlation
    )


def _privatize_tree(noise_multiplier, clip_norm):
    aggregate = transforms.clipped_sum(clip_norm)
    return transforms.privatize(
        aggregate, jax.random.key(0), noise_multiplier, noise_correlation=tree.TreeCorrelation(3)
    )


def _centred_clip(radius, num_users, centre_rate, quantile, quantile_rate):
    aggregate = transforms.centred_clip(
        radius,
        num_users,
        centre_rate=centre_rate,
        quantile=quantile,
        quantile_rate=quantile_rate,
        microbatch_size=4,
    )
    return transforms.privatize(aggregate, jax.random.key(0), 2.0)


def _halt_when(noise_multiplier, limit):
    inner = optax.chain(_privatize(noise_multiplier, 1.0, NUM_USERS), optax.trace(0.9))
    return transforms.halt_when(inner, lambda state, u: optax.tree.norm(state[1].trace) > limit)


def _outlier_removed_mean(radius):
    releases = phase(
        *(NUM_USERS, 4, 4.0), keep_level=0.6, core=4.0, test_epsilon=40.0, noise_stddev=0.01
    )
    return transforms.outlier_removed_mean(releases, radius, jax.random.key(0))


def _private_ac_sa(noise_multiplier, smoothness):
    return optax.chain(
        _privatize(noise_multiplier, 1.0, NUM_USERS),
        transforms.ac_sa(smoothness, domain=domains.ball(1.0)),
    )


def _winsorized_mean(bound, noise_multiplier):
    """The releases know their dimension."""

    def of(params):
        dim = sum(leaf.size for leaf in jax.tree.leaves(params))
        releases = winsorized_releases.WinsorizedReleases(
            num_users=NUM_USERS,
            dim=dim,
            num_queries=9,
            form="winsorized",
            radius=0.1,
            bound=bound,
            coordinate_radius=0.1,
            bin_width=0.05,
            range_epsilon=3.0,
            coarse_multiplier=1.0,
            ball_radius=1.0,
            noise_multiplier=noise_multiplier,
            failure=0.1,
            epsilon=50.0,
            delta=1e-3,
        )
        return transforms.winsorized_mean(releases, jax.random.key(0))

    return _made_anew(of)


NOISY = {"noise_multiplier": (2.0, 0.5), "clip_norm": (1.0, 0.3)}
USERS = {"num_users": (6.0, 8.0)}
OF_USERS = {"per_user": True, "private": True}

ROWS = [
    Row(
        "clipped_sum",
        lambda clip_norm: transforms.clipped_sum(clip_norm),
        {"clip_norm": (1.0, 0.3)},
        per_user=True,
        keeps_dtype=False,
    ),
    Row(
        "clipped_mean",
        lambda clip_norm, num_users: transforms.clipped_mean(
            clip_norm, num_users, microbatch_size=4
        ),
        {"clip_norm": (1.0, 0.3), **USERS},
        per_user=True,
        keeps_dtype=False,
    ),
    Row("privatize", _privatize, {**NOISY, **USERS}, **OF_USERS),
    Row("privatize, Poisson", _privatize_poisson, {**NOISY, "probability": (0.1, 0.5)}, **OF_USERS),
    Row("privatize, per layer", _privatize_layers, NOISY, **OF_USERS),
    Row("privatize, projected", _privatize_projected, NOISY, **OF_USERS),
    Row("privatize, correlated", _privatize_correlated, NOISY, **OF_USERS),
    Row("privatize, tree", _privatize_tree, NOISY, **OF_USERS),
    Row(
        "centred_clip",
        _centred_clip,
        {
            "radius": (1.0, 0.3),
            **USERS,
            "centre_rate": (1.0, 0.1),
            "quantile": (0.5, 0.9),
            "quantile_rate": (0.5, 0.2),
        },
        **OF_USERS,
    ),
    Row(
        "account",
        lambda epsilon: transforms.account(
            privacy.pure_dp(epsilon), NeighboringRelation.REPLACE_ONE
        ),
        {"epsilon": (0.1, 2.0)},
        private=True,
    ),
    Row(
        "project",
        lambda radius: transforms.project(domains.ball(radius)),
        {"radius": (0.5, 3.0)},
    ),
    Row(
        "average",
        lambda decay_power: transforms.average(decay_power),
        {"decay_power": (0.0, 2.5)},
    ),
    Row(
        "prox_step",
        lambda strength, radius: transforms.prox_step(strength, radius, domains.ball(1.0)),
        {"strength": (2.0, 0.5), "radius": (0.5, 3.0)},
    ),
    Row(
        "prox_step, whole space",
        lambda strength, radius: transforms.prox_step(strength, radius, domains.whole_space()),
        {"strength": (2.0, 0.5), "radius": (0.5, 3.0)},
    ),
    Row(
        "perturb_when_small",
        lambda threshold, stddev, wait: transforms.perturb_when_small(
            jax.random.key(7), threshold, stddev, wait
        ),
        {"threshold": (9.0, 0.5), "stddev": (1.0, 2.0), "wait": (2.0, 1.0)},
    ),
    Row(
        "ac_sa",
        lambda smoothness, strong_convexity, radius: transforms.ac_sa(
            smoothness, strong_convexity, domains.ball(radius), _ridge
        ),
        {"smoothness": (2.0, 5.0), "strong_convexity": (0.0, 0.7), "radius": (1.0, 9.0)},
    ),
    Row(
        "restart_every",
        lambda smoothness, radius: transforms.restart_every(
            transforms.ac_sa(smoothness, 0.1, domains.ball(radius)),
            2,
            transforms.ac_sa_eval_params,
        ),
        {"smoothness": (2.0, 5.0), "radius": (1.0, 9.0)},
    ),
    Row(
        "o2nc",
        lambda radius, step_size: transforms.o2nc(jax.random.key(0), radius, step_size, 2, 2),
        {"radius": (0.5, 0.1), "step_size": (0.1, 0.3)},
    ),
    Row(
        "halt_when", _halt_when, {"noise_multiplier": (0.1, 1.0), "limit": (100.0, 0.5)}, **OF_USERS
    ),
    Row(
        "winsorized_mean",
        _winsorized_mean,
        {"bound": (1.0, 2.0), "noise_multiplier": (1.0, 4.0)},
        **OF_USERS,
    ),
    Row(
        "outlier_removed_mean",
        _outlier_removed_mean,
        {"radius": (30.0, 0.01)},
        charged_at_once=True,
        **OF_USERS,
    ),
    Row(
        "private ac_sa",
        _private_ac_sa,
        {"noise_multiplier": (1.0, 4.0), "smoothness": (2.0, 7.0)},
        **OF_USERS,
    ),
]


def updates_for(row: Row, params: Any, seed: int = 0) -> Any:
    """Random updates that fit the parameters, with the axis of users where the row wants it."""
    rng = np.random.default_rng(seed)
    lead = (NUM_USERS,) if row.per_user else ()
    drawn = lambda p: jnp.asarray(np.asarray(rng.normal(size=lead + p.shape), p.dtype))  # noqa: E731
    return jax.tree.map(drawn, params)
