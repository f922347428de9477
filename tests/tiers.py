"""Which tests are quick: those of ``make test``, which a contributor runs in a few minutes.

A test is in one of three tiers. Those marked ``slow`` where they are defined are audits and other long runs,
for ``make test-slow``. Those named here and in ``full_tests.txt`` are marked ``full``, for ``make test-all``.
All others are quick, and so is a new test. Without a choice of marks pytest runs the quick and the full ones:
``pytest tests/solvers/test_sgd.py`` runs all tests of the file that are not slow.

Where ``make test`` takes longer than CONTRIBUTING allows, its dearest tests go to the list. Quick remain a
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

# The other tests that are not quick, one a line.
LIST = pathlib.Path(__file__).parent / "full_tests.txt"
FULL = frozenset(LIST.read_text().split())


def is_full(test: str) -> bool:
    """Whether a test, as pytest names it, is among those named here."""
    path, _, name = test.partition("::")
    function, _, case = name.removesuffix("]").partition("[")
    if function in BY_FAMILY.get(path, ()):
        return case.split("-")[0] not in ROWS
    return test.split("[")[0] in FULL


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
