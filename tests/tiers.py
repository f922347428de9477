"""Which tests are quick: those of ``make test``, which a contributor runs in a few minutes.

A test is in one of three tiers. Those marked ``slow`` where they are defined are audits and other long runs,
for ``make test-slow``. Those named here are marked ``full``, for ``make test-all``. All others are quick, and
so is a new test. If no marks are asked for, pytest runs the quick and the full ones: all tests of a file that
are not slow run by ``pytest tests/solvers/test_sgd.py``.

Where ``make test`` takes longer than CONTRIBUTING allows, its dearest tests are named here. Quick remain a
call of every public name, a row of each family in the contract tables, curves, ledgers, refusals, short
examples, and what the documents say of the house.

    TEST_COSTS=/tmp/costs make test-all    appends the seconds of processor time of every test to the file
    python -m tests.tiers /tmp/costs       what each tier costs, and the dearest tests that are quick
"""

import pathlib
import sys
from collections import defaultdict
from collections.abc import Mapping

# Tests over the rows of ``solvers/private_table``: quick for one row of each family, full for the others.
BY_FAMILY: Mapping[str, tuple[str, ...]] = {
    "tests/solvers/test_contract.py": (
        "test_a_size_that_lets_a_run_draw_more_costs_more",
        "test_a_start_of_another_type_runs_or_is_refused",
        "test_a_trace_is_kept_for_every_step",
        "test_lanes_that_would_draw_by_one_key_are_refused",
        "test_numbers_of_the_plan_may_be_traced_and_batched",
        "test_the_plan_says_what_a_run_is_charged_whatever_number_was_edited",
    ),
    "tests/solvers/test_recorded_releases.py": (
        "test_what_is_released_is_bounded_disjoint_and_paid_for",
    ),
}

ROWS = frozenset({
    *("sgd, poisson", "sgd, full", "element_sgd, poisson", "preconditioned_sgd", "langevin"),
    *("output_perturbation", "item_group_privacy, full", "private_ac_sa, sampled", "auto"),
    *("regularized_sgd, single", "erm, restarts", "winsorized_erm, winsorized", "phased_erm"),
    *("multipass_sgd, tested", "localized_sgd", "accelerated_sgd, clipped", "finite_class, plain"),
    *("metric_entropy", "regularized", "exponential_mechanism", "value_queries", "resque_erm"),
    *("ball_accelerated_sco",),
})  # fmt: skip

