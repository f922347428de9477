"""The study of gradient subspaces at toy size: what is tuned, what is charged, and what is called private."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import Poisson
from experiments.studies import gradient_subspaces_report as report
from experiments.studies import tweet_transformer as transformer
from experiments.studies.gradient_subspaces import GradientSubspaces
from tests.experiments.finished import finished, reported

TOY = GradientSubspaces(
    kinds=(report.HISTORY,),
    ranks=(2,),
    seeds=1,
    largest_rank=2,
    num_steps=4,
    probability=0.5,
    num_train=40,
    layers=1,
    width=4,
    length=8,
    vocabulary=50,
    pretraining_steps=2,
)


@pytest.mark.slow
def test_the_study_at_toy_size(tmp_path):
    """The kind of run with two parts and a basis of its own; both parts are charged."""
    table = finished(TOY, tmp_path)
    assert table["auc"].between(0, 1).all()
    charged = 1 / table["inverse_epsilon"][0]
    plan = GaussianSteps(Poisson(0.5), NeighboringRelation.ADD_OR_REMOVE_ONE, 4)
    expected = plan.ledger_epsilon(TOY.noise_multiplier(), TOY.delta())
    assert charged == pytest.approx(expected, rel=1e-3)
    assert charged > 8


def test_what_is_an_analysis_is_called_one(tmp_path, monkeypatch):
    """In the table and in the picture, from the certificate and from the ledger."""
    certificates = TOY.certificates()
    assert math.isinf(certificates[report.PRIVATE].epsilon)
    for kind in (report.ALL, report.PUBLIC, report.HISTORY):
        assert 7.9 < certificates[kind].epsilon <= 8.0
    cells = [(kind, 2, seed) for kind in (report.PRIVATE, report.HISTORY) for seed in (0, 1)]
    table = pd.DataFrame(cells, columns=["kind", "rank", "seed"]).assign(auc=[0.8, 0.9, 0.5, 0.7])
    table["inverse_epsilon"] = [0.0, 0.0, 0.1, 0.1]
    shown = []
    monkeypatch.setattr(report, "_draw", lambda axes, rows: shown.extend(report.labels(rows)))
    TOY.report(table, tmp_path)
    assert shown == ["private gradients: ε = inf, not private", "own releases: ε = 8"]
    said = pd.read_csv(tmp_path / "auc.csv").set_index("directions")
    assert said.loc[report.PRIVATE].iloc[-1] == "ANALYSIS, NOT PRIVATE"
    assert math.isinf(said.loc[report.PRIVATE, "ε in the ledger"])
    assert said.loc[report.HISTORY, "ε in the ledger"] == 10
    assert said.loc[report.HISTORY, "AUC"] == pytest.approx(0.6)


def test_words_are_those_of_public_tweets_and_links_are_none():
    public = pd.Series(["Great wall! https://t.co/abc", "a GREAT day", "great 45"])
    known = transformer.vocabulary(public, 2)
    assert list(known) == ["great", "!"]
    found = transformer.encode(pd.Series(["Great @You #maga x 7 ! https://t.co/abc"]), known, 8)
    named = [transformer.NAME, transformer.TAG, transformer.WORD, transformer.NUMBER]
    assert found.tolist() == [[transformer.START, 6, *named, 7, transformer.PAD]]


def test_a_word_sees_neither_later_words_nor_padding():
    size = transformer.Size(vocabulary=5, length=4, layers=1, width=4, heads=2)
    model = transformer.initial(jax.random.key(0), size)

    @jax.jit
    def states(tokens):
        return transformer.hidden(model, tokens, size)

    short, longer = (states(jnp.array(row)) for row in ([1, 7, 0, 0], [1, 7, 9, 8]))
    np.testing.assert_allclose(short[:2], longer[:2], atol=1e-6)
    assert not np.allclose(states(jnp.array([1, 8, 0, 0]))[1], short[1], atol=1e-3)


@pytest.mark.slow
def test_the_other_kinds(tmp_path):
    study = dataclasses.replace(TOY, kinds=report.KINDS)
    table = reported(study, tmp_path)
    charged = table.set_index("kind")["inverse_epsilon"]
    assert charged[report.PRIVATE] == 0
    finite = charged[[report.ALL, report.PUBLIC, report.HISTORY]]
    np.testing.assert_allclose(finite, finite.iloc[0], rtol=1e-4)
    spectrum = pd.read_csv(tmp_path / "spectrum.csv")["sigma"]
    assert spectrum[0] > spectrum[1] > 0
    assert "not private" in (tmp_path / "gradient_subspaces.svg").read_text()
