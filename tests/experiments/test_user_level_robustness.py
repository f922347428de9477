"""Attacks at small sizes."""

import pytest

from experiments.studies import user_level_robustness as robustness
from experiments.studies.mean_estimators import CENTRED, CLIPPING, ESTIMATORS, OUTLIER
from tests.experiments.finished import finished, report

pytestmark = pytest.mark.slow  # compiles four mechanisms for three attacks

SMALL = robustness.UserLevelRobustness(num_users=400, dim=4, num_releases=2, seeds=3, epsilon=8.0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return finished(SMALL, tmp_path_factory.mktemp("robustness"))


def test_every_cell_is_finite_whatever_the_attack(table):
    assert table["error"].notna().all()
    assert len(table) == len(ESTIMATORS) * len(robustness.ATTACKS) * 2 * 3


def test_the_outlier_removed_mean_stays_within_what_is_proven_or_halts(table):
    rows = table[table["estimator"] == OUTLIER]
    assert (rows["within_bound"] == 1).all()
    attacked = rows["attack"] != robustness.NOBODY
    assert (rows[~attacked | (rows["share"] == 0.05)]["halted"] == 0).all()
    assert (rows[attacked & (rows["share"] == 0.4)]["halted"] == 1).all()
    # After a halt the last release is what there is: as good as without an attack.
    quiet = rows[~attacked]["error"].mean()
    assert rows[rows["halted"] == 1]["error"].mean() < 3 * quiet


def test_clipping_is_moved_by_colluding_users(table):
    errors = table[(table["share"] == 0.4)].groupby(["estimator", "attack"])["error"].mean()
    assert errors[CLIPPING, robustness.FAR] > 10 * errors[OUTLIER, robustness.FAR]
    assert errors[CENTRED, robustness.FAR] < errors[CLIPPING, robustness.FAR]
    calm = table[table["estimator"] != OUTLIER]
    assert (calm["halted"] == 0).all()


def test_report_writes_tables_and_figures(table, tmp_path, capsys):
    report(SMALL, table, tmp_path, "user_level_robustness")
    printed = capsys.readouterr().out
    assert "5% of the users attack" in printed
    assert "40% of the users attack" in printed


def test_the_default_attacks_with_five_and_forty_percent():
    assert robustness.UserLevelRobustness().shares == (0.05, 0.4)
