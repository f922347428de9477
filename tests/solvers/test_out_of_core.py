"""Solvers on users who are on disk: the same run as in memory, release by release, or an error."""

import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import StoredUsers, losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import first_order, means, methods, out_of_core
from dpsco_jax.solvers.item_level import erm
from dpsco_jax.solvers.user_level import momentum_sgd, sgd
from tests.problems import saved
from tests.support.recorder import recorded

USERS, ITEMS, DIM, STEPS = 101, 2, 3, 4
OBJECTIVE = losses.logistic(1.0, domain=domains.ball(2.0))
_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
DATA = UserData(
    Example(_X, np.sign(_X[..., 0] + _RNG.normal(size=(USERS, ITEMS))).astype(np.float32)),
    _RNG.random((USERS, ITEMS)) < 0.8,
)
DATA.items.features[3], DATA.items.label[100] = np.nan, np.inf
START = np.full(DIM, 3.0, np.float32)  # outside of the domain


@functools.cache
def _plan(solver=sgd, sampling="poisson", users=USERS, objective=OBJECTIVE, **settings):
    problem = Problem(objective, num_users=users, items_per_user=ITEMS, dim=DIM, distance=5.0)
    settings = {"num_steps": STEPS, "batch_size": users if sampling == "full" else 20} | settings
    if solver in (sgd, momentum_sgd):
        settings |= {"sampling": sampling, "accountant": "rdp", "chunk_size": 8}
    return solver.plan(problem, Budget(2.0, 1e-5), **settings)


def _of_erm():
    problem = Problem(OBJECTIVE, num_users=USERS, items_per_user=ITEMS, dim=DIM, distance=5.0)
    return erm.plan(problem, Budget(2.0, 1e-5))


def _stored(folder, block_users=24):
    paths = saved(folder, x=DATA.items.features, y=DATA.items.label, mask=DATA.mask)
    return StoredUsers(Example(paths["x"], paths["y"]), paths["mask"], block_users=block_users)


def _memory(solver, plan, objective=OBJECTIVE):
    run = jax.jit(lambda key, data: solver.solve(key, plan, objective, data, START))
    return run(jax.random.key(7), DATA)


