"""Histograms with finer and finer elements: a small run, and the table of reference at its size."""

import builtins

import numpy as np
import pytest

from dpsco_jax.mechanisms.histogram_releases import ClusteredReleases
from dpsco_jax.rates import element_level
from experiments.studies import element_histogram, histogram_tasks
from tests.experiments.finished import reported

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
REFERENCE = {
    1: (116, 60, 23, 9.1, 3.5),
    10: (32, 10, 4.1, 1.9, 1.27),
    100: (8.4, 3.7, 1.8, 1.27, 1.10),
    1000: (5.1, 2.6, 1.48, 1.16, 1.06),
    0: (3.2, 1.8, 1.24, 1.08, 1.03),
}
"""Error of the best radius over that without privacy, with σ of E (1) and the corrected sensitivity."""


def _table(clusters, seeds):
    """Expected ratios [clusters, ε] of the best radius, from the projected means of the study."""
    found = []
    for number in clusters:
        halves, num_users = element_histogram._halves("zipf", number, seeds)
        label = histogram_tasks.clusters("zipf", number, halves.truth.shape[1])
        base = np.sum((halves.plain - halves.truth) ** 2, axis=1)
        row = []
        for epsilon in EPSILONS:
            sigma = element_level.gaussian_sigma_paper(epsilon, (2 * num_users) ** -1.1)
            one = ClusteredReleases(num_users, False, label, 1.0, sigma, 1e-5).noise_stddev
            noise = np.sum(one**2) * np.square(element_histogram.RADII)
            off = np.sum((halves.projected - halves.truth[:, None]) ** 2, axis=2)
            row.append(np.mean(np.min(off + noise, axis=1) / base))
        found.append(row)
    return np.array(found)


@pytest.mark.slow
def test_the_table_of_reference():
    found = _table(REFERENCE, 3)
    print(found.round(2))
    assert np.all(np.diff(found, axis=0) < 0), "finer is better at every ε"
    assert np.all(np.diff(found, axis=1) < 0)
    np.testing.assert_allclose(found, list(REFERENCE.values()), rtol=0.15)


def _small_zipf(monkeypatch):
    monkeypatch.setitem(histogram_tasks._SIZES, "zipf", (200, 50))
    weights = 1 / (np.arange(60) + 5.0)
    monkeypatch.setattr(histogram_tasks, "_zipf", lambda: weights / weights.sum())


@pytest.mark.slow
def test_finer_elements_are_better(monkeypatch, tmp_path):
    _small_zipf(monkeypatch)
    small = element_histogram.ElementHistogram(
        tasks=("zipf",), clusters=(1, 0), epsilons=(0.5, 2.0), seeds=2, iterations=20
    )
    table = reported(small, tmp_path, "element_histogram")
    assert np.all(table["certified"] <= table["epsilon"])
    mean = table.groupby(["clusters", "epsilon"])[["oracle", "private"]].mean()
    for way in ("oracle", "private"):
        for epsilon in (0.5, 2.0):
            assert mean.loc[(0, epsilon), way] < mean.loc[(1, epsilon), way]


def test_users_are_split_and_clusters_are_public(monkeypatch):
    _small_zipf(monkeypatch)
    first, again, other = (histogram_tasks.split("zipf", seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.truth, again.truth)
    assert np.any(first.truth != other.truth)
    assert first.num_users == 100
    assert first.counts.sum() == 100 * 50
    assert first.truth.sum() == pytest.approx(50)
    words = tuple(
        f"{stem}{end}" for stem in ("walk", "talk", "play") for end in ("", "s", "ed", "ing")
    )
    labels = histogram_tasks._by_spelling(words, 3)
    np.testing.assert_array_equal(labels, histogram_tasks._by_spelling(words, 3))
    assert set(labels) == {0, 1, 2}


def test_words_ask_for_their_package(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "wordfreq":
            raise ModuleNotFoundError("No module named 'wordfreq'")
        return real(name, *args, **kwargs)

    histogram_tasks._frequencies.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"dpsco-jax\[words\]"):
        histogram_tasks.split("words", 0)
