"""The studies of sampling at tiny sizes, and their closed forms."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems.users import mean_loss
from dpsco_jax.problems.value_instances import hard_linear_instance
from dpsco_jax.rates.value_queries import minimax_lower_bound
from dpsco_jax.solvers.sampling import value_queries
from experiments.studies import sampling_formulas as formulas
from experiments.studies import sampling_queries, sampling_risk, sampling_tasks, sampling_tuning
from experiments.studies.sampling_queries import SamplingQueries
from experiments.studies.sampling_queries_report import compared
from experiments.studies.sampling_risk import SamplingRisk
from experiments.studies.sampling_tuning import SamplingTuning
from experiments.studies.table_dp_sgd import AVERAGES
from tests.experiments.finished import finished, report, reported
from tests.experiments.toy_task import toy_task

ROWS = 300


@pytest.fixture
def toy(monkeypatch):
    """Whatever task is asked for is the toy."""
    caches = (
        sampling_tasks.load_rows,
        sampling_tasks.load_users,
        sampling_tasks._model,
        sampling_tasks._pulled,
        sampling_tuning._sampled_plan,
    )
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setattr(sampling_tasks, "load", toy_task)
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("others", [(), ("langevin", "private_ac_sa")])
@pytest.mark.slow
def test_tuned_peers_run_again_beside_the_plans(others, toy, tmp_path, monkeypatch):
    small = SamplingTuning(
        tasks=("flights",),
        schedules=("100 full", "200 of a quarter"),
        modes=("constant", "decay"),
        clips=(1.0,),
        paths=(50.0, 200.0),
        epsilons=(4.0,),
        seeds=2,
        num_rows=ROWS,
    )
    table = finished(small, tmp_path / "tuning")
    small.report(table, tmp_path)
    best = pd.read_csv(tmp_path / "tuned.csv")
    means = table.groupby(["schedule", "mode", "path"])["last"].mean()
    last = best[best["peer"] == "DP-GD, last"].iloc[0]
    assert last["excess"] == pytest.approx(means["100 full"].min())
    assert (last["mode"], last["path"]) == means["100 full"].idxmin()
    averaged = best[best["peer"] == "DP-GD, averages"].iloc[0]
    assert averaged["excess"] <= last["excess"]

    monkeypatch.setattr(sampling_risk, "TUNED", tmp_path / "tuned.csv")
    risk = SamplingRisk(
        tasks=("flights",),
        methods=("regularized", *others, "DP-GD, last"),
        radii=(10.0,),
        seeds=2,
        epsilons=(4.0,),
        num_rows=ROWS,
        delta=1e-5,
    )
    found = finished(risk, tmp_path / "risk")
    report(risk, found, tmp_path, "sampling_risk")
    of = found.set_index("method")
    assert len(of) == 4 + 2 * len(others)
    # A draw of few rows is bad, and Laplace's method knows how bad; the order of size is tested here.
    draws = of.loc["regularized"]
    assert 0.2 < draws["excess_risk"].mean() / draws["laplace"].iloc[0] < 5.0
    assert (of.loc["DP-GD, last"]["excess_risk"] < draws["trivial"].iloc[0]).all()
    draws = ["regularized", *(other for other in others if other == "langevin")]
    assert (of.loc[draws]["certified_epsilon"] <= 4.0).all()
    table = pd.read_csv(tmp_path / "sampling_risk.csv")
    row = table[table["method"] == "regularized"].iloc[0]
    assert row["over_laplace"] == pytest.approx(row["excess_risk"] / row["laplace"])
    peer = table[table["method"] == "DP-GD, last"].iloc[0]
    assert row["over_last"] == pytest.approx(row["excess_risk"] / peer["excess_risk"])
    # The peer's average is the one that was tuned.
    program, key = risk.build({"task": "flights", "method": "DP-GD, last"}), jax.random.key(0)
    given = program.inputs({"epsilon": 4.0, "radius": 0.0, "seed": 0})
    points = {
        name: float(
            program.run(program.shared, key, dataclasses.replace(given, average=i))["excess_risk"]
        )
        for i, name in enumerate(AVERAGES)
    }
    assert len(set(points.values())) == len(AVERAGES)
    assert float(program.run(program.shared, key, given)["excess_risk"]) == points["last"]
    users = pd.read_csv(tmp_path / "users_as_records.csv")
    assert set(users["users"]) == {400}
    assert (users["beats"] == (users["draw"] < 0.9 * users["start"])).all()
    assert (users["proven"] == (users["draw_bound"] < users["trivial"])).all()


@pytest.mark.slow
def test_laplace_predictions_are_those_of_gaussians_around_the_end(toy):
    """Against means over the Gaussians themselves, of the quadratic with the Hessian from jax."""
    rows = sampling_tasks.load_rows("flights", ROWS)
    with jax.enable_x64(True):
        data = sampling_tasks.shared_rows(rows)
        features, labels = data.items.features[:, 0].astype(float), data.items.label[:, 0]

        def value(w):
            margins = features @ w
            risk = jnp.mean(jax.nn.softplus(margins) - labels * margins)
            return risk + sampling_tasks.RIDGE / 2 * w @ w

        zero = jnp.zeros(rows.dim)
        assert float(mean_loss(rows.objective)(zero, data)) == pytest.approx(float(value(zero)))
        assert rows.trivial == pytest.approx(float(value(zero)) - rows.least)

        def descend(u, steps, size):
            def step(_, w):
                return w - size * (jax.grad(value)(w) + u * w)

            return jax.lax.fori_loop(0, steps, step, zero)

        end = descend(0.01, 20_000, 2.0)
        bends = np.asarray(jax.hessian(value)(end))
        bias = float(value(end)) - rows.least
        inverse = np.linalg.inv(bends + 0.01 * np.eye(rows.dim))
        draw = bias + 0.5 * np.trace(bends @ inverse) / 70.0
        assert sampling_tasks.of_draw(rows, ROWS, 0.01, 70.0) == pytest.approx(draw, rel=1e-4)
        output = bias + 0.5 * 0.3**2 * np.trace(bends)
        assert sampling_tasks.of_output(rows, ROWS, 0.01, 0.3) == pytest.approx(output, rel=1e-4)

        short = descend(0.02, 12, 1.5)
        bends = np.asarray(jax.hessian(value)(short))
        shrink = np.eye(rows.dim) - 1.5 * (bends + 0.02 * np.eye(rows.dim))
        cover, power = np.zeros_like(bends), np.eye(rows.dim)
        for _ in range(12):
            cover += power @ power.T
            power = power @ shrink
        steps = float(value(short)) - rows.least + 0.5 * 0.1**2 * np.trace(bends @ cover)
        found = sampling_tasks.of_steps(rows, ROWS, 12, 1.5, 0.02, 0.1)
        assert found == pytest.approx(steps, rel=1e-6)


def test_the_least_of_the_instances_is_not_beaten_on_the_ball():
    for name in ("absolute", "hinge"):
        made = sampling_queries.instance(name, 20, 2)
        angle, radius = np.meshgrid(np.linspace(0, 2 * np.pi, 721), np.linspace(0, 1, 201))
        points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
        margins = points @ made.rows.T
        if name == "absolute":
            values = np.abs(margins - made.labels).mean(axis=-1)
        else:
            values = np.maximum(0.0, 1.0 - (2 * made.labels - 1) * margins).mean(axis=-1)
        assert made.least <= values.min() + 1e-9
        assert values.min() <= made.least + 0.02
        assert made.trivial == pytest.approx(values[0, 0] - made.least)
    # One row, whose margin would have to be 1: on the ball it is ½.
    one = (np.array([[0.125**0.5, 0.125**0.5]]), np.ones(1), np.ones(1))
    assert sampling_queries._least("hinge", *one) == pytest.approx(0.5, abs=2e-6)
    assert sampling_queries._least("absolute", *one) == pytest.approx(0.5, abs=2e-6)


def test_the_peer_may_ask_for_no_more_values_than_the_draw():
    small = SamplingQueries(num_users=10, delta=1e-2)
    static = {"problem": "absolute", "dim": 2, "method": sampling_queries.PEER, "directions": 0}
    settings = {"epsilon": 0.5, "clip": 1.0, "path": 1.0, "mode": "decay", "seed": 0}
    with jax.enable_x64(True):
        few, many = (small.build({**static, "num_steps": steps}) for steps in (20, 10**6))
        assert few.known(settings)["queries"] == 2 * 10 * 20 * 2
        few.inputs(settings)
        with pytest.raises(ValueError, match="num_steps must ask for at most"):
            many.inputs(settings)


def test_the_peer_is_chosen_by_some_seeds_and_measured_on_others():
    rows = [{"problem": "p", "dim": 2, "epsilon": 1.0, "method": "draw", "seed": 0,
             "excess_risk": 0.5, "bound": 1.0, "queries": 9.0, "trivial": 1.0}]  # fmt: skip
    for path, values in ((1.0, (0.1, 0.9, 0.1, 0.7)), (2.0, (0.2, 0.2, 0.2, 0.2))):
        for seed, value in enumerate(values):
            config = {"num_steps": 5, "directions": 1, "clip": 1.0, "path": path, "mode": "decay"}
            averages = dict.fromkeys(("uniform", "polynomial", "tail"), 5.0)
            rows.append({"problem": "p", "dim": 2, "epsilon": 1.0, "method": "peer", "seed": seed,
                         "queries": 7.0, "last": value, **averages, **config})  # fmt: skip
    (row,) = compared(pd.DataFrame(rows), "draw", "peer").to_dict("records")
    assert (row["path"], row["average"], row["peer_queries"]) == (1.0, "last", 7.0)
    assert row["peer"] == pytest.approx(0.8)
    assert row["ratio"] == pytest.approx(0.5 / 0.8)


@pytest.mark.slow
def test_draws_and_the_peer_at_a_tiny_size(tmp_path):
    small = SamplingQueries(
        problems=("absolute",),
        dims=(2,),
        num_steps=(20,),
        directions=(1,),
        seeds=2,
        epsilons=(1.0,),
        clips=(1.0,),
        paths=(1.0,),
        num_users=10,
        delta=1e-2,
    )
    table = reported(small, tmp_path, "sampling_queries")
    found = pd.read_csv(tmp_path / "sampling_queries.csv")
    assert (found["peer_queries"] <= found["queries"]).all()
    assert (table["excess_risk"].dropna() >= -1e-9).all()


@pytest.mark.slow
def test_the_risk_on_the_hard_instance_is_between_the_bounds():
    """Of the population, over records and draws: nobody is below one, the plan proves the other."""
    num_users, dim, lanes = 15, 4, 24
    with jax.enable_x64(True), jax.debug_key_reuse(False):
        hard = hard_linear_instance(
            jax.random.key(0), num_users, dim, num_users * dim, bounded=True
        )
        problem = Problem(hard.objective, num_users=num_users, dim=dim)
        plan = value_queries.plan(problem, Budget(1.0, 1e-2), risk="population")
        queries = round(float(plan.expected_value_queries))

        @jax.jit
        def draws(keys):
            def one(key):
                data_key, key = jax.random.split(key)
                records = hard.draw(data_key)
                return value_queries.solve(
                    key, plan, hard.objective, records, jnp.zeros(dim)
                ).params

            return jax.vmap(one)(keys)

        excess = np.asarray(hard.excess(draws(jax.random.split(jax.random.key(1), lanes))))
    error = excess.std(ddof=1) / lanes**0.5
    assert excess.mean() - 4 * error <= float(plan.excess_bound)
    lowest = minimax_lower_bound(queries, dim, num_users=num_users)
    assert hard.lower_bound <= lowest * (1 + 1e-9)
    assert excess.mean() + 4 * error >= hard.lower_bound


def test_exponents_of_plans_and_bounds():
    steps = formulas.proximal_steps((1_000, 10_000, 100_000), (5, 500), (1e-2, 1e-3))
    assert abs(steps["n"]) < 0.05
    assert abs(steps["d"]) < 0.05
    assert steps["1/mu"] == pytest.approx(1.0, abs=0.1)
    risks = formulas.norm_risks((32, 128, 512), 1_000_000, 0.1, 1e-6)
    for p, rows in risks.groupby("p"):
        found, table = (formulas.slope(rows["dim"], rows[name]) for name in ("risk", "table"))
        assert found == pytest.approx(table, abs=0.05), p
    assert (risks["risk"] < risks["table"]).all()
    means = formulas.means((100, 10_000, 1_000_000), 10, 1.0, 1e-6)
    assert (np.abs(means["excess"] - means["exact"]) < 4 * means["se"]).all()
    assert (means["excess"] < means["bound"]).all()
    assert formulas.slope(means["users"], means["exact"]) == pytest.approx(-2.0, abs=1e-9)


def test_pure_privacy_by_formulas():
    found = formulas.pure_privacy(20_000, 58, 4.0, 1.0)
    assert found["draw_bound"] == pytest.approx(2 * 2 * 4 * 58 / 20_000)
    assert found["draw"] == pytest.approx(found["draw_bound"] / 2)
    # λR²/2 + c/λ² is least at λ³ = 4c/R².
    c = 0.5 * 0.25 * 59 * (2 / 20_000) ** 2
    best = (4 * c / 16) ** (1 / 3)
    assert found["ridge"] == pytest.approx(best, rel=0.02)
    assert found["output"] == pytest.approx(best * 8 + c / best**2, rel=1e-3)


def test_they_declare_their_precision():
    assert SamplingRisk.x64
    assert SamplingQueries.x64
    assert not math.isnan(sampling_tasks.RIDGE)