def _same(memory, disk):
    for a, b in zip(jax.tree.leaves(memory), jax.tree.leaves(disk), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "sampling", ["poisson", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fixed", "full"))]
)
def test_the_solution_is_that_in_memory(tmp_path, sampling):
    plan = _plan(sampling=sampling)
    disk = sgd.solve(jax.random.key(7), plan, OBJECTIVE, _stored(tmp_path), START)
    _same(_memory(sgd, plan), disk)


@pytest.mark.slow
def test_any_loss_and_another_method_have_the_solution_that_they_have_in_memory(tmp_path):
    network = Objective(
        lambda w, item: jnp.tanh(item.features @ w) * item.label, 1.0, None, domains.whole_space()
    )
    plan = _plan(momentum_sgd, objective=network, step_size=0.1)
    disk = momentum_sgd.solve(jax.random.key(7), plan, network, _stored(tmp_path), START)
    _same(_memory(momentum_sgd, plan, network), disk)


def test_what_is_released_is_what_is_released_in_memory(tmp_path):
    """Every release: statistic, noise, declared sensitivity and sampling, and the key of the noise."""
    plan = _plan()
    run = lambda data: sgd.solve(jax.random.key(7), plan, OBJECTIVE, data, START)  # noqa: E731
    memory = recorded(lambda: jax.jit(run)(DATA))
    disk = recorded(lambda: run(_stored(tmp_path)))
    assert len(memory) == len(disk) == STEPS
    for a, b in zip(memory, disk, strict=True):
        named = [(x.name, x.key, x.noise, x.sensitivity, x.multiplier, x.scheme) for x in (a, b)]
        assert named[0] == named[1]
        np.testing.assert_array_equal(a.statistic, b.statistic)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    plan, stored, file = _plan(), _stored(tmp_path), tmp_path / "kept.npz"
    whole = out_of_core.solve(sgd, jax.random.key(7), plan, OBJECTIVE, stored, START)
    seen = []

    def stop(step, steps):
        seen.append((step, steps))
        if step == 2:
            raise KeyboardInterrupt

    def run(progress, plan=plan, key=7, start=START, data=stored, solver=sgd):
        arguments = (jax.random.key(key), plan, OBJECTIVE, data, start)
        return out_of_core.solve(solver, *arguments, checkpoint=file, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    assert not [t for t in threading.enumerate() if t.name.startswith("dpsco-jax-reader")]
    assert file.stat().st_mode & 0o077 == 0
    kept = file.read_bytes()
    others = (
        {"key": 8},
        {"plan": _plan(num_steps=STEPS + 1)},
        {"start": START / 2},
        {"data": StoredUsers(DATA.items, DATA.mask, block_users=24)},
        {"plan": _plan(momentum_sgd), "solver": momentum_sgd},
    )
    for other in others:
        with pytest.raises(ValueError, match="checkpoint must be the file of this run"):
            run(None, **other)
    _same(whole, run(lambda *step: seen.append(step)))
    assert seen == [(1, STEPS), (2, STEPS), (3, STEPS), (4, STEPS)]
    _same(whole, run(None))  # nothing is left to do
    np.save(tmp_path / "array.npy", START)
    for broken in (kept[:-200], (tmp_path / "array.npy").read_bytes(), b""):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match="checkpoint must be the file of a run"):
            run(None)
    file.write_bytes(kept)
    with np.load(file) as arrays:
        names, edited = arrays.files, dict(arrays)
    for name in names[3:]:  # the step and the state, whose ledger would be another
        with open(file, "wb") as changed:
            np.savez(changed, **edited | {name: edited[name] + edited[name].dtype.type(1)})
        with pytest.raises(ValueError, match="as it was written"):
            run(None)


def test_a_run_on_arrays_does_not_go_on_with_others(tmp_path):
    """Two runs from one state with other data would have the same noise, and their difference none."""
    file = tmp_path / "kept.npz"

    def run(data):
        stored = StoredUsers(data.items, data.mask, block_users=24)
        return out_of_core.solve(
            sgd, jax.random.key(7), _plan(), OBJECTIVE, stored, START, checkpoint=file
        )

    whole = run(DATA)
    with pytest.raises(ValueError, match="checkpoint must be the file of this run"):
        run(DATA._replace(mask=~DATA.mask))
    _same(whole, run(DATA))


def test_a_file_that_changes_between_steps_ends_the_run(tmp_path):
    stored = _stored(tmp_path)

    def change(step, steps):
        del steps
        if step == 1:
            saved(tmp_path, x=DATA.items.features + 1)

    arguments = (jax.random.key(7), _plan(), OBJECTIVE, stored, START)
    with pytest.raises(ValueError, match="must not change"):
        out_of_core.solve(sgd, *arguments, progress=change)


def test_who_cannot_run_on_disk_is_told(tmp_path):
    stored, key = _stored(tmp_path), jax.random.key(7)
    with pytest.raises(ValueError, match=f"users, got {USERS}"):
        sgd.solve(key, _plan(users=USERS + 1), OBJECTIVE, stored, START)
    with pytest.raises(ValueError, match=f"of the {USERS + 1} users accounted for"):
        _plan(users=USERS + 1).mean.open(key, OBJECTIVE, stored, START)
    plan = _plan()
    with pytest.raises(ValueError, match="data must be UserData inside of jit"):
        jax.jit(lambda k: sgd.solve(k, plan, OBJECTIVE, stored, START))(key)
    with pytest.raises(ValueError, match="data must be of type UserData"):
        erm.solve(key, _of_erm(), OBJECTIVE, stored, START)
    arguments = (methods.ProjectedSgd(0.1), OBJECTIVE, stored, START, STEPS, 1)
    items = means.ClippedItems(8, 1, plan.mean.releases, 1.0)
    with pytest.raises(ValueError, match="mean must be of type Clipped"):
        first_order.run(jax.random.key(7), items, *arguments)
    for shift, wrong in (("round", "data must be UserData for a mean"), ("item", "UserData")):
        shifted = dataclasses.replace(plan.mean, shift=shift, smoothing_radius=0.1)
        with pytest.raises(ValueError, match=wrong):
            first_order.run(jax.random.key(7), shifted, *arguments)
    with pytest.raises(ValueError, match="data must be of type StoredUsers"):
        out_of_core.solve(sgd, key, plan, OBJECTIVE, DATA, START)
    with pytest.raises(ValueError, match=r"solver\.solve must"):
        out_of_core.solve(7, key, plan, OBJECTIVE, stored, START)