# By file, the names of the other tests that are not quick.
FULL: Mapping[str, tuple[str, ...]] = {
    "tests/corrections/test_llt_sampler.py": ("test_the_law_of_the_mixture_is_tilted",),
    "tests/corrections/test_subspaces.py": (
        "test_g8_components_of_private_gradients_are_private_data",
    ),
    "tests/devices/test_devices.py": ("test_on_four_devices",),
    "tests/estimators/test_canaries.py": ("test_no_message_shows_an_entry",),
    "tests/estimators/test_fits.py": (
        "test_standard_errors_are_shown_and_kept",
        "test_what_is_certified_is_within_the_budget_and_what_is_planned",
    ),
    "tests/estimators/test_scikit_learn.py": ("test_the_checks_of_scikit_learn",),
    "tests/estimators/test_tables.py": ("test_levels_and_classes_count_whatever_type_holds_them",),
    "tests/estimators/test_without_extra.py": ("test_the_import_names_the_extra",),
    "tests/experiments/test_element_studies.py": (
        "test_every_plan_of_the_tables_protects_its_record",
    ),
    "tests/experiments/test_movielens_factors.py": (
        "test_the_gradient_is_that_of_the_minimum_over_the_local_part",
        "test_the_study_runs_and_reports",
    ),
    "tests/experiments/test_table.py": ("test_every_study_is_an_experiment_with_cells",),
    "tests/experiments/test_table_studies.py": (
        "test_a_search_grows_its_axes_and_finds_a_good_setting",
        "test_every_method_that_applies_runs_and_is_compared",
    ),
    "tests/experiments/test_table_tasks.py": ("test_sizes_are_those_of_the_documents",),
    "tests/experiments/test_user_level_tradeoff.py": ("test_every_cell_has_a_sound_result",),
    "tests/geometry/test_clipping.py": ("test_it_is_the_sum_of_clipped_rows",),
    "tests/geometry/test_domains.py": (
        "test_dtype_structure_and_nan",
        "test_projection_is_the_nearest_point",
    ),
    "tests/geometry/test_log_laplace.py": (
        "test_draws_have_the_mean_and_covariance_of_their_law",
        "test_the_function_of_one_variable_is_smooth_where_table_and_expansion_meet",
        "test_value_gradient_and_hessian_are_those_of_the_integral",
        "test_value_is_the_power_series_up_to_its_stated_error_all_over_its_reach",
    ),
    "tests/geometry/test_lp.py": (
        "test_gradients_at_the_center_and_of_matrices",
        "test_gradients_of_regularizers",
        "test_norms_and_what_attains_their_duals",
    ),
    "tests/geometry/test_lp_balls.py": (
        "test_diameter_norm_and_membership",
        "test_projection_against_bisections_in_numpy",
        "test_projection_in_float32_far_out_batched_and_of_trees",
        "test_projection_is_the_nearest_point",
    ),
    "tests/geometry/test_sums.py": (
        "test_draws_with_replacement_count_as_rows",
        "test_errors_of_users_chosen_for_their_places_do_not_add_up",
        "test_what_is_privatized_moves_by_at_most_its_sensitivity",
    ),
    "tests/mechanisms/test_additive.py": ("test_noise_is_added_before_rounding",),
    "tests/mechanisms/test_clustered_histogram.py": ("test_projection_is_that_of_dense_vectors",),
    "tests/mechanisms/test_concentrated_mean.py": (
        "test_no_replacement_moves_the_mean_beyond_its_sensitivity",
    ),
    "tests/mechanisms/test_correlated_noise.py": (
        "test_a_later_step_that_is_not_valid_costs_infinity",
    ),
    "tests/mechanisms/test_draws.py": ("test_law",),
    "tests/mechanisms/test_heavy_hitters.py": ("test_counts_without_noise_are_exact",),
    "tests/mechanisms/test_private_range.py": (
        "test_draws_follow_the_law",
        "test_guarantee_is_exact_on_neighbours",
    ),
    "tests/mechanisms/test_private_selection.py": ("test_law",),
    "tests/mechanisms/test_sparse_vector.py": ("test_halting_time",),
    "tests/mechanisms/test_winsorized_mean.py": (
        "test_a_neighbour_moves_the_mean_by_the_sensitivity_at_most",
        "test_bad_users_count_as_zero_or_as_far_as_the_bound",
        "test_every_coordinate_after_the_rotation_is_paid_for",
        "test_memory_is_that_of_a_few_copies_of_the_rows",
        "test_noise_is_unbiased_with_the_stated_variance",
    ),
    "tests/mechanisms/test_winsorized_turns.py": (
        "test_an_interval_of_the_first_values_is_that_of_these_alone",
        "test_the_mean_of_a_turn_is_that_of_its_users_alone",
    ),
    "tests/oracles/test_clipped_sums.py": ("test_both_ways_sum_the_same_users",),
    "tests/oracles/test_effects.py": (
        "test_a_callback_that_is_said_to_be_pure_is_taken_at_its_word",
    ),
    "tests/oracles/test_foreign_samples.py": ("test_a_number_of_nobody_counts_as_nobody",),
    "tests/oracles/test_ghost_foreign.py": (
        "test_parameters_of_eight_bits",
        "test_sums_of_other_ranks_may_be_refused_to_the_loss_alone",
        "test_what_jax_differentiates_is_summed_and_its_way_is_said",
    ),
    "tests/oracles/test_ghost_rematerialized.py": (
        "test_one_row_at_a_time",
        "test_sums_are_those_of_gradients",
        "test_what_is_computed_again_is_not_held",
    ),
    "tests/oracles/test_ghost_rules.py": (
        "test_every_rule_gives_the_gradient",
        "test_ways_are_said_and_the_same_for_shapes",
    ),
    "tests/oracles/test_gradients.py": ("test_clipped_sum_of_a_sample",),
    "tests/oracles/test_linear.py": (
        "test_losses_of_every_kind",
        "test_samples",
        "test_the_closed_form_is_the_automatic_one",
    ),
    "tests/oracles/test_linear_users.py": (
        "test_a_subset_has_the_rows_of_its_users",
        "test_the_closed_form_is_the_automatic_one",
    ),
    "tests/rates/test_value_queries.py": ("test_bounded_laws",),
    "tests/solvers/test_accelerated_sgd.py": (
        "test_all_regularizers_are_exact_and_the_domain_is_kept",
        "test_honest_users_do_not_halt_it",
        "test_one_compilation_serves_all_numbers_and_batches_agree_with_single_runs",
        "test_the_choice_of_batches_has_the_variance_of_subsets_without_repetition",
        "test_with_all_users_and_no_noise_it_is_deterministic_ac_sa",
    ),
    "tests/solvers/test_alternating_sampler.py": (
        "test_lanes_are_what_single_runs_are",
        "test_steps_are_enough_for_gaussian_chains_and_not_too_many",
    ),
    "tests/solvers/test_auto.py": (
        "test_one_compilation_serves_all_budgets",
        "test_the_choice_is_what_runs",
    ),
    "tests/solvers/test_ball_accelerated_sco.py": ("test_turns_are_the_blocks_one_by_one",),
    "tests/solvers/test_ball_acceleration.py": ("test_noise_in_the_oracles",),
    "tests/solvers/test_ball_acceleration_solver.py": (
        "test_solve_finds_the_minimizer_of_a_logistic_loss",
    ),
    "tests/solvers/test_clipped_turns.py": (
        "test_parts_inside_of_parts_are_turns_too",
        "test_turns_are_the_phases_one_by_one",
        "test_users_of_a_turn_are_those_of_a_draw_of_its_own_sizes",
    ),
    "tests/solvers/test_contract.py": (
        "test_the_plan_keeps_to_its_budget_and_prints_what_it_costs",
    ),
    "tests/solvers/test_edited_plans.py": (
        "test_claims_cover_what_edited_numbers_run",
        "test_claims_cover_what_edited_sizes_run",
    ),
    "tests/solvers/test_edited_resque.py": (
        "test_every_edited_leaf_is_covered",
        "test_every_edited_size_is_covered",
    ),
    "tests/solvers/test_edited_selection.py": ("test_what_is_claimed_is_what_runs",),
    "tests/solvers/test_edited_statics.py": (
        "test_an_edited_static_value_is_refused_by_name_or_accounted_for",
    ),
    "tests/solvers/test_element_plan_fields.py": (
        "test_no_field_does_nothing",
        "test_what_one_way_of_sampling_does_not_use_is_refused_or_used",
    ),
    "tests/solvers/test_element_sgd.py": (
        "test_an_edited_plan_is_certified_for_the_noise_that_it_adds",
        "test_data_of_other_sizes_than_planned_are_refused",
        "test_empty_slots_leave_no_trace",
        "test_steps_are_those_of_the_algorithm",
        "test_the_expected_sum_of_a_sample_is_its_share_of_the_whole",
        "test_with_one_element_it_is_user_level_sgd_bit_for_bit",
    ),
    "tests/solvers/test_exact.py": (
        "test_on_a_box_the_law_is_truncated_also_six_deviations_outside",
        "test_rejection_at_the_target_is_exact_whatever_the_anchor",
        "test_trials_succeed_as_often_as_is_proven_on_the_worst_rows",
    ),
    "tests/solvers/test_exponential_mechanism.py": (
        "test_a_chain_runs_on_the_mean_loss_and_the_set_that_were_planned",
    ),
    "tests/solvers/test_finite_class.py": (
        "test_finds_the_best_at_the_price_of_pure_privacy",
        "test_guarantee_is_exact_end_to_end",
        "test_the_median_is_found",
    ),
    "tests/solvers/test_ghost_sums.py": (
        "test_a_linear_model_may_be_asked_for_them",
        "test_a_network_of_users_with_masked_items",
        "test_every_solver_that_sums_clipped_gradients_can_take_ghosts",
    ),
    "tests/solvers/test_item_group_privacy.py": (
        "test_drawn_items_are_an_unbiased_sample_of_all_slots",
        "test_noise_has_the_planned_size",
    ),
    "tests/solvers/test_item_sampled_sgd.py": (
        "test_the_bound_on_the_risk_holds",
        "test_with_one_item_it_is_user_level_sgd_bit_for_bit",
    ),
    "tests/solvers/test_langevin.py": (
        "test_on_linear_losses_the_last_point_is_as_private_as_is_said_and_no_more",
        "test_sixty_four_budgets_are_one_compilation",
        "test_the_chain_is_that_of_numpy_given_the_same_noise",
        "test_what_is_chosen_is_expected_to_be_best_and_the_bound_holds",
    ),
    "tests/solvers/test_langevin_proofs.py": ("test_a_step_shrinks_distances_whatever_the_data",),
    "tests/solvers/test_large_delta.py": ("test_a_fit_with_a_large_delta_says_so",),
    "tests/solvers/test_llt_sampler.py": (
        "test_chains_end_in_the_law_of_quadrature",
        "test_dual_draws_have_the_moments_of_the_law_they_are_of",
        "test_heights_are_as_rare_as_they_are_said_to_be",
        "test_newton_finds_an_anchor_in_the_steps_that_are_proven",
        "test_primal_draws_have_the_law_of_a_grid",
        "test_the_quadratic_gives_the_proximal_sampler",
        "test_the_start_has_the_law_of_the_regularizer",
    ),
    "tests/solvers/test_localized_sgd.py": (
        "test_a_user_of_the_second_block_does_not_touch_the_first",
    ),
    "tests/solvers/test_m_estimation.py": (
        "test_no_noise_and_one_record_is_gradient_descent_on_the_element_loss",
        "test_records_are_drawn_with_replacement_and_noise_stays_in_the_domain",
        "test_the_method_drives_a_private_mean_of_one_record",
    ),
    "tests/solvers/test_means.py": (
        "test_the_stated_noise_of_clipped_sums_is_that_of_the_release",
        "test_the_stated_noise_of_tested_means_is_that_of_the_release",
    ),
    "tests/solvers/test_momentum_sgd.py": ("test_steps_are_those_of_the_recursion",),
    "tests/solvers/test_multipass_sgd.py": (
        "test_a_halt_on_the_way",
        "test_noise_of_the_average_has_the_law_of_the_recursion",
        "test_one_compilation_and_batches_agree_with_single_runs",
        "test_one_item_moves_the_iterates_as_stability_says",
        "test_smoothed_runs_find_the_median",
        "test_the_solver_is_its_chain",
    ),
    "tests/solvers/test_multipass_turns.py": (
        "test_rows_of_a_turn_are_those_of_a_batch_of_its_own_users",
    ),
    "tests/solvers/test_out_of_core.py": (
        "test_a_run_goes_on_from_its_checkpoint",
        "test_the_solution_is_that_in_memory",
        "test_what_is_released_is_what_is_released_in_memory",
    ),
    "tests/solvers/test_output_perturbation.py": (
        "test_replacing_a_user_moves_the_last_point_by_at_most_the_sensitivity",
        "test_without_noise_it_ends_at_the_regularized_minimizer",
    ),
    "tests/solvers/test_output_proofs.py": (
        "test_no_mix_of_absent_users_and_users_without_a_number_moves_it_further",
    ),
    "tests/solvers/test_parallel_ball_oracles.py": (
        "test_answers_and_counts_in_a_ball_that_the_domain_cuts",
    ),
}


