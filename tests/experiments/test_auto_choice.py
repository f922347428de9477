"""What auto chooses against the best of its candidates: three problems, and, slow, all of the study."""

import pandas as pd
import pytest

from experiments.studies import auto_choice, auto_problems
from experiments.studies.auto_choice import AutoChoice
from experiments.studies.table_tasks import REPORT
from tests.experiments.finished import reported

HOPEFUL = (
    "whitened_sgd", "preconditioned_sgd", "private_ac_sa, full batches", "momentum_sgd",
    "sgd, clipped at 2L/sqrt(m)",
)  # fmt: skip
# Two candidates each, one of which is at least five times as good.
SMALL = {
    "mean": ("private_ac_sa, full batches", "momentum_sgd"),
    "median, wide": ("private_ac_sa, full batches", "momentum_sgd"),
    "long users": ("whitened_sgd", "momentum_sgd"),
}


def _report(experiment, folder):
    reported(experiment, folder)
    return pd.read_csv(folder / "choices.csv")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in SMALL])
def test_choices_on_three_small_problems(name, tmp_path):
    choices = _report(AutoChoice((name,), SMALL[name], seeds=2), tmp_path)
    assert list(choices["problem"]) == [name]
    assert list(choices["ratio"]) == [1.0], choices.to_string()
    assert 1 / 5 < choices["predicted"][0] / choices["measured"][0] < 5


@pytest.mark.slow
def test_choices_on_all_problems_of_the_study(tmp_path):
    choices = _report(AutoChoice(candidates=HOPEFUL), tmp_path)
    assert len(choices) == len(auto_problems.NAMES)
    # Two are above 2: "few users", by half a thousandth of what the start is above the minimum, and "many
    # users", where noise hides the radius of a rare class and the prediction does not know it.
    assert (choices["ratio"] <= 1.3).sum() >= len(choices) - 4, choices.to_string()
    assert (choices["ratio"] <= 2.0).sum() >= len(choices) - 2, choices.to_string()
    assert (choices["ratio"] <= 3.0).all(), choices.to_string()


def test_problems_are_in_three_parts_and_no_table_to_report_is_among_them():
    parts = [entry.part for entry in auto_problems.ENTRIES.values()]
    assert set(parts) == {"fit", "report", "fresh"}
    assert min(map(parts.count, set(parts))) >= 7
    assert not set(REPORT) & set(auto_problems.NAMES)


def test_what_is_chosen_is_what_is_predicted_to_be_least():
    rows = pd.DataFrame(
        {
            "problem": "toy",
            "part": "fit",
            "candidate": ["a", "b", "c"],
            "measured": [3.0, 1.0, 2.0],
            "predicted": [2.0, 9.0, 1.0],
        }
    )
    line = auto_choice.choice(rows)
    assert (line["choice"], line["best"], line["ratio"]) == ("c", "b", 2.0)
