"""The largest value of a function that a search finds: what an attacker would try on a constant."""

import numpy as np


def climb(score, size, seed, dtype=np.float32):
    """The largest score found by random search over many magnitudes, then by local search.

    ``score`` takes candidates ``[count, size]`` and returns a number for each.
    """
    rng = np.random.default_rng(seed)
    count = 2048
    candidates = rng.normal(size=(count, size)) * 10.0 ** rng.uniform(-2, 3, (count, size))
    candidates[rng.random((count, size)) < 0.2] = 0.0
    for step in (3.0, 1.0, 0.3, 0.1, 0.03, 0.01):
        scores = np.asarray(score(candidates.astype(dtype)), np.float64)
        best = candidates[np.argsort(scores)[-64:]]
        moves = rng.normal(size=(count, size)) * step
        moves[rng.random((count, size)) < 0.5] = 0.0
        candidates = np.concatenate([best, (np.repeat(best, count // 64, axis=0) + moves)[64:]])
    return float(np.max(np.asarray(score(candidates.astype(dtype)))))
