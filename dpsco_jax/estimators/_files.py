"""Fitted estimators as files: one npz of plain arrays, with a text in JSON among them. No pickle.

``write`` stores the arrays that were released, and in JSON what was declared and the sizes; ``read`` makes
the estimator again, to the last bit of every number, and runs no code of the file. The seed is left out, and
the class is named by the caller.
"""

import datetime
import decimal
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dpsco_jax import __version__, privacy
from dpsco_jax._checks import require

FORMAT = 1
_ARRAYS = ("coef", "intercept", "rdp", "failure")
# Levels that JSON has no type for: what they are called, and how they become texts and come back.
_TEXTS: dict[type, tuple[str, Any, Any]] = {
    pd.Timestamp: ("Timestamp", pd.Timestamp.isoformat, pd.Timestamp),
    pd.Timedelta: ("Timedelta", pd.Timedelta.isoformat, pd.Timedelta),
    datetime.datetime: ("datetime", str, datetime.datetime.fromisoformat),
    datetime.date: ("date", str, datetime.date.fromisoformat),
    decimal.Decimal: ("Decimal", str, decimal.Decimal),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
}
_OPTIONAL = ("covariance", "prediction_error", "mean_squares", "mean_squares_stddev")
_FIELDS = (
    *("estimator", "params", "columns", "named", "records", "status", "solver", "fits"),
    *("seeded", "certificate"),
)


def write(path: str | os.PathLike[str], model: Any) -> None:
    """Writes a fitted estimator."""
    about = {
        "format": FORMAT,
        "package": __version__,
        "estimator": type(model).__name__,
        "params": _plain("params", model._asked),
        "columns": _plain("columns", list(model.encoding_.feature_columns)),
        "named": model._named,
        "records": model.n_records_,
        "status": model.status_,
        "solver": model.solver_,
        "fits": model._fits,
        "seeded": model._seeded,
        "certificate": model.certificate_.to_json(),
    }
    text = json.dumps(about, allow_nan=False).encode()
    arrays = dict(
        zip(
            _ARRAYS,
            (model.coef_, model.intercept_, model.privacy_.rdp, model.privacy_.delta),
            strict=True,
        )
    )
    arrays |= {name: getattr(model, f"{name}_") for name in _OPTIONAL if hasattr(model, f"{name}_")}
    with open(path, "wb") as file:
        np.savez(file, about=np.frombuffer(text, np.uint8), **arrays)


def read(path: str | os.PathLike[str], cls: type) -> Any:
    """The estimator that ``write`` wrote."""
    about, arrays = _contents(path)
    name = about["estimator"]
    require(name == cls.__name__, "path", name, f"a file of a {cls.__name__}")
    try:
        return _model(cls, about, arrays)
    except Exception as error:
        if str(error).startswith("path must"):
            raise
        raise ValueError(
            f"path must be a whole file that save wrote, got {os.fspath(path)!r}: {error!r}"
        ) from error


def _model(cls: Any, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    params = _restored(about["params"])
    unknown = sorted(set(params) - set(cls._get_param_names()))
    known = f"a file with arguments that {cls.__name__} has in this version ({__version__})"
    require(not unknown, "path", unknown, known)
    model = cls(**params)
    columns = _restored(about["columns"])
    model._remember(model._encoding(columns), about["named"])
    model.n_features_in_ = len(columns)
    if about["named"] and all(isinstance(column, str) for column in columns):
        model.feature_names_in_ = np.asarray(columns, object)
    model.n_records_, model.status_ = about["records"], about["status"]
    model.solver_, model._fits = about["solver"], about["fits"]
    model._seeded = about["seeded"]
    model.certificate_ = privacy.Certificate.from_json(about["certificate"])
    model.privacy_ = privacy.PrivacyLoss(rdp=arrays["rdp"], delta=arrays["failure"])
    coef, intercept = arrays["coef"], arrays["intercept"]
    same = model.privacy_.rdp.shape == privacy.zero().rdp.shape and model.privacy_.delta.shape == ()
    require(same, "path", model.privacy_.rdp.shape, "a file with a loss on the orders of a ledger")
    fits = coef.shape[-1:] == (len(model.columns_),) and intercept.shape == coef.shape[:-1]
    require(fits, "path", coef.shape, f"a file with {len(model.columns_)} coefficients a class")
    model.coef_, model.intercept_ = coef, intercept if intercept.ndim else float(intercept)
    for name in set(_OPTIONAL) & set(arrays):
        setattr(model, f"{name}_", arrays[name] if arrays[name].ndim else float(arrays[name]))
    return model


def _contents(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The text and the arrays of a file of the known format."""
    try:
        found = np.load(path, allow_pickle=False)
        about = json.loads(found["about"].tobytes().decode())
        version = about["format"]
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"path must be a file that save wrote, got {os.fspath(path)!r}: {type(error).__name__}"
        ) from error
    with found:
        known = f"a file of format {FORMAT}, the only one that this version ({__version__}) knows"
        require(version == FORMAT, "path", f"format {version}", known)
        whole = set(_FIELDS) <= set(about) and set(_ARRAYS) <= set(found.files)
        require(whole, "path", os.fspath(path), "a whole file that save wrote")
        return about, {name: found[name] for name in found.files if name != "about"}


def _plain(name: str, value: Any) -> Any:
    """The value in JSON's own types: lists marked as such, mappings as lists of pairs."""
    if type(value) in _TEXTS:
        tag, text, _ = _TEXTS[type(value)]
        return {tag: text(value)}
    if isinstance(value, np.datetime64 | np.timedelta64):
        return {"numpy": [value.dtype.str, int(value.view(np.int64))]}
    if isinstance(
        value, np.float16 | np.float32
    ):  # which have shorter names than the floats they are
        return {"numpy": [value.dtype.str, _plain(name, float(value))]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        require(math.isfinite(value), name, value, "finite to be saved")
        return value
    if isinstance(value, Mapping):
        return {"pairs": [[_plain(name, k), _plain(f"{name}", v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(name, entry) for entry in value]}
    if isinstance(value, list | np.ndarray) or hasattr(value, "to_numpy"):
        return {"list": [_plain(name, entry) for entry in value]}
    kind = type(value).__name__
    plain = "numbers, texts, dates, and lists, pairs and mappings of such to be saved"
    require(False, name, kind, plain)
    return None


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for tag, _, made in _TEXTS.values():
        if tag in value:
            return made(value[tag])
    if "numpy" in value:
        kind, number = np.dtype(value["numpy"][0]), value["numpy"][1]
        require(kind.kind in "fmM", "path", kind, "a file with numbers, dates and spans of NumPy")
        return kind.type(number) if kind.kind == "f" else np.int64(number).view(kind)
    if "pairs" in value:
        return {_restored(key): _restored(entry) for key, entry in value["pairs"]}
    if "tuple" in value:
        return tuple(_restored(entry) for entry in value["tuple"])
    return [_restored(entry) for entry in value["list"]]
