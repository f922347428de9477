import numpy as np
import pandas as pd
from rich.console import Console

from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, error_bars, panels, save
from dpsco_jax.sweeps.report import show, summarize

SCORES = pd.DataFrame(
    {
        "solver": ["sgd"] * 3 + ["ac-sa"] * 3,
        "epsilon": [1.0] * 3 + [2.0] * 3,
        "auc": [0.5, 0.6, 0.7, 0.8, 0.8, 0.8],
        "risk": [1.0, 2.0, np.nan, 1.0, np.inf, 1.0],
    }
)


def test_summaries_give_mean_standard_error_and_students_interval():
    summary = summarize(SCORES, ("solver", "epsilon"), ("auc",))
    assert summary["solver"].tolist() == ["sgd", "ac-sa"]
    assert summary["count"].tolist() == [3, 3]
    np.testing.assert_allclose(summary["auc"], [0.6, 0.8])
    np.testing.assert_allclose(summary["auc_se"], [0.1 / 3**0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(
        summary["auc_ci"], [4.302653 * 0.1 / 3**0.5, 0.0], rtol=1e-6, atol=1e-12
    )


def test_one_seed_has_no_interval():
    summary = summarize(SCORES.iloc[:1], ("solver",), ("auc",))
    assert summary["auc"][0] == 0.5
    assert np.isnan(summary["auc_ci"][0])


def test_what_is_not_finite_shows():
    summary = summarize(SCORES, ("solver",), ("risk",))
    assert not np.isfinite(summary["risk"]).any()


def test_tables_print_words_and_four_digits():
    console = Console(width=80, record=True, quiet=False)
    show("Scores", {"solver": ["sgd"], "AUC": [0.123456]}, console)
    text = console.export_text()
    assert "Scores" in text
    assert "sgd" in text
    assert "0.1235 " in text


def drawn(stem):
    summary = summarize(SCORES, ("solver", "epsilon"), ("auc",))
    with panels(1, 2) as (figure, axes):
        error_bars(axes[0, 0], summary, "epsilon", "auc", "solver", ["sgd", "ac-sa"])
        axes[0, 0].set_xlabel("ε")
        save(figure, stem)
        return axes[0, 0]


def test_equal_data_give_equal_files(tmp_path):
    drawn(tmp_path / "one")
    drawn(tmp_path / "two")
    for kind in ("png", "svg"):
        one, two = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("one", "two"))
        assert one == two
        assert len(one) > 1000
    assert b"date" not in (tmp_path / "one.svg").read_bytes().lower()


def test_series_are_told_apart_by_more_than_colour(tmp_path):
    axes = drawn(tmp_path / "one")
    lines = [container[0] for container in axes.containers]
    assert len({line.get_marker() for line in lines}) == 2
    assert len({line.get_linestyle() for line in lines}) == 2
    assert len(PALETTE) == len(MARKERS) == len(LINES)


def test_series_may_be_numbers():
    scores = SCORES.assign(users=[100] * 3 + [1000] * 3)
    summary = summarize(scores, ("users", "epsilon"), ("auc",))
    with panels(1, 1) as (_, axes):
        error_bars(axes[0, 0], summary, "epsilon", "auc", "users", [100, 1000])
    assert axes[0, 0].get_legend_handles_labels()[1] == ["100", "1000"]


def test_no_colour_is_too_light_for_white_paper():
    weights = (0.2126, 0.7152, 0.0722)
    for colour in PALETTE:
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert np.dot(rgb, weights) < 0.75
