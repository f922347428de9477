"""Blocks of localized SGD, and tested batches, as turns of one loop: the runs one by one."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import _stacking, transforms
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _sequence, first_order, means
from dpsco_jax.solvers.user_level import localized_sgd, multipass_sgd
from tests.support.planned import planned

DIM = 2
POINTS = losses.squared_distance(point_bound=1.0, radius=1.0)
ROUGH = Objective(**(POINTS._asdict() | {"linear_model": None}))


@functools.cache
def _parts(radius=0.6, smoothing="none"):
    """Blocks of which no two numbers are the same."""
    plan = planned(
        localized_sgd.plan, POINTS, num_users=150, items_per_user=2, dim=DIM, epsilon=20.0, delta=1e-3,
        num_blocks=2, num_steps=3, radius=radius, smoothing=smoothing, chunk_size=7,
        **({"smoothing_radius": 0.1} if smoothing != "none" else {}),
    )  # fmt: skip
    first, last = plan.parts
    of_releases = {"num_steps": 5, "noise_stddev": 2.0 * first.releases.noise_stddev,
                   "threshold": last.releases.threshold - 3, "keep_level": 0.6,
                   "test_epsilon": 0.7 * last.releases.test_epsilon} if radius < 1 else {
                   "num_steps": 5, "noise_multiplier": 1.5 * first.releases.noise_multiplier}  # fmt: skip
    last = last.replace(
        releases=dataclasses.replace(last.releases, **of_releases),
        **({"score_radius": 0.9 * last.score_radius} if radius < 1 else {}),
        clip_norm=0.8 * last.clip_norm, step_size=0.6 * first.step_size,
        smoothing_radius=None if smoothing == "none" else 1.5 * last.smoothing_radius,
    )  # fmt: skip
    return first, last


def _data(torn=None):
    """Users near each other, one of NaN in each block; those of a torn block disagree with each other."""
    rng = np.random.default_rng(0)
    items = np.float32([0.3, -0.1] + 0.2 * rng.normal(size=(150, 2, DIM)))
    if torn is not None:
        items[torn] = np.where(np.arange(150)[torn, None, None] % 2, 0.7, -0.7)
    mask = np.ones((150, 2), bool)
    mask[::7, 0] = False
    items[3] = np.nan
    items[-1] = np.inf
    return UserData(items, mask)


def test_blocks_of_other_kinds_have_programs_of_their_own():
    first, last = _parts()
    kinds = {
        "on_halt": "report", "chunk_size": 8, "reach": 2 * last.reach,
        "mean": _parts(5.0)[1].mean,
    }  # fmt: skip
    for name, value in kinds.items():
        other = last.replace(**{name: value})
        groups = _sequence.groups((first, other), first_order.TURNS, _data())
        assert len(groups) == 2, name
    by_round = [part.replace(shift="round") for part in _parts(0.6, "per_item")]
    assert len(_sequence.groups(by_round, first_order.TURNS, _data())) == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clip_norm": -1.0}, "clip_norm must be"),
        ({"score_radius": 0.0}, "radius must be"),
        ({"population_size": 101, "batch_size": 101}, "at most 150 users"),
    ],
)
def test_what_a_block_alone_refuses_is_refused_of_a_later_turn(changes, named):
    first, last = _parts()
    sizes = {name: x for name, x in changes.items() if name.endswith("_size")}
    others = {name: x for name, x in changes.items() if name not in sizes}
    if "population_size" not in sizes:
        # Of one kind with what is refused.
        first = first.replace(releases=dataclasses.replace(first.releases, **sizes))
    releases = dataclasses.replace(last.releases, **sizes)
    other = last.replace(releases=releases, **others)
    with pytest.raises(ValueError, match=named):
        _sequence.run(
            jax.random.key(0), (first, other), multipass_sgd.solve, POINTS, _data(),
            jnp.zeros(DIM), turns=first_order.TURNS,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [("keep_level", 0.5), ("threshold", math.nan), ("test_epsilon", 0.0), ("noise_stddev", -1.0)],
)
def test_numbers_of_tests_that_a_block_alone_refuses_are_refused_of_a_turn(name, value):
    mean = _parts()[1].mean
    releases = dataclasses.replace(mean.releases, **{name: value})
    with pytest.raises(ValueError, match=f"{name} must be"):
        dataclasses.replace(mean, releases=releases).lowered()
    assert not np.isfinite(releases.loss().rdp).any()


def _of_batches():
    """Means of batches of more than half of the users."""
    return [
        dataclasses.replace(
            part.mean, releases=dataclasses.replace(part.releases, batch_size=batch)
        )
        for part, batch in zip(_parts(), (45, 80), strict=True)
    ]


def test_a_turn_of_batches_is_charged_what_its_own_releases_prove():
    phases = [mean.releases for mean in _of_batches()]
    stacked = _stacking.stacked([mean.lowered() for mean in _of_batches()])
    for i, own in enumerate(phases):
        mean = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        turn = mean.releases
        for found, wanted in zip(turn.cost, own.loss(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        for name in ("threshold", "test_epsilon", "keep_level", "noise_stddev"):
            assert getattr(turn, name) == getattr(own, name), name
        assert turn.num_users == own.batch_size < own.population_size
        assert turn.scheme == own.scheme
        for name in ("score_radius", "clip_norm"):
            assert getattr(mean, name) == getattr(_of_batches()[i], name), name
    # Nothing is proven of further looks at a batch: the ledger says that it was drawn.
    turn = jax.tree.map(jnp.asarray, turn)
    release = transforms.outlier_removed_mean(turn, 1.0, jax.random.key(0))
    assert release.init(jnp.zeros(DIM)).ledger.sampled
    with pytest.raises(ValueError, match="values must be of one structure"):
        _stacking.stacked([phases[0].lowered(), _parts()[1].releases.lowered()])


def test_rows_of_a_turn_are_those_of_a_batch_of_its_own_users():
    """Of more than half of them; others of the batch's places stand for nobody."""
    of_parts, data, start = _of_batches(), _data(), jnp.full(DIM, 0.5)
    everybody = of_parts[0].prepared(ROUGH, data, start)

    def rows(mean, data, key):
        oracle, rows, _, _ = mean.open(jax.random.key(9), ROUGH, data, start)
        return oracle(key, start, rows).gradient

    stacked = _stacking.stacked([(mean.lowered(), mean.block()) for mean in of_parts])

    def of_turn(everybody, key):
        turn, block = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), stacked)
        block = dataclasses.replace(block, first=jnp.asarray(100))
        return rows(turn, means.Part(everybody, data, block), key)

    found = jax.jit(of_turn)(everybody, jax.random.key(0))
    own = jax.tree.map(lambda leaf: leaf[100:], data)
    wanted = jax.jit(functools.partial(rows, of_parts[0]))(own, jax.random.key(0))
    assert found.shape == (80, DIM)
    np.testing.assert_allclose(found[:45], wanted, rtol=1e-6)