def is_full(test: str) -> bool:
    """Whether a test, as pytest names it, is among those named here."""
    path, _, name = test.partition("::")
    function, _, case = name.removesuffix("]").partition("[")
    if function in BY_FAMILY.get(path, ()):
        return case.split("-")[0] not in ROWS
    return function in FULL.get(path, ())


def report(costs: Mapping[str, float], above: float = 1.5) -> str:
    """What each tier costs, and the quick tests that cost more than so many seconds, over all their cases."""
    tiers: dict[bool, list[float]] = {False: [], True: []}
    dear: dict[str, float] = defaultdict(float)
    for test, seconds in costs.items():
        tiers[is_full(test)].append(seconds)
        if not is_full(test):
            dear[test.split("[")[0]] += seconds
    lines = [
        f"{name}: {len(tiers[full])} tests, {sum(tiers[full]):.0f} seconds"
        for name, full in (("quick", False), ("full", True))
    ]
    found = sorted((seconds, test) for test, seconds in dear.items() if seconds > above)
    return "\n".join([*lines, *(f"{seconds:6.1f}  {test}" for seconds, test in reversed(found))])


def main() -> None:
    """Print the report of a file of costs; of a test that has run twice the last counts."""
    rows = [line.split(" ", 1) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    print(report({test: float(seconds) for seconds, test in rows}))


if __name__ == "__main__":
    main()
