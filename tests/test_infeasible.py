"""What is needed, in numbers: each refusal that a search catches names values with which a plan exists."""

import copy
import pickle

import pytest

from dpsco_jax import Infeasible, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.problems import losses
from dpsco_jax.solvers import _sequence
from dpsco_jax.solvers.convex import ac_sa
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.means import OutlierRemoved
from dpsco_jax.solvers.resque import ball_accelerated_erm
from dpsco_jax.solvers.user_level import (
    accelerated_sgd,
    accelerated_strongly_convex,
    auto,
    localized_sgd,
    multipass_sgd,
    phased_sgd,
)
from tests.support.planned import planned

OBJECTIVE = losses.huber(1.0, domain=domains.ball(2.0))
RIDGED = losses.huber(1.0, domain=domains.ball(2.0), ridge=0.2)
BUDGET = {"epsilon": 1.0, "delta": 1e-3}
USERS = BUDGET | {"allow_large_delta": True, "items_per_user": 2, "dim": 3}


def _concentrated(**sizes):
    return privacy.calibrate_concentrated(**{"num_users": 20, "num_steps": 10} | sizes | BUDGET)


def _winsorized(num_users=20):
    return calibrate_winsorized(
        num_users, 8, 4, **BUDGET, radius=0.01, bound=1.0, failure=0.1, form="winsorized"
    )


def _multipass(num_users=20):
    return planned(
        multipass_sgd.plan, OBJECTIVE, num_users=num_users, **USERS, num_steps=10, radius=0.05
    )


def _phased(num_users=20, **groups):
    return planned(phased_sgd.plan, OBJECTIVE, num_users=num_users, **USERS, radius=0.005, **groups)


def _phased_groups(num_groups=20):
    return _phased(10_000, num_groups=num_groups)


def _accelerated(num_users=20):
    return planned(
        accelerated_sgd.plan,
        OBJECTIVE,
        num_users=num_users,
        **USERS,
        mean=OutlierRemoved,
        radius=0.1,
    )


def _printed(epsilon=0.4):
    return planned(private_ac_sa.plan,
        OBJECTIVE, num_users=100, dim=3, epsilon=epsilon, delta=1e-3, constants="paper",
        allow_large_delta=True,
        num_steps=20, batch_size=10, policy="direct",
    )  # fmt: skip


def _staged(num_steps=1):
    return planned(
        ac_sa.plan,
        RIDGED,
        num_users=100,
        dim=3,
        num_steps=num_steps,
        policy="multi_stage",
        batch_size=1,
    )


def _ball(num_users=100, epsilon=1.0, largest_error=0.5):
    return planned(ball_accelerated_erm.plan,
        losses.absolute(1.0, domain=domains.ball(1.0)), num_users=num_users, dim=3,
        epsilon=epsilon, delta=1e-3, allow_large_delta=True, largest_error=largest_error,
    )  # fmt: skip


def _block_sizes(num_users=3):
    return _sequence.block_sizes(num_users, 2.0, 4, least=2)


@pytest.mark.parametrize(
    ("plan", "exact"),
    [
        (_concentrated, True),
        (_winsorized, True),
        (_multipass, True),
        (_phased, True),
        (_phased_groups, True),
        (_accelerated, True),
        (_staged, True),
        (_block_sizes, False),
        (_printed, False),
        pytest.param(_ball, False, marks=pytest.mark.slow),
    ],
)
def test_what_is_needed_is_enough(plan, exact):
    """And, where it is the least such number, one less is not."""
    with pytest.raises(Infeasible) as refusal:
        plan()
    assert refusal.value.needed
    for name, value in refusal.value.needed.items():
        assert str(int(value)) in str(refusal.value) or f"{value:g}" in str(refusal.value)
        plan(**{name: value})
        if exact:
            with pytest.raises(Infeasible):
                plan(**{name: value - 1})


def test_a_bad_argument_is_no_refusal_and_no_search_hides_it():
    """Each of these was tried for every number of blocks, and swallowed until the last."""
    strongly_convex = losses.huber(1.0, domain=domains.ball(2.0), ridge=0.2)
    for call in (
        lambda: planned(localized_sgd.plan, strongly_convex, num_users=5000, **USERS, radius=-1.0),
        lambda: planned(
            localized_sgd.plan, strongly_convex, num_users=5000, **USERS, selection="nonsense"
        ),
        lambda: planned(
            accelerated_strongly_convex.plan,
            strongly_convex,
            num_users=5000,
            **USERS,
            mean="nonsense",
        ),
    ):
        with pytest.raises(ValueError, match=r"radius|selection|mean") as refusal:
            call()
        assert not isinstance(refusal.value, Infeasible)


def test_settings_of_a_candidate_are_checked():
    problem = {"num_users": 50, **USERS, "distance": 2.0}
    with pytest.raises(ValueError, match="num_steps"):
        planned(auto.plan, OBJECTIVE, **problem, settings={"sgd": {"num_steps": -1}})


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_refusal_travels(copied):
    refusal = copied(Infeasible("num_users must be at least 7, got 3", {"num_users": 7}))
    assert refusal.needed == {"num_users": 7}
    assert str(refusal) == "num_users must be at least 7, got 3"
    assert Infeasible("nothing would do").needed == {}
