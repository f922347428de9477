"""The golden numbers hold within rounding on any machine; what compares them notices what it should."""

import dataclasses

import jax.numpy as jnp
import pytest

from tests.golden.__main__ import FILE
from tests.golden.cases import CASES, Case
from tests.golden.record import differences, read, record, write

ROUNDING = 1e-3  # processors and compilers differ in the last bits, which steps may multiply


@dataclasses.dataclass(frozen=True)
class Plan:
    steps: int
    rate: float
    inner: tuple[float, ...] = ()


def _case(rate=0.3, end=1.5, plans=None):
    made = {"first": lambda: Plan(7, rate, (0.25, 4.5))} if plans is None else plans
    return Case("a case", made, lambda plan: {"params": jnp.array([end, 2.0 * plan.steps])})


def _refused():
    raise ValueError("no such plan")


def test_every_case_is_recorded_and_no_other():
    """Cases come from the rows of ``tests/solvers/private_table.py``."""
    recorded, cases = list(read(FILE)), [case.name for case in CASES]
    missing = [name for name in cases if name not in recorded]
    assert not missing, (
        f"python -m tests.golden write --only {missing[0]!r} and so on, for {missing}"
    )
    assert recorded == cases, "numbers of cases that are gone, or in another order"


def test_a_number_may_move_but_not_change():
    before = record(_case())
    assert not differences(before, before, 0.0)
    moved = {"first": lambda: Plan(7, 0.25, (4.5, 0.3))}
    assert not differences(before, record(_case(plans=moved)), 0.0)
    found = differences(before, record(_case(rate=0.31)), 1e-3)
    assert len(found) == 1
    assert ".rate" in found[0]
    assert len(differences(before, record(_case(end=1.5001)), 1e-6)) == 1
    assert not differences(before, record(_case(end=1.5001)), 1e-3)


def test_a_plan_that_is_refused_now_or_no_longer_is_a_difference():
    good = {"first": lambda: Plan(7, 0.3), "second": lambda: Plan(8, 0.2)}
    bad = {**good, "second": _refused}
    before, after = record(_case(plans=good)), record(_case(plans=bad))
    assert len(differences(before, after, 0.0)) == 1
    assert len(differences(after, before, 0.0)) == 1


def test_what_is_written_is_read_again_whether_or_not_plans_share_numbers(tmp_path):
    plans = {
        "first": lambda: Plan(7, 0.3, (0.25, 4.5)),
        "second": lambda: Plan(7, 0.2),  # another number, and one part less
        "third": lambda: Plan(7, 0.3, (0.25, 4.5)),
        "none": _refused,
    }
    cases = {"a case": record(_case(plans=plans)), "another": record(_case())}
    write(tmp_path / "numbers.json", cases)
    assert read(tmp_path / "numbers.json") == cases


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_plans_and_runs_are_those_recorded(case):
    known = read(FILE)[case.name]
    assert not differences(known, record(case), ROUNDING)
