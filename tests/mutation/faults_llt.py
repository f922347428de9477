"""Faults of the sampler by log-Laplace transforms and of draws in ℓp norms, written before any ran."""

from tests.mutation import Fault

_SAMPLER = "tests/solvers/test_llt_sampler.py"
_DRAWS = "tests/solvers/test_zeroth_order.py"
_NUMBERS = "solvers/sampling/_llt_numbers.py"
_REJECTION = "solvers/sampling/_self_concordant.py"
_SOLVER = "solvers/sampling/zeroth_order.py"
_CHAIN = "solvers/sampling/llt_sampler.py"
_WRITING = (f"{_SAMPLER}::test_the_numbers_of_a_chain_in_a_second_writing",)
_PARTS = (f"{_SAMPLER}::test_every_part_of_the_distance_is_charged_as_often_as_it_occurs",)
_BUDGET = (f"{_DRAWS}::test_plans_spend_the_budget_and_no_more",)

FAULTS = (
    Fault("llt: differences of losses are G-Lipschitz", _SOLVER, "change = self.inverse_temperature, 2.0 * self.setting.lipschitz", "change = self.inverse_temperature, self.setting.lipschitz", _BUDGET),
    Fault("llt: another norm keeps its Lipschitz constant", _NUMBERS, "slope * row_bound * norms.norm_ratio(p, inner, dim)", "slope * row_bound", (f"{_DRAWS}::test_norms_near_one_are_worked_in_another_one_with_larger_slopes",)),
    Fault("llt: rows are bounded in the norm that is worked in alone", _SOLVER, "*(plan.norm, setting.row_bound),", "*(2.0, setting.row_bound),", (f"{_DRAWS}::test_a_bound_on_rows_is_what_one_gains_by",)),
    Fault("llt: rows are not bounded", _SOLVER, "*(plan.norm, setting.row_bound),", "*(plan.norm, None),", (f"{_DRAWS}::test_a_bound_on_rows_is_what_one_gains_by",)),
    Fault("llt: the objective is not looked at", _SOLVER, "if found != setting.lipschitz or bounds != (setting.feature_bound, setting.slope):", "if False:", (f"{_DRAWS}::test_a_bound_on_rows_is_what_one_gains_by",)),
    Fault("llt: estimates are charged once", _NUMBERS, "inner=steps * one,", "inner=one,", _WRITING),
    Fault("llt: draws of y are charged once", _NUMBERS, "steps * errors.draw,", "errors.draw,", _WRITING),
    Fault("llt: values of psi are exact", _NUMBERS, "transform=0.5 * xp.expm1(2.0 * off) + ", "transform=", _PARTS),
    Fault("llt: the start is drawn for nothing", _NUMBERS, "xp.clip(acceptance, 1e-9, 1.0)) + started,", "xp.clip(acceptance, 1e-9, 1.0)),", _PARTS),
    Fault("llt: roundings are charged once", _NUMBERS, "rounding=steps * every + released,", "rounding=every + released,", _PARTS),
    Fault("llt: the chain leaves its set for nothing", _NUMBERS, "    far = _FAR_SHARE * mixing\n", "    far = 0.0 * mixing\n", _PARTS),
    Fault("llt: steps contract by the square", _NUMBERS, "rate = xp.log1p(drift * xp.exp(-8.0 * off)) * _DOWN", "rate = 2.0 * xp.log1p(drift * xp.exp(-8.0 * off)) * _DOWN", _WRITING),
    Fault("llt: any step size", _NUMBERS, "within = slopes <= setting.inner", "within = slopes <= xp.inf", (f"{_SAMPLER}::test_nothing_is_proven_where_a_bound_is_broken",)),
    Fault("llt: the start is as warm as its root", _NUMBERS, "xp.minimum(0.5 * log_warm - lost", "xp.minimum(0.25 * log_warm - lost", (*_WRITING, f'{_SAMPLER}::test_mixing_bounds_the_distance_of_a_chain_that_is_solved_exactly')),
    Fault("llt: a wrong height of proposals", _REJECTION, "above = above - (length - jnp.log1p(length)) + SLOPE * length + slack", "above = above - length + SLOPE * length + slack", (f"{_SAMPLER}::test_rejection_that_knows_nothing_of_a_quadratic_draws_normal_numbers",)),
    Fault("llt: lengths of one law alone", _REJECTION, "extra = jnp.where(uniform[dim + 1] < lengths, 0.0, waits[dim])", "extra = 0.0", (f"{_SAMPLER}::test_rejection_that_knows_nothing_of_a_quadratic_draws_normal_numbers",)),
    Fault("llt: anchors that were not found", _REJECTION, "prepared.ready & contains(point)", "contains(point)", (f"{_SAMPLER}::test_newton_finds_an_anchor_in_the_steps_that_are_proven",)),
    Fault("llt: the primal power is that of the dual", _CHAIN, "family = _family(psi, 1.0 + drift, radius, num_attempts, num_newton, constant_time)", "family = _family(psi, 1.0, radius, num_attempts, num_newton, constant_time)", (f"{_SAMPLER}::test_the_quadratic_gives_the_proximal_sampler",)),
    Fault("llt: the start of another law", _CHAIN, "jnp.exp(-above)", "jnp.exp(-0.0 * above)", (f"{_SAMPLER}::test_the_start_has_the_law_of_the_regularizer",)),
    Fault("llt: no grid for the point that leaves", _SOLVER, "placed = jnp.round(end.params / numbers.release_unit) * numbers.release_unit", "placed = end.params", (f"{_DRAWS}::test_the_point_that_leaves_is_on_a_public_grid",)),
    Fault("llt: starts from anywhere", _SOLVER, "near = jnp.linalg.norm(start) <= setting.start_norm", "near = jnp.array(True)", (f"{_DRAWS}::test_one_draw_leaves_and_its_counts_stay_behind",)),
    Fault("llt: labels are not cut", _SOLVER, "_user_losses.Sizes(setting.start_norm, setting.label_bound)", "_user_losses.Sizes(setting.start_norm, 1e300)", (f"{_DRAWS}::test_labels_are_cut_beyond_all_margins_of_a_run",)),
    Fault("llt: the least height of the chain", _NUMBERS, "return rare + 1.0 + covered + drift * rise", "return 0.0 * rare + 0.1 + 0.0 * covered", (f"{_SAMPLER}::test_heights_are_as_rare_as_they_are_said_to_be",)),
    Fault("llt: newton's steps of full length", _REJECTION, "damping = jnp.where(decrement > _DAMPED, 1.0 / (1.0 + decrement), 1.0)", "damping = 1.0", (f"{_SAMPLER}::test_newton_s_method_is_damped_far_from_the_minimum",)),
    Fault("llt: the range of labels is taken on trust", "solvers/sampling/_user_losses.py", "    if model.outputs is None:\n        # Also where", "    if objective.label_range.high == math.inf:\n        # Also where", (f"{_DRAWS}::test_labels_are_cut_beyond_all_margins_of_a_run",)),
    Fault("exact: the range of labels is taken on trust", "solvers/sampling/_exponential_chain.py", "model is not None and proof.label_range == TWO_CLASSES", "model is not None and objective.label_range == TWO_CLASSES", ("tests/solvers/test_exponential_mechanism.py::test_refusals",)),
)  # fmt: skip
