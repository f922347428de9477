"""Private means of user gradients: what each refuses to open, and what it asks of its data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import transforms
from dpsco_jax.geometry import domains
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import means
from dpsco_jax.solvers.combinators import composite
from tests.solvers.private_table import ROWS

USERS, ITEMS, DIM = 6, 2, 3
OBJECTIVE = losses.huber(1.0, domain=domains.ball(2.0))
START = jnp.zeros(DIM)


def _row(name):
    return next(row for row in ROWS if row.name == name)


def _data(users, items=ITEMS):
    features = np.random.default_rng(0).normal(size=(users, items, DIM)).astype(np.float32)
    return UserData(Example(jnp.asarray(features), jnp.ones((users, items))), None)


def _refuses(mean, users, message):
    """Whether data of so many users are refused; sizes are all that is looked at."""
    with pytest.raises(ValueError, match=message):
        _open(mean, users)


def _open(mean, users):
    jax.eval_shape(
        lambda data: (mean.open(jax.random.key(0), OBJECTIVE, data, START), None)[1], _data(users)
    )


def _clipped(batch=3, sampling="fixed", shift="user"):
    releases = GaussianReleases(USERS, batch, 2, sampling, 1.0, 1e-3)
    return means.Clipped(4, shift, releases, 1.0, None)


def _drawn(draws=4):
    releases = GaussianReleases(USERS, draws, 2, "replacement", 1.0, 1e-3)
    return means.ClippedItems(4, ITEMS, releases, 1.0)


@pytest.mark.parametrize("users", [USERS - 1, USERS + 1])
@pytest.mark.parametrize(
    "mean",
    [_clipped(), _clipped(USERS), _clipped(sampling="poisson"), _drawn()],
    ids=["fixed", "full", "poisson", "items"],
)
def test_data_of_other_users_than_accounted_for_are_refused(mean, users):
    _open(mean, USERS)
    _refuses(mean, users, "data must be")


def test_outlier_removal_asks_for_the_users_accounted_for():
    plan = _row("multipass_sgd, tested").plan()
    assert isinstance(plan.mean, means.OutlierRemoved)
    for change in (-1, 1):
        _refuses(plan.mean, plan.num_users + change, "data must be")


def test_shifts_are_known_by_name():
    tested = _row("multipass_sgd, tested").plan().mean
    for make in (
        lambda: _clipped(shift="users"),
        lambda: dataclasses.replace(tested, shift="user"),
        lambda: dataclasses.replace(tested, shift=None),
    ):
        with pytest.raises(ValueError, match="shift must be"):
            make()


@pytest.mark.parametrize("draws", [1, 4])
def test_as_many_items_are_drawn_as_are_charged(draws):
    @jax.jit
    def made(data):
        oracle, data, _, _ = _drawn(draws).open(jax.random.key(0), OBJECTIVE, data, START)
        return oracle(jax.random.key(1), START, data).num_gradients

    assert int(made(_data(USERS))) == draws


def test_a_composite_refuses_parts_of_another_relation():
    """Also parts of a solver that does not look by itself."""

    @dataclasses.dataclass(frozen=True)
    class Careless:
        releases: GaussianReleases
        num_users: int = USERS

    plan = _row("sco, localization").plan()
    assert isinstance(plan, composite.Plan)
    for sampling, refused in (("fixed", False), ("poisson", True)):
        parts = (*plan.parts[:-1], Careless(GaussianReleases(USERS, 3, 2, sampling, 1.0, 1e-3)))
        if refused:
            with pytest.raises(ValueError, match="relation"):
                plan.replace(parts=parts)
        else:
            plan.replace(parts=parts)


def test_a_composite_refuses_parts_of_another_relation_in_a_list():
    plan = _row("sco, localization").plan()

    @dataclasses.dataclass(frozen=True)
    class Careless:
        releases: GaussianReleases
        num_users: int

    users = plan.parts[0].num_users
    parts = [Careless(GaussianReleases(users, 1, 1, "poisson", 1.0, 1e-3), users)]
    with pytest.raises(ValueError, match="relation"):
        plan.replace(parts=parts)


def test_releases_of_another_kind_are_refused_by_phased_sgd():
    row = _row("phased_sgd, tested")
    plan = row.plan()
    gaussian = GaussianReleases(plan.num_groups, plan.num_groups, 1, "fixed", 1.0, 1e-3)
    with pytest.raises(ValueError, match="releases"):
        row.solve(jax.random.key(0), plan.replace(releases=gaussian), row.data())


def test_winsorized_means_refuse_other_users():
    releases = _row("winsorized_erm, winsorized").plan().releases
    for users in (releases.num_users - 1, releases.num_users + 1):
        expected = f"data must be of the {releases.num_users} users"
        _refuses(means.Winsorized(4, releases), users, expected)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_items_are_drawn_by_two_schemes_only(sampling):
    # Everybody took part while a batch of one in 1000 was charged: ε = 0.6 for 7.1.
    releases = GaussianReleases(USERS, USERS - 1, 2, sampling, 1.0, 1e-3)
    _refuses(means.ClippedItems(4, ITEMS, releases, 1.0), USERS, "scheme must be")


def test_users_are_not_drawn_with_replacement():
    mean = _clipped(sampling="replacement")
    _refuses(mean, USERS, "sampling must be that of users")
    with pytest.raises(ValueError, match="sampling must be that of users"):
        mean.lowered()


def test_items_refuse_a_clip_that_wraps_around_and_users_of_more_slots():
    releases = GaussianReleases(USERS, USERS, 2, "fixed", 1.0, 1e-3)
    narrow = means.ClippedItems(4, ITEMS, releases, np.uint8(200))
    _refuses(narrow, USERS, "clip_norm must be of numbers")
    _refuses(means.ClippedItems(4, ITEMS - 1, releases, 1.0), USERS, "data must be of 1 item slots")


@pytest.mark.parametrize(
    ("sampling", "relation", "sensitivity"),
    [
        ("fixed", NeighboringRelation.ADD_OR_REMOVE_ONE, 1.6),
        ("poisson", NeighboringRelation.ADD_OR_REMOVE_ONE, 0.8),
        ("poisson", NeighboringRelation.REPLACE_ONE, 1.6),
    ],
)
def test_the_stated_noise_of_clipped_sums_is_that_of_the_release(sampling, relation, sensitivity):
    """5,000 coordinates: the standard error of the standard deviation is 1 %."""
    dim = 5_000
    releases = GaussianReleases(USERS, 3, 2, sampling, 1.7, 1e-3)
    # Whoever edits the relation of a plan edits its noise.
    releases = dataclasses.replace(releases, poisson_relation=relation)
    mean = means.Clipped(4, "user", releases, 0.8, None)
    assert mean.noise_stddev(dim) == pytest.approx(1.7 * sensitivity / 3)

    @jax.jit
    def released(start):  # zero, where the loss of a row of zeros is flat
        items = Example(jnp.zeros((USERS, ITEMS, dim)), jnp.zeros((USERS, ITEMS)))
        data = UserData(items, None)
        oracle, rows, release, _ = mean.open(jax.random.key(0), OBJECTIVE, data, start)
        found = oracle(jax.random.key(1), start, rows)
        return release.update(found.gradient, release.init(start), start, **found.extra_args)[0]

    found = np.std(released(np.zeros(dim, np.float32)))
    np.testing.assert_allclose(found, mean.noise_stddev(dim), rtol=0.05)


@pytest.mark.parametrize("reach", [16.0, 1024.0])
def test_the_stated_noise_of_tested_means_is_that_of_the_release(reach):
    """Rounding of distances is paid for in noise, ten times as much where vectors may be far away."""
    dim, releases = 10_000, _row("multipass_sgd, tested").plan().releases
    users = releases.population_size

    @jax.jit
    def run(start):
        chain = transforms.outlier_removed_mean(releases, 0.3, jax.random.key(0), reach=reach)
        released, state = chain.update(jnp.zeros((users, dim)), chain.init(start), start)
        return released, transforms.halted(state)

    released, halted = run(np.zeros(dim, np.float32))
    assert not halted
    stated = means.tested_stddev(releases, 0.3, reach, dim)
    np.testing.assert_allclose(np.std(released), stated, rtol=0.04)
