"""No error and no warning shows an entry of X, y, groups or weights, whatever is wrong with them."""

import traceback
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpsco_jax.estimators import make_private_pipeline
from tests.estimators.support import KINDS, TABLE, WHO, made, replaced_solver

TEXT, NUMBER, WHOLE = "Rosebud", 7654321.125, 918273645546372819
CANARIES = (TEXT, "7654321", "7.654321", "918273645", "9.1827364")
ROWS = len(TABLE)


class Odd:
    """An object that no table has, which says what it holds."""

    def __repr__(self):
        return TEXT


def column(*entries):
    """An array of objects as long as the table, of these entries over and over."""
    found = np.empty(ROWS, object)
    found[:] = [entries[i % len(entries)] for i in range(ROWS)]
    return found


BAD = {
    "texts": np.full(ROWS, TEXT),
    "texts as objects": column(TEXT),
    "texts as bytes": np.full(ROWS, TEXT.encode()),
    "numbers": np.full(ROWS, NUMBER),
    "numbers and texts": column(NUMBER, TEXT),
    "texts of numbers": column(str(NUMBER), str(WHOLE)),
    "huge integers": np.full(ROWS, WHOLE),
    "larger integers": column(WHOLE**3),
    "integers beyond floats": column(WHOLE**30),
    "complex": np.full(ROWS, NUMBER + 1j),
    "complex as objects": column(complex(NUMBER, WHOLE)),
    "complex of numpy as objects": column(np.complex128(NUMBER + 1j)),
    "missing": column(NUMBER, np.nan, None),
    "missing integers": pd.Series([WHOLE] * (ROWS - 1) + [None], dtype="Int64"),
    "objects": column(Odd()),
    "lists": column([TEXT, NUMBER], [TEXT]),
    "mappings": column({TEXT: NUMBER}),
    "tuples and numbers": column((TEXT, 1), WHOLE),
    "sets": column({TEXT}, {WHOLE}),
    "dates": pd.Series(pd.to_datetime(["1998-07-31"] * ROWS)),
    "categories": pd.Series([TEXT] * ROWS, dtype="category"),
    "too few": np.full(ROWS - 1, TEXT),
    "too few numbers": np.full(ROWS - 1, NUMBER),
    "one text": TEXT,
    "one number": NUMBER,
    "one list in another": [[TEXT], [NUMBER, NUMBER]],
    "a table": np.full((ROWS, 2), TEXT),
    "a cube": np.full((ROWS, 2, 2), NUMBER),
    "a frame": pd.DataFrame({"a": [TEXT] * ROWS, "b": [NUMBER] * ROWS}),
    "an index": pd.Series([NUMBER] * ROWS, index=[TEXT] * ROWS),
    "sparse": sparse.csr_matrix(np.full((ROWS, 2), NUMBER)),
    "a mapping": {TEXT: NUMBER},
    "masked": np.ma.array(np.full(ROWS, NUMBER), mask=np.arange(ROWS) == 2),
}
FLAT = {"bounds": (0, 1), "categories": None, "missing": "error"}


def said(call, bad):
    """All that a call says: the text of its refusal, with what it came from, and its warnings."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        refusal = ""
        try:
            call(bad)
        except (ValueError, TypeError) as error:
            refusal = "".join(traceback.format_exception(error))
    return refusal, refusal + "".join(str(warning.message) for warning in heard)


def is_column(values):
    return getattr(values, "ndim", 0) == 1 and len(values) == ROWS


def calls(kind):
    """By place: a call with bad values there and good ones elsewhere."""
    label = KINDS[kind][2]
    fitted = made(kind).fit(TABLE, label, groups=WHO)
    flat = made(kind, **FLAT).fit(np.zeros((ROWS, 2)), label, groups=WHO)
    pipe = make_private_pipeline("passthrough", made(kind))

    def array(values):
        return np.stack([values, values], axis=1) if is_column(values) else values

    def frame(values):
        if not is_column(values):
            return TABLE.assign(age=NUMBER, job=TEXT)
        return TABLE.assign(age=np.asarray(values), job=np.asarray(values))

    return {
        "X": lambda bad: made(kind, **FLAT).fit(array(bad), label, groups=WHO),
        "a frame": lambda bad: made(kind).fit(frame(bad), label, groups=WHO),
        "y": lambda bad: made(kind).fit(TABLE, bad, groups=WHO),
        "groups": lambda bad: made(kind).fit(TABLE, label, groups=bad),
        "groups for rows": lambda bad: made(kind, user_level=False).fit(TABLE, label, groups=bad),
        "X of predict": lambda bad: flat.predict(array(bad)),
        "a frame of predict": lambda bad: fitted.predict(frame(bad)),
        "y of score": lambda bad: fitted.score(TABLE, bad),
        "weights of score": lambda bad: fitted.score(TABLE, label, sample_weight=bad),
        "y of a pipeline": lambda bad: pipe.fit(TABLE, bad, groups=WHO),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_shows_an_entry(monkeypatch, kind):
    replaced_solver(monkeypatch)
    places = calls(kind)
    refused = dict.fromkeys(places, 0)
    for what, bad in BAD.items():
        for place, call in places.items():
            refusal, whole = said(call, bad)
            shown = [canary for canary in CANARIES if canary in whole]
            assert not shown, f"{what} as {place} of {kind} shows {shown}:\n{whole}"
            refused[place] += bool(refusal)
    # Whatever takes everything would show nothing.
    assert all(count >= 10 for count in refused.values()), refused
