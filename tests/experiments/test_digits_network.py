"""The network on digits at a small size: both methods do the same steps, and the study runs."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.studies import digits_network
from experiments.studies.digits_network import OURS, PEER, DigitsNetwork
from experiments.studies.table import EXPERIMENTS

# jax_privacy calls a function that newer versions of optax have renamed.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")


def test_nobody_has_an_image_of_another_and_the_test_has_none():
    data = digits_network.load_data()
    pixels = np.asarray(data.users.items.features)
    assert pixels.shape == (480, 3, 8, 8)
    everything = np.concatenate([pixels.reshape(-1, 64), np.asarray(data.pixels).reshape(-1, 64)])
    assert len(everything) == len(data.users.items.label.ravel()) + len(data.labels) == 1797
    assert len(np.unique(everything, axis=0)) == 1797
    assert sum(leaf.size for leaf in jax.tree.leaves(digits_network.initial_params())) == 1370
    assert EXPERIMENTS["digits-network"] is DigitsNetwork


@pytest.mark.slow
def test_without_noise_both_methods_end_at_the_same_point():
    pytest.importorskip("jax_privacy")
    study = DigitsNetwork(num_steps=5)
    plan = digits_network.make_plan(study, "decay", 4.0)
    still = dataclasses.replace(plan, noise_multiplier=1e-7)
    users = digits_network.load_data().users
    ends = []
    for method in (OURS, PEER):
        solve = jax.jit(digits_network._OF_METHOD[method](study, "decay"))
        ends.append(solve(jax.random.key(0), users, still, 2.0))
    assert np.max(np.abs(ends[0]["weights"] - digits_network.initial_params()["weights"])) > 0.01
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        # Ghost sums pay for their rounding with up to 0.42 % of the clip norm.
        np.testing.assert_allclose(a, b, rtol=5e-3, atol=4e-4)


@pytest.mark.slow
def test_the_peer_pays_what_the_plan_certifies():
    """Its noise is the plan's multiplier over twice the clip norm, on the sum of the users."""
    clipping = pytest.importorskip("jax_privacy.clipping")
    study = DigitsNetwork(clip_norm=0.5)
    plan = digits_network.make_plan(study, "average", 2.0)
    assert plan.certificate().epsilon <= 2.0
    clipped = clipping.clipped_grad(
        lambda w, x: w * x, l2_clip_norm=study.clip_norm, normalize_by=480, keep_batch_dim=False
    )
    relation = plan.releases.relation
    assert float(clipped.sensitivity(relation)) == pytest.approx(
        plan.mean.noise_stddev(1) / plan.noise_multiplier
    )
