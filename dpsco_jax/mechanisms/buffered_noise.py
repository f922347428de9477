"""Noise correlated over steps by a few buffers: little of it in sums, and a few copies to remember.

What it computes: with fresh unit Gaussian noise Z_t, the noise of step t of a stream of T steps is

    σ·Δ·S·(Z_t - Σ_j w_j·B_j(t)),    B_j(t) = λ_j·B_j(t-1) + Z_{t-1},    B_j(0) = 0,

with w_j, λ_j >= 0: each step takes back part of all noise before it, of which m buffers B_j keep sums with
weights that decay. D, the lower triangular Toeplitz matrix of 1, d_1, d_2, ..., has d_n = -Σ_j w_j·λ_j^(n-1),
and the first column of its inverse C is of the same kind,

    c_0 = 1,    c_n = Σ_j a_j θ_j^(n-1),

where diag(λ) + √w·√w' has the eigenvalues θ_j, and a_j are the squares of √w in the basis of eigenvectors.
``buffered`` finds (a, θ) for the least mean square of the noise of all T prefix sums.

Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024 (buffered linear Toeplitz matrices); the
search over symmetric matrices of m rows, in which both columns have closed forms, is ours.

Formal guarantee: that of ``mechanisms.correlated_noise``, by the same proof, as no c_n is negative and none
is above the one before it (docs/theory/correlated_noise.md). S is computed from weights and decays as float32
holds them, so that noise in float32 has the correlation that is charged. The buffers in a state are secret.

Cost: one Gaussian draw a number and step; memory of m copies of the statistic, at most 4 by default. The
search is made once for each power of two that T is rounded up to, in about 0.1 s.

Example:
    >>> import jax
    >>> from dpsco_jax import transforms
    >>> from dpsco_jax.mechanisms.buffered_noise import buffered
    >>> mean, made = transforms.clipped_mean(1.0, 10), buffered(1024, max_participations=1)
    >>> release = transforms.privatize(mean, jax.random.key(0), 5.0, noise_correlation=made)
    >>> rows = jax.numpy.ones((10, 3))
    >>> noised, state = release.update(rows, release.init(rows[0]))
    >>> noised.shape, len(made.decays), bool((made.prefix_stddev() ** 2).mean() ** 0.5 < 3.1)
    ((3,), 3, True)
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from dpsco_jax._checks import require, require_flag, require_integer, require_real
from dpsco_jax.mechanisms import _noise_streams
from dpsco_jax.mechanisms._noise_streams import NoiseStream

__all__ = ["BufferedCorrelation", "buffered"]

_GRID = 16.0  # parameters are rounded to this part of a natural logarithm: the same on all machines


class BufferedCorrelation(NamedTuple):
    """How the noise of a stream is correlated, and what a user can do to it. Made by ``buffered``.

    Numbers of your own are looked at by ``stretch`` and whatever reads it, ``transforms.privatize`` too.

    Attributes:
        taken_back: w_j: how much of each buffer a step takes back; numbers of float32, none negative.
        decays: λ_j: how much a buffer keeps of itself from step to step; numbers of float32, none negative.
            The eigenvalues of diag(λ) + √w·√w' are at most 1.
        num_steps: T.
        max_participations: in how many steps of a stream a user takes part, at most.
        min_separation: how many steps two of them are apart, at least.
        disjoint: whether no user takes part in two streams, so that all together cost what one does.
    """

    taken_back: tuple[float, ...]
    decays: tuple[float, ...]
    num_steps: int
    max_participations: int
    min_separation: int
    disjoint: bool = False

    def response(self) -> np.ndarray:
        """c_0, ..., c_{T-1}: the first column of C, ``[num_steps]``.

        Raises:
            ValueError: an attribute is out of its range.
        """
        weights, rates = self._require_proven()
        powers = rates ** np.arange(max(self.num_steps - 1, 0))[:, None]
        return np.append(1.0, powers @ weights)

    def stretch(self) -> float:
        """S: how far C moves the stream, at most, for one user who moves each own step by one.

        Raises:
            ValueError: an attribute is out of its range, so that another pattern could move it further.
        """
        return _noise_streams.stretch_of(
            self.response(), self.max_participations, self.min_separation
        )

    def _require_proven(self) -> tuple[np.ndarray, np.ndarray]:
        """The a_j and the θ_j of C; ``ValueError`` unless no c_n is negative or above the one before it."""
        _noise_streams.require_participations(
            self.num_steps, self.max_participations, self.min_separation
        )
        require_flag("disjoint", self.disjoint)
        wanted = "a tuple of numbers of float32, at least 0"
        for name, given in (("taken_back", self.taken_back), ("decays", self.decays)):
            require(isinstance(given, tuple), name, given, wanted)
            for number in given:
                require_real(name, number, 0.0)
                require(float(np.float32(number)) == number, name, number, wanted)
        same = len(self.taken_back) == len(self.decays)
        require(same, "decays", self.decays, "as many numbers as taken_back has")
        root = np.sqrt(np.asarray(self.taken_back, float))
        rates, basis = np.linalg.eigh(
            np.diag(np.asarray(self.decays, float)) + np.outer(root, root)
        )
        # The largest is at least c_1, the sum of w: so no c_n is above the one before it.
        wanted = "such that diag(decays) + √w·√w' has no eigenvalue above 1"
        require(np.all(rates <= 1), "taken_back", self.taken_back, wanted)
        return (basis.T @ root) ** 2, np.maximum(rates, 0.0)

    def prefix_stddev(self) -> np.ndarray:
        """Standard deviation of the noise in the sums of the first 1, 2, ... steps, in units of σΔ.

        Raises:
            ValueError: an attribute is out of its range.
        """
        stretch = self.stretch()
        powers = np.asarray(self.decays) ** np.arange(self.num_steps - 1)[:, None]
        taken_back = np.append(1.0, -powers @ np.asarray(self.taken_back))
        return stretch * np.sqrt(np.cumsum(np.cumsum(taken_back) ** 2))

    def init(self, like: Any) -> NoiseStream:
        """The beginning of a stream of statistics with the shapes of ``like``."""
        return _noise_streams.empty_stream(like, len(self.decays))

    def add_noise(
        self,
        key: jax.Array,
        statistic: Any,
        stream: NoiseStream,
        noise_multiplier: jax.typing.ArrayLike,
        sensitivity: jax.typing.ArrayLike,
    ) -> tuple[Any, NoiseStream]:
        """One step of the stream.

        Args:
            key: a typed key, used up.
            statistic: leaves of the shapes that ``init`` got, in at least float32, in one part or in two.
            stream: where the stream stands.
            noise_multiplier: σ of the stream; read at its first step.
            sensitivity: Δ of this step.

        Raises:
            ValueError: an attribute is out of its range, or the statistic has other shapes.
        """
        self._require_proven()
        later = stream.step != 0
        weights = jnp.where(later, -np.asarray(self.taken_back), 0.0)

        def kept(past: jax.Array, new: jax.Array, _: jax.Array) -> jax.Array:
            rates = jnp.asarray(self.decays, past.dtype).reshape(-1, *[1] * new.ndim)
            return jnp.where(later, rates * past, 0) + new.astype(past.dtype)

        scaled = noise_multiplier, sensitivity
        return _noise_streams.step_of_stream(key, statistic, stream, *scaled, self, weights, kept)


def buffered(
    num_steps: int,
    max_participations: int,
    min_separation: int | None = None,
    buffers: int = 4,
    disjoint: bool = False,
) -> BufferedCorrelation:
    """The correlation of few buffers with the least noise in sums; for ``transforms.privatize``.

    It is sought for users who take part once. If users return, the noise of
    ``mechanisms.correlated_noise.banded_square_root`` with as many bands as steps between may be less.

    Args:
        num_steps: T, updates in a stream, in [1, 2^30].
        max_participations: in how many steps of the stream a user takes part, at most; in [1, T].
        min_separation: how many steps two of them are apart, at least; in [1, T]. Needed if there
            are several.
        buffers: at most so many; those of which a stream as short as this has no use are left out.
        disjoint: whether no user takes part in two streams; ``privatize`` then charges for one of them.

    Raises:
        ValueError: an argument is out of its range.
    """
    require_flag("disjoint", disjoint)
    num_steps = require_integer("num_steps", num_steps, 1, 2**30)
    pattern = _noise_streams.pattern_of(num_steps, max_participations, min_separation)
    buffers = require_integer("buffers", buffers, 1, 16)
    doublings = max((num_steps - 1).bit_length(), 1)
    taken_back, decays = _fitted(doublings, min(buffers, max(doublings // 3, 1)))
    return BufferedCorrelation(taken_back, decays, num_steps, *pattern, disjoint)


@functools.cache
def _fitted(doublings: int, buffers: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights w and decays λ with the least mean square of the noise in 2^doublings sums."""
    steps = 2**doublings
    spans = np.linspace(math.log(2.0), 0.9 * math.log(steps), buffers)
    start = np.append(spans, -0.5 * spans - 1.2)
    found = optimize.minimize(_spread, start, (steps,), method="L-BFGS-B").x
    root, rates, basis = _inverse(np.round(found * _GRID) / _GRID)
    weights = (basis.T @ root) ** 2
    held = [tuple(some.astype(np.float32).tolist()) for some in (weights, rates)]
    return held[0], held[1]


