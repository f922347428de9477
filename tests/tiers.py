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
    "tests/devices/test_devices.py": ("test_on_four_devices",),
    "tests/estimators/test_canaries.py": ("test_no_message_shows_an_entry",),
    "tests/estimators/test_fits.py": (
        "test_standard_errors_are_shown_and_kept",
        "test_what_is_certified_is_within_the_budget_and_what_is_planned",
    ),
    "tests/estimators/test_scikit_learn.py": ("test_the_checks_of_scikit_learn",),
    "tests/estimators/test_tables.py": ("test_levels_and_classes_count_whatever_type_holds_them",),
    "tests/experiments/test_element_studies.py": (
        "test_every_plan_of_the_tables_protects_its_record",
    ),
    "tests/experiments/test_movielens_factors.py": ("test_the_study_runs_and_reports",),
    "tests/experiments/test_table.py": ("test_every_study_is_an_experiment_with_cells",),
    "tests/experiments/test_table_studies.py": (
        "test_a_search_grows_its_axes_and_finds_a_good_setting",
    ),
    "tests/experiments/test_table_tasks.py": ("test_sizes_are_those_of_the_documents",),
    "tests/experiments/test_user_level_tradeoff.py": ("test_every_cell_has_a_sound_result",),
    "tests/geometry/test_clipping.py": ("test_it_is_the_sum_of_clipped_rows",),
    "tests/geometry/test_domains.py": ("test_projection_is_the_nearest_point",),
    "tests/geometry/test_log_laplace.py": (
        "test_draws_have_the_mean_and_covariance_of_their_law",
        "test_value_gradient_and_hessian_are_those_of_the_integral",
        "test_value_is_the_power_series_up_to_its_stated_error_all_over_its_reach",
    ),
    "tests/solvers/test_accelerated_sgd.py": (
        "test_one_compilation_serves_all_numbers_and_batches_agree_with_single_runs",
    ),
    "tests/solvers/test_alternating_sampler.py": ("test_lanes_are_what_single_runs_are",),
    "tests/solvers/test_ball_accelerated_sco.py": ("test_turns_are_the_blocks_one_by_one",),
    "tests/solvers/test_clipped_turns.py": (
        "test_parts_inside_of_parts_are_turns_too",
        "test_turns_are_the_phases_one_by_one",
        "test_users_of_a_turn_are_those_of_a_draw_of_its_own_sizes",
    ),
    "tests/solvers/test_edited_plans.py": (
        "test_claims_cover_what_edited_numbers_run",
        "test_claims_cover_what_edited_sizes_run",
    ),
    "tests/solvers/test_edited_resque.py": ("test_every_edited_leaf_is_covered",),
    "tests/solvers/test_edited_selection.py": ("test_what_is_claimed_is_what_runs",),
    "tests/solvers/test_edited_statics.py": (
        "test_an_edited_static_value_is_refused_by_name_or_accounted_for",
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
