"""Scaling laws at small sizes."""

import jax
import numpy as np
import pytest

from experiments.studies import user_level_scaling as scaling
from tests.experiments.finished import finished, report

SMALL = scaling.UserLevelScaling(
    estimators=(scaling.CLIPPING, scaling.OUTLIER, scaling.CENTRED),
    num_users=(400, 800),
    base_users=400,
    base_items=1024,
    items=(256, 4096),
    seeds=6,
    count_users=(1000, 4000),
    dim=4,
    epsilon=8.0,
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return finished(SMALL, tmp_path_factory.mktemp("scaling"))


@pytest.mark.slow
def test_every_cell_has_a_sound_result(table):
    means = table[~table["estimator"].isin(scaling.COUNTED)]
    assert (means["halted"] == 0).all()
    # The noise that was measured is the noise that was planned.
    ratio = (means["noise"] / means["planned_noise"]).groupby(means["estimator"])
    assert ratio.apply(lambda r: np.mean(r**2)).between(0.4, 1.8).all()  # 72 squares of each


@pytest.mark.slow
def test_concentrated_means_gain_from_items_and_clipping_does_not(table):
    means = table[~table["estimator"].isin(scaling.COUNTED)]
    found = scaling.exponents(means, SMALL.base_users, SMALL.base_items).set_index("estimator")
    assert abs(found.loc[scaling.CLIPPING, "noise in m"].estimate) < 0.15
    for name in (scaling.OUTLIER, scaling.CENTRED):
        assert found.loc[name, "noise in m"].estimate == pytest.approx(-0.5, abs=0.15)
        assert found.loc[name, "risk in m"].estimate == pytest.approx(-1.0, abs=0.3)
    assert found.loc[scaling.CLIPPING, "noise in n"].estimate == pytest.approx(-1.0, abs=0.4)


@pytest.mark.slow
def test_gradient_counts_follow_the_rates(table, tmp_path, capsys):
    report(SMALL, table, tmp_path, "user_level_scaling")
    printed = capsys.readouterr().out
    assert "item gradients: exponents in nm" in printed
    counts = table[table["estimator"] == "accelerated_phased_erm"]
    assert scaling._count_exponent(counts, "rate_gradients") == pytest.approx(1.125, abs=1e-3)
    counts = table[table["estimator"] == "multipass_sgd"]
    assert scaling._count_exponent(counts, "rate_gradients") == pytest.approx(1.5, abs=1e-3)


@pytest.mark.parametrize("bits", [1, 33, 4096])
def test_counts_of_ones_have_the_binomial_law(bits):
    counts = np.asarray(scaling.count_of_ones(jax.random.key(bits), np.int32(bits), (4000, 5)))
    assert counts.min() >= 0
    assert counts.max() <= bits
    spread = 5 / np.sqrt(counts.size)
    assert counts.mean() / bits == pytest.approx(0.5, abs=0.5 * spread / np.sqrt(bits))
    assert counts.var() / bits == pytest.approx(0.25, rel=2 * spread)


def test_the_default_has_twenty_seeds():
    assert scaling.UserLevelScaling().seeds >= 20