def _inverse(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """√a, and λ with its eigenvectors, of -log(1 - θ) and log a, in one array."""
    spans, logs = np.split(numbers, 2)
    root = np.exp(0.5 * logs)
    return root, *np.linalg.eigh(np.diag(-np.expm1(-spans)) - np.outer(root, root))


def _spread(numbers: np.ndarray, steps: int) -> float:
    """Half the logarithm of S²·Σ_n (T - n)(1 + d_1 + ... + d_n)²/T, the mean square of the noise in sums."""
    root, rates, basis = _inverse(numbers)
    if rates[0] <= 1e-6:  # d_n would change signs
        return 50.0 - rates[0]
    kept = -np.expm1(-np.split(numbers, 2)[0])
    square = 1.0 + root**2 @ _sum_of_powers(np.outer(kept, kept), steps - 1) @ root**2
    # 1 + d_1 + ... + d_n is a constant and a multiple of each λ_j^n.
    parts = (basis.T @ root) ** 2 / (1.0 - rates)
    parts, rates = np.append(parts, 1.0 - np.sum(parts)), np.append(rates, 1.0)
    products = np.outer(rates, rates)
    products[-1, -1] = 0.5  # of the constant with itself: no power
    sums = (steps - products * _sum_of_powers(products, steps)) / (1.0 - products)
    sums[-1, -1] = steps * (steps + 1) / 2
    return 0.5 * math.log(square * (parts @ sums @ parts) / steps)


def _sum_of_powers(base: np.ndarray, many: int) -> np.ndarray:
    """1 + base + ... to the power many - 1; base in (0, 1)."""
    return -np.expm1(many * np.log(base)) / (1.0 - base)
