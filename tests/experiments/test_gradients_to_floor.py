"""The experiment at small sizes; the exponents of the planners at all of theirs."""

import numpy as np
import pandas as pd
import pytest

from experiments.studies import floor_report
from experiments.studies.floor_report import AC_SA, DP_SGD, LOCALIZATION
from experiments.studies.gradients_to_floor import GradientsToFloor, excess_risk, instance
from tests.experiments.finished import reported

ERM, SCO = floor_report.PLANNERS


def _plans(solver, exponents, sizes):
    experiment = GradientsToFloor()
    rows = [
        {"solver": solver, "users": n, "exponent": a, **experiment._counts(solver, n, a)}
        for a in exponents
        for n in sizes
    ]
    table = floor_report.plan_exponents(pd.DataFrame(rows), 0.5, 1e-6)
    return table.set_index("a")


def test_plans_for_empirical_risk_have_the_exponents_of_the_thesis():
    found = _plans(ERM, (0.0, 0.25, 0.75, 1.0, 1.5), (10**4, 10**6, 10**8))
    pure = found.drop(index=0.25)
    assert np.all(np.abs(pure["plans"] - pure["exponent"]) < 0.03)
    # Near the kink two terms are of one size; the slope is then that of their sum.
    assert np.all(np.abs(found["plans"] - found["closed form"]) < 0.03)
    assert abs(found.loc[0.25, "plans"] - found.loc[0.25, "exponent"]) > 0.03


@pytest.mark.slow
def test_plans_for_population_risk_in_few_dimensions_have_the_exponents_of_the_thesis():
    found = _plans(SCO, (0.0, 0.5), (10**4, 10**6, 10**8))
    assert np.all(np.abs(found["plans"] - found["exponent"]) < 0.03)


def test_where_a_line_reaches_a_level():
    gradients, excess = np.array([1.0, 10.0, 100.0]), np.array([1.0, 0.1, 0.01])
    assert floor_report.first_below(gradients, excess, 0.1) == pytest.approx(10.0)
    assert floor_report.first_below(gradients, excess, 0.05) == pytest.approx(20.0)
    assert floor_report.first_below(gradients, excess, 2.0) == 1.0
    assert np.isnan(floor_report.first_below(gradients, excess, 1e-3))


@pytest.mark.parametrize("loss", ["absolute", pytest.param("logistic", marks=pytest.mark.slow)])
def test_excess_risk_vanishes_at_the_minimizer_only(loss):
    objective, shared, distance = instance(loss, 3, 400, 1.0)
    assert excess_risk(loss, objective, shared.minimizer, shared) == pytest.approx(0.0, abs=1e-7)
    assert excess_risk(loss, objective, 0.5 * shared.minimizer, shared) > 1e-3
    assert distance == pytest.approx(float(np.linalg.norm(shared.minimizer)), rel=1e-5)


@pytest.mark.slow
def test_small_runs_end_in_tables_and_figures(tmp_path, capsys):
    small = GradientsToFloor(
        dims=(3,),
        passes=(4.0, 16.0),
        steps=(40,),
        factors=(1.0, 8.0),
        seeds=2,
        exponents=(1.0,),
        sizes=(1000, 10_000, 100_000),
        num_users=2000,
        epsilon=4.0,
    )
    table = reported(small, tmp_path, "gradients_to_floor", "planner_exponents")
    runs = table[~table["solver"].isin(floor_report.PLANNERS)]
    assert set(runs["solver"]) == {DP_SGD, AC_SA, LOCALIZATION}
    assert (runs["excess_risk"] < runs["trivial"]).mean() > 0.9
    lines = pd.read_csv(tmp_path / "lines.csv")
    best = lines.groupby(["loss", "line", "passes"])["excess_risk"].first()
    for loss in small.losses:
        for name in (DP_SGD, AC_SA):
            tuned, planned = (best[loss, f"{name}, {how}"] for how in ("tuned", "planned"))
            assert (tuned <= planned).all()
    assert "passes over the data to come within" in capsys.readouterr().out


def test_the_default_has_what_is_reported():
    assert GradientsToFloor().dims == (20, 100, 500)
