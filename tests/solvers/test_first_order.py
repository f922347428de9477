"""Plans of a mean and a method: composed by hand, read and edited by name, compiled once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import Budget
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.problems import synthetic
from dpsco_jax.solvers import first_order, means, methods, phased
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.user_level import sgd

MADE = synthetic.logistic_regression(jax.random.key(0), num_users=60, items_per_user=2, dim=3)
PROBLEM, BUDGET = MADE.problem(distance=5.0), Budget(1.0, 1e-4)
SIZES = {"num_steps": 6, "batch_size": 20, "accountant": "rdp"}
MEAN = means.clipped(PROBLEM, BUDGET, **SIZES)
PLAN = first_order.plan(PROBLEM, BUDGET, MEAN, methods.ProjectedSgd(0.3))


def _run(plan, objective=MADE.objective, **given):
    def solve(key, plan):
        start = jnp.zeros(3)
        return first_order.solve(key, plan, objective, MADE.data, start, **given)

    return jax.jit(solve)(jax.random.key(1), plan)


def test_a_composed_plan_is_that_of_the_solver():
    solver = sgd.plan(PROBLEM, BUDGET, step_size=0.3, **SIZES)
    one, other = _run(PLAN), _run(solver)
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.privacy.rdp, other.privacy.rdp)
    assert PLAN.certificate() == solver.certificate()
    assert PLAN.certificate().epsilon <= 1.0
    assert PLAN.work() == solver.work()
    assert "first-order method on a private mean" in str(PLAN)


def test_a_mean_for_others_or_over_the_budget_is_refused():
    with pytest.raises(ValueError, match="mean must be within"):
        first_order.plan(PROBLEM, Budget(0.5, 1e-4), MEAN, methods.ProjectedSgd(0.3))
    fewer = dataclasses.replace(PROBLEM, num_users=59)
    with pytest.raises(ValueError, match="mean must be of 59"):
        first_order.plan(fewer, BUDGET, MEAN, methods.ProjectedSgd(0.3))
    with pytest.raises(ValueError, match="method must be"):
        first_order.plan(PROBLEM, BUDGET, MEAN, optax.sgd(0.1))


def test_numbers_are_read_and_edited_wherever_they_are():
    edited = PLAN.replace(noise_multiplier=7.0, step_size=0.1, clip_norm=0.5, num_steps=4)
    assert edited.mean.releases.noise_multiplier == edited.noise_multiplier == 7.0
    assert edited.method.step_size == edited.step_size == 0.1
    assert (edited.clip_norm, edited.num_steps) == (0.5, 4)
    assert edited.certificate().epsilon < PLAN.certificate().epsilon
    assert edited.made_for == PLAN.made_for
    with pytest.raises(ValueError, match="changes must be the name of one field"):
        PLAN.replace(momentum=0.9)
    # δ is that of the budget and that of the releases.
    with pytest.raises(ValueError, match="changes must be the name of one field"):
        PLAN.replace(delta=1e-6)
    with pytest.raises(AttributeError, match="momentum"):
        _ = PLAN.momentum


def test_what_is_inside_of_an_edited_field_is_edited_too():
    other = dataclasses.replace(PLAN.releases, num_steps=9)
    edited = PLAN.replace(noise_multiplier=7.0, releases=other, method=methods.Momentum(0.2, 0.5))
    assert (edited.noise_multiplier, edited.num_steps, edited.momentum) == (7.0, 9, 0.5)


def test_remarks_are_for_people_and_compile_nothing():
    remarked = dataclasses.replace(PLAN, remarks=Remarks([("why", "because")]))
    assert "why" in str(remarked)
    assert jax.tree.structure(remarked) == jax.tree.structure(PLAN)
    assert "because" not in str(remarked.replace(step_size=0.2))


def test_own_methods_are_chains_and_are_projected():
    plan = PLAN.replace(method=methods.Optax(optax.adam(50.0)), clip_norm=1.0)
    assert MADE.objective.domain.contains(_run(plan).params, 1e-5)

    @dataclasses.dataclass(frozen=True)
    class Still:
        def on(self, domain, num_steps):
            return methods.Chain(optax.scale(0.0), lambda opt_state, params: params)

    found = first_order.run(
        jax.random.key(0), MEAN, Still(), MADE.objective, MADE.data, jnp.ones(3), 6, 240
    )
    np.testing.assert_array_equal(found.params, MADE.objective.domain.project(jnp.ones(3)))


def test_a_centre_needs_a_pull_and_moves_the_run():
    with pytest.raises(ValueError, match="center must be None: the plan has no pull"):
        _run(PLAN, center=jnp.ones(3))
    pulled = first_order.plan(PROBLEM, BUDGET, MEAN, methods.ProjectedSgd(0.3), pull=2.0)
    far, near = _run(pulled, center=jnp.ones(3)).params, _run(pulled).params
    assert np.all(np.asarray(far) > np.asarray(near))


def _phases(*parts):
    part = dataclasses.replace(PLAN, made_for=None)
    sizes = {"num_users": 60, "parts": parts, "epsilon": 1.0, "delta": 1e-4}
    return phased.Phased(title="phases", excess_bound=part.excess_bound, **sizes)


def test_no_detail_hides_what_a_part_releases():
    # Blocks are cut by position: whoever comes or goes moves all users behind.
    hidden = dataclasses.replace(PLAN, made_for=None, method=_Releasing(None))
    for part in (dataclasses.replace(PLAN, made_for=None), hidden):
        with pytest.raises(ValueError, match=r"plan.releases.relation must be REPLACE_ONE"):
            _phases(part)
    for name in ("releases", "num_users", "noise_stddev", "epsilon", "certificate"):
        with pytest.raises(ValueError, match=f"details must be names .* got '{name}'"):
            dataclasses.replace(PLAN, details={name: 1.0})
    with pytest.raises(ValueError, match=r"details must be names .* got 'user_gradients'"):
        dataclasses.replace(_phases(), details={"user_gradients": 1.0})


@dataclasses.dataclass(frozen=True)
class _Releasing:
    releases: None

    def on(self, domain, num_steps):
        raise AssertionError


def test_parts_are_plans_of_one_kind():
    sizes = SIZES | {"sampling": "fixed"}
    mean = means.clipped(PROBLEM, BUDGET, **sizes)
    part = first_order.plan(PROBLEM, BUDGET, mean, methods.ProjectedSgd(0.3))
    for parts in ((), (None,), ("part",), (part, _phases(part)), (_phases(part), part)):
        with pytest.raises(
            ValueError, match=r"plan.parts must be one or more plans of first-order"
        ):
            phased.solve(
                jax.random.key(0), _phases(*parts), MADE.objective, MADE.data, jnp.zeros(3)
            )


def test_a_mean_that_says_nothing_of_its_releases_is_refused():
    class Own:
        def open(self, key, objective, data, start):
            return MEAN.open(key, objective, data, start)

    lowered = MEAN.lowered()
    for mean in (Own(), lowered, means.Clipped):
        with pytest.raises(ValueError, match=r"mean.* must be of type (Releases|Mean)"):
            first_order.plan(PROBLEM, BUDGET, mean, methods.ProjectedSgd(0.3))
    with pytest.raises(ValueError, match=r"plan.mean.releases must be of type Releases, got Gauss"):
        _run(dataclasses.replace(PLAN, mean=lowered))
    with pytest.raises(ValueError, match="method must be of type Method"):
        first_order.plan(PROBLEM, BUDGET, MEAN, methods.ProjectedSgd)
    with pytest.raises(ValueError, match="remarks must be pairs of a name and a text"):
        first_order.plan(PROBLEM, BUDGET, MEAN, methods.ProjectedSgd(0.3), remarks=[(1, 2)])


def test_remarks_are_equal_or_not_but_never_both():
    one, other = Remarks([("a", "b")]), Remarks()
    assert one == other
    assert not one != other  # noqa: SIM202
    assert one != ("a", "b")


def test_a_plan_has_the_numbers_of_its_mean_and_not_what_the_mean_does():
    with pytest.raises(ValueError, match="mean must be of type Mean, got FirstOrder"):
        first_order.plan(PROBLEM, BUDGET, PLAN, methods.ProjectedSgd(0.3))
    assert not hasattr(PLAN, "lowered")

    class Failing:
        releases = MEAN.releases

        def noise_stddev(self, dim):
            return self.forgotten

    with pytest.raises(AttributeError, match="has no attribute 'noise_stddev'"):
        _ = dataclasses.replace(PLAN, mean=Failing()).noise_stddev


@pytest.mark.parametrize("tested", [False, True])
def test_a_method_is_told_nothing_but_what_was_released(tested):
    told = []

    def update(updates, state, params=None, **extra_args):
        told.append(sorted(extra_args))
        return updates, state

    curious = optax.GradientTransformationExtraArgs(lambda params: (), update)
    mean = MEAN
    if tested:
        sizes = {"batch_size": 50, "accountant": "chernoff"}
        releases = calibrate_concentrated(60, 6, 40.0, 1e-2, **sizes)
        mean = means.OutlierRemoved(64, 4.0, "item", releases, 2.0, 1.0, None)
    _run(dataclasses.replace(PLAN, mean=mean, method=methods.Optax(curious)))
    assert told
    assert not any(told)
