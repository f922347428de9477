"""Clipped means as turns of one loop: the runs one by one, of the same users, in one program."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import _stacking
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.privacy.sampling import Poisson, WithoutReplacement
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _sequence, first_order
from dpsco_jax.solvers.item_level import sco
from dpsco_jax.solvers.means import Clipped, OutlierRemoved
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
)
from tests.solvers.private_table import OBJECTIVE, ROWS
from tests.support.planned import planned

# A stream of few, of half; all but some, all but one, which is more than half; a stream for those left out.
SIZES = [(40, 3), (12, 6), (9, 7), (7, 6), (30, 20)]


def test_users_of_a_turn_are_those_of_a_draw_of_its_own_sizes():
    draws = _stacking.stacked([sampling.batch_of(*size) for size in SIZES])
    each = jax.jit(jax.vmap(sampling.draw_batch, in_axes=(0, None)))

    def keys():
        return jax.random.split(jax.random.key(0), 20)

    for i, (users, batch) in enumerate(SIZES):
        found = each(keys(), jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), draws))
        alone = jax.jit(
            jax.vmap(lambda k, n=users, b=batch: sampling.without_replacement(k, n, b).indices)
        )
        np.testing.assert_array_equal(found.size, batch)
        np.testing.assert_array_equal(found.indices[:, :batch], alone(keys()))
        # Nor is anybody else's number ever looked at.
        assert np.all((found.indices >= 0) & (found.indices < users))
    only_streams = _stacking.stacked([sampling.batch_of(*size) for size in SIZES[:2]])
    assert not only_streams.some_by_complement
    with pytest.raises(ValueError, match=r"batch_size must be an integer in \[1, 8\], got 9"):
        sampling.batch_of(9, 9)


ROW = next(row for row in ROWS if row.name == "accelerated_phased_erm")
ROUGH = OBJECTIVE._replace(linear_model=None)


@functools.cache
def _parts(batches, smoothing_radius=None):
    return planned(
        accelerated_phased_erm.plan,
        OBJECTIVE,
        num_users=24,
        items_per_user=ROW.items,
        dim=3,
        epsilon=2.0,
        delta=1e-5,
        mean=Clipped,
        num_phases=2,
        batch_size=list(batches),
        smoothing_radius=smoothing_radius,
        chunk_size=5,
    ).parts


def _data():
    data = ROW.data()
    mask = np.ones(jax.tree.leaves(data.items)[0].shape[:2], bool)
    mask[::7, 0] = False
    return UserData(data.items, mask)


def _run(key, parts, objective, together):
    turns = first_order.TURNS if together else None
    start = jnp.zeros(parts[0].dim)
    solver = accelerated_sgd.solve
    found = _sequence.run(key, parts, solver, objective, _data(), start, turns=turns)
    return found._replace(unprivate={"gradients": found.unprivate["gradients"]})


@pytest.mark.parametrize(
    ("batches", "radius", "objective"),
    [((5, 6), None, OBJECTIVE), ((16, 8), None, OBJECTIVE), ((16, 8), 0.3, ROUGH)],
    ids=["batches", "everybody", "shifted rows"],
)
def test_turns_are_the_phases_one_by_one(batches, radius, objective):
    first, last = _parts(batches, radius)
    # Numbers that plans of today have in common are those of each turn too.
    other = {"clip_norm": 0.3 * last.clip_norm, "smoothing_radius": radius and 200 * radius}
    parts = first, last.replace(**other)
    turns = first_order.TURNS
    assert [len(group) for group in _sequence.groups(parts, turns, _data())] == [2]
    run = jax.jit(lambda key: [_run(key, parts, objective, how) for how in (True, False)])
    for seed in range(2):
        one, other = run(jax.random.key(seed))
        # The noise is the same, and what is added to it is a tenth of it: a user more would be seen.
        np.testing.assert_allclose(one.params, other.params, rtol=1e-5, atol=1e-6)
        assert one.unprivate["gradients"] == other.unprivate["gradients"] <= one.gradients
        for name in ("status", "gradients"):
            assert int(getattr(one, name)) == int(getattr(other, name))
        for found, wanted in zip(one.privacy, other.privacy, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_turn_is_charged_what_its_own_plan_proves():
    releases = [part.releases for part in _parts((5, 6))]
    stacked = _stacking.stacked([own.lowered() for own in releases])
    for i, own in enumerate(releases):
        of_turn = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        loss = of_turn.proven.gaussian_loss(own.noise_multiplier, own.relation)
        np.testing.assert_array_equal(loss.rdp * own.num_steps, own.loss().rdp)
        assert of_turn.noise_multiplier == own.noise_multiplier
    assert of_turn.scheme == WithoutReplacement(own.population_size, own.batch_size)
    assert stacked.batch_size.tolist() == [5, 6]
    other = NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(ValueError, match="relation must be REPLACE_ONE"):
        of_turn.proven.gaussian_loss(None, other)
    everybody = GaussianReleases(9, 9, 2, "fixed", 1.0, 1e-5)
    with pytest.raises(ValueError, match="values must be of one structure"):
        _stacking.stacked([releases[0].lowered(), everybody.lowered()])


def test_poisson_samples_have_programs_of_their_own():
    mean = _parts((5, 6))[0].mean
    sampled = GaussianReleases(24, 5, 2, "poisson", 1.0, 1e-5)
    assert dataclasses.replace(mean, releases=sampled).block() is None
    assert isinstance(sampled.lowered().scheme, Poisson)


LOCALIZED = next(row for row in ROWS if row.name == "sco, localization")


def _sco(plan, data):
    """A compiled run, with the number of lines of its program."""
    start = jnp.zeros(plan.dim)

    def run(key):
        found = sco.solve(key, plan, LOCALIZED.objective, data, start)
        return found._replace(unprivate={"gradients": found.unprivate["gradients"]})

    lowered = jax.jit(run).lower(jax.random.key(0))
    return lowered.compile(), len(lowered.as_text().splitlines())


def _staged(stages):
    """Two phases of so many stages each, with a centre and a share of it that are of some effect."""
    plan = LOCALIZED.plan()
    parts = []
    for phase in plan.parts:
        inner = phase.parts if hasattr(phase, "parts") else (phase,)
        several = tuple(inner[0].replace(pull=float(inner[0].pull) * 2**i) for i in range(stages))
        each = {"distances": (1.0,) * stages, "strengths": (1.0,) * stages}
        shares = tuple(0.5 + 0.1 * i for i in range(stages))
        parts.append(phase.replace(parts=several, center_shares=shares, **each))
    return plan.replace(parts=tuple(parts), center_shares=(0.3, 0.6))


def test_parts_inside_of_parts_are_turns_too(monkeypatch):
    data = LOCALIZED.data()
    plan = _staged(2)
    one, lines = _sco(plan, data)
    monkeypatch.setattr(
        _sequence, "groups", lambda parts, *rest: [[(part, None)] for part in parts]
    )
    other, separate = _sco(plan, data)
    assert lines < 0.6 * separate
    for seed in range(2):
        found, wanted = one(jax.random.key(seed)), other(jax.random.key(seed))
        np.testing.assert_allclose(found.params, wanted.params, rtol=1e-5, atol=1e-6)
        assert int(found.gradients) == int(wanted.gradients)
        assert int(found.status) == int(wanted.status)
        for mine, theirs in zip(found.privacy, wanted.privacy, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_parts_of_another_plan_are_refused_by_name():
    plan = _staged(2)
    inner = plan.parts[1].parts
    smaller = inner[0].replace(population_size=inner[0].num_users - 1)
    phase = plan.parts[1].replace(parts=(smaller, *inner[1:]))
    edited = plan.replace(parts=(plan.parts[0], phase))
    with pytest.raises(ValueError, match="num_users"):
        sco.solve(
            jax.random.key(0), edited, LOCALIZED.objective, LOCALIZED.data(), jnp.zeros(plan.dim)
        )


def test_groups_of_other_means_or_shifts_have_data_of_their_own_form():
    plain = _parts((16, 8))
    shifted = tuple(part.replace(smoothing_radius=0.1) for part in plain)
    releases = calibrate_concentrated(60, 2, 8.0, 1e-3, test="fresh")
    near = OutlierRemoved(5, 8.0, "item", releases, 1.0, plain[0].clip_norm, None)
    tested = 2 * (plain[0].replace(mean=near),)
    parts = (*plain, *tested, *shifted)
    users = sum(part.num_users for part in parts)
    data = jax.tree.map(lambda leaf: np.resize(leaf, (users, *leaf.shape[1:])), _data())
    turns = first_order.TURNS
    assert [len(group) for group in _sequence.groups(parts, turns, data)] == [2, 2, 2]

    def run(key):
        start, solver = jnp.zeros(3), accelerated_sgd.solve
        return _sequence.run(key, parts, solver, ROUGH, data, start, turns=turns).params

    assert jax.eval_shape(run, jax.random.key(0)).shape == (3,)
    plan = _staged(1)
    first = plan.parts[0]
    inner = tuple(part.replace(smoothing_radius=0.1) for part in first.parts)
    parts = first, first, *2 * (first.replace(parts=inner),)
    each = {"distances": 4 * (1.0,), "strengths": 4 * (1.0,), "center_shares": 4 * (0.5,)}
    plan = plan.replace(num_users=4 * first.num_users, parts=parts, **each)
    data = LOCALIZED.data()
    data = jax.tree.map(lambda leaf: np.resize(leaf, (plan.num_users, *leaf.shape[1:])), data)
    assert jax.tree.leaves(data.items)[0].shape[1] > 1
    solve = jax.eval_shape(
        lambda key: sco.solve(key, plan, LOCALIZED.objective, data, jnp.zeros(plan.dim)).params,
        jax.random.key(0),
    )
    assert solve.shape == (plan.dim,)


def test_means_of_other_kinds_are_not_stacked():
    mean = _parts((16, 8))[0].mean
    for change in ({"shift": "user"}, {"chunk_size": 3}, {"smoothing_radius": 0.1}):
        other = dataclasses.replace(mean, **change)
        assert not _stacking.fit([mean.lowered(), other.lowered()])
        with pytest.raises(ValueError, match="values must be of one structure"):
            _stacking.stacked([mean.lowered(), other.lowered()])


@pytest.mark.parametrize("change", [{"clip_norm": 0.0}, {"smoothing_radius": -1.0}])
def test_numbers_of_a_turn_out_of_their_range_are_refused_by_name(change):
    parts = [p.replace(smoothing_radius=0.1) for p in _parts((16, 8))]
    (name,) = change
    with pytest.raises(ValueError, match=name):
        first_order.TURNS.lowered(parts[1].replace(**change))


def test_a_method_of_a_turn_out_of_its_range_is_refused_by_name():
    first, second = _parts((16, 8))
    with pytest.raises(ValueError, match="stage_length"):
        second.replace(stage_length=0)
    with pytest.raises(ValueError, match="smoothness"):
        _run(jax.random.key(0), (first, second.replace(smoothness=-1.0)), OBJECTIVE, True)


def test_a_turn_without_noise_is_refused_by_name():
    one = _parts((16, 8))[0].releases
    with pytest.raises(ValueError, match="noise_multiplier must be in"):
        dataclasses.replace(one, noise_multiplier=0.0).lowered()


def test_a_turn_with_other_noise_than_was_proven_costs_infinity():
    turns = _stacking.stacked([part.releases.lowered() for part in _parts((16, 8))])
    relation = turns.relation

    @jax.jit
    def charged(turns):
        return turns.proven.gaussian_loss(turns.noise_multiplier, relation).rdp

    first, other = (jax.tree.map(lambda leaf, i=i: leaf[i], turns) for i in (0, 1))
    np.testing.assert_array_equal(charged(first), np.float32(first.cost.rdp))
    for multiplier in (0.5 * first.noise_multiplier, 1e9, np.nan):
        edited = dataclasses.replace(first, noise_multiplier=np.float32(multiplier))
        assert np.all(np.isinf(charged(edited))), multiplier
    mixed = dataclasses.replace(first, noise_multiplier=other.noise_multiplier)
    assert np.all(np.isinf(charged(mixed))) == (mixed.noise_multiplier != first.noise_multiplier)
