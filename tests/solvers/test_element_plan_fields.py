"""No field of a plan over units does nothing: edited, it changes the run or what is said, or is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.solvers.element_level import federated, sgd

USERS, SLOTS, DIM = 6, 3, 2
LOSS = losses.huber(1.0)
REFUSED = "refused"  # by solve, or when the field is set
SAID = "said"  # the run is the same, and what the plan prints is not
RUN = "run"
COMPILED = "compiled"  # the same numbers by another program

# Another value of every field, and what it has to change.
EDITS = {
    "num_users": (USERS + 1, REFUSED),
    "elements_per_user": (SLOTS - 1, REFUSED),
    "dim": (DIM + 1, REFUSED),
    "num_steps": (3, RUN),
    "batch_size": (3, RUN),
    "sampling": ("full", REFUSED),  # of which batch_size is no part
    "relation_name": ("zero_out", REFUSED),  # nothing is proven of it for sampled users
    "protects": ("user", RUN),
    "cap": (1.0, RUN),
    "chunk_size": (3, COMPILED),
    "noise_multiplier": (1.0, RUN),
    "clip_norm": (0.1, RUN),
    "step_size": (0.2, RUN),
    "epsilon": (1.5, SAID),  # of the budget: what a run costs follows from its noise
    "made_for": (None, REFUSED),  # of another objective; see below
}
AVERAGES = {"step_decay": ("sqrt", RUN), "averaging": ("last", RUN)}
SERVERS = {"local_steps": (1, RUN), "local_step_size": (0.01, RUN)}
SERVERS |= {"step_decay": ("sqrt", RUN), "averaging": ("uniform", RUN)}
# Of every first-order plan (tests/solvers/test_first_order.py).
OF_ALL_METHODS = {
    *(
        "title",
        "mean",
        "releases",
        "method",
        "pull",
        "excess_bound",
        "details",
        "on_halt",
        "remarks",
    ),
    *("premises", "promised_relation"),
}


def _names(node):
    for field in dataclasses.fields(node):
        yield field.name
        if field.name != "made_for" and dataclasses.is_dataclass(getattr(node, field.name)):
            yield from _names(getattr(node, field.name))


def _plan(solver, **given):
    problem = Problem(LOSS, num_users=USERS, dim=DIM)
    sizes = {
        "num_steps": 2,
        "elements_per_user": SLOTS,
        "batch_size": 4,
        "sampling": "user",
        "cap": 2.0,
    }
    if solver is federated:
        sizes |= {"local_steps": 2, "local_step_size": 0.4}
    return solver.plan(problem, Budget(2.0, 1e-3), step_size=0.3, accountant="rdp", **sizes | given)


def _data():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((USERS, SLOTS, 1, DIM)).astype(np.float32)
    rows /= 1.01 * np.linalg.norm(rows, axis=-1, keepdims=True)
    return ElementData(Example(rows, rng.standard_normal(rows.shape[:3]).astype(np.float32)), None)


@pytest.mark.parametrize("solver", [sgd, federated], ids=["sgd", "federated"])
def test_no_field_does_nothing(solver, monkeypatch):
    def none(plan):
        raise ValueError("no certificate was asked for")

    # Certificates take long, and what a plan prints of its own fields is looked at.
    monkeypatch.setattr(sgd.Plan, "certificate", none)
    monkeypatch.setattr(sgd.Plan, "user_certificate", none)
    own = AVERAGES if solver is sgd else SERVERS
    plan, data = _plan(solver), _data()
    assert set(_names(plan)) == set(EDITS | own) | OF_ALL_METHODS | {"delta"}

    def solve(plan, objective=LOSS):
        return solver.solve(jax.random.key(1), plan, objective, data, jnp.zeros(DIM)).params

    run = jax.jit(solve)
    base = np.asarray(run(plan))
    # What both have in common is looked at once, but for the lengths of steps.
    common = EDITS if solver is sgd else {name: EDITS[name] for name in ("step_size", "clip_norm")}
    for name, (value, expected) in (common | own).items():
        if expected == REFUSED:
            # The constants of an objective are compared with those of the one that is solved.
            other = losses.huber(0.5) if name == "made_for" else LOSS
            changed = {} if name == "made_for" else {name: value}
            with pytest.raises(ValueError, match=r"must|objective"):
                solve(plan.replace(**changed), other)
            continue
        edited = plan.replace(**{name: value})
        if expected == RUN:
            assert np.any(np.abs(np.asarray(run(edited)) - base) > 1e-5), name
        elif expected == COMPILED:
            texts = [str(jax.make_jaxpr(solve)(each)) for each in (plan, edited)]
            assert texts[0] != texts[1], name
        else:
            assert str(edited) != str(plan), name
    assert plan.releases.delta == plan.delta  # which is said in the certificate, too


def test_what_one_way_of_sampling_does_not_use_is_refused_or_used():
    """Fields that users who are sampled whole cannot show: units by themselves, and all of them."""
    plan, data = _plan(sgd, sampling="element", cap=np.inf), _data()
    run = jax.jit(
        lambda plan: sgd.solve(jax.random.key(1), plan, LOSS, data, jnp.zeros(DIM)).params
    )
    base = np.asarray(run(plan))
    for edit in ({"relation_name": "zero_out"}, {"sampling": "fixed"}, {"sampling": "user"}):
        assert np.any(np.abs(np.asarray(run(plan.replace(**edit))) - base) > 1e-5)
    for edit in (
        {"cap": 2.0},
        {"protects": "user"},
        {"sampling": "nonsense"},
        {"sampling": "full"},
    ):
        with pytest.raises(ValueError, match=next(iter(edit)) + "|batch_size"):
            run(plan.replace(**edit))
