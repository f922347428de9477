"""Noise correlated over the steps of a stream: sums over many steps get much less of it.

What it computes: with fresh unit Gaussian noise Z_t, the noise of step t of a stream of T steps is

    σ·Δ·S·(Z_t + d_1 Z_{t-1} + ... + d_{b-1} Z_{t-b+1}),

with negative d_j: each step takes back part of the noise of the b - 1 before. Δ is the sensitivity of one
step, σ the multiplier of the whole stream, S the factor by which C = D^-1 stretches what one user does, for
D the lower triangular Toeplitz matrix of 1, d_1, ..., d_{b-1}. ``banded_square_root`` takes d_j from
the power series of √(1 - x), the square root of the differences.

Source: Denisov et al. 2022 (matrix mechanism on adaptive streams); Fichtenberger, Henzinger and Upadhyay
2023 (the square root); Kalinin and Lampert 2024 (a banded inverse; participation patterns). Noise of a binary
tree, which is another correlation, is in ``mechanisms.tree``; that of a few buffers, which is less and costs
less if users take part once, in ``mechanisms.buffered_noise``.

Formal guarantee: derived in docs/theory/correlated_noise.md. The T releases together are one Gaussian
release of multiplier σ, if a user takes part in at most ``max_participations`` of them, any two at least
``min_separation`` apart, and who takes part when does not depend on the data. Nothing is amplified by
sampling. The past noise in the state is secret. A chain that ``halt_when`` may stop needs one stream for the
whole run, since a stream that has been halted begins no other.
Several streams, each of fresh noise, add up; unless they are ``disjoint``: where no user takes part in two of
them, which one is moved is a matter of releases before it, and all streams together are that one release of
multiplier σ (parallel composition), wherever a stream is ended early, as long as only releases decide that.

Cost: one Gaussian draw a number and step; memory of b - 1 copies of the statistic.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax._checks import require, require_flag, require_integer, require_real
from dpsco_jax.mechanisms import _noise_streams
from dpsco_jax.mechanisms._noise_streams import NoiseStream


class NoiseCorrelation(NamedTuple):
    """How the noise of a stream is correlated, and what a user can do to it. Made by ``banded_square_root``.

    Coefficients of your own are looked at by ``stretch`` and whatever reads it, ``transforms.privatize`` too.

    Attributes:
        taken_back: (1, d_1, ..., d_{b-1}): the noise of a step in terms of fresh noise. No d_j is positive,
            and the first b coefficients of 1/(1 + d_1 x + ...) never rise: what ``stretch`` is proven for.
        num_steps: T.
        max_participations: in how many steps of a stream a user takes part, at most.
        min_separation: how many steps two of them are apart, at least.
        disjoint: whether no user takes part in two streams, so that all together cost what one does.
    """

    taken_back: tuple[float, ...]
    num_steps: int
    max_participations: int
    min_separation: int
    disjoint: bool = False

    def stretch(self) -> float:
        """S: how far C moves the stream, at most, for one user who moves each own step by one.

        Raises:
            ValueError: an attribute is out of its range, so that another pattern could move it further.
        """
        self._require_proven()
        response = _inverse(self.taken_back, self.num_steps)
        return _noise_streams.stretch_of(response, self.max_participations, self.min_separation)

    def _require_proven(self) -> None:
        """``ValueError`` unless the worst pattern of participations is the one that ``stretch`` adds up."""
        steps, most = self.num_steps, self.max_participations
        _noise_streams.require_participations(steps, most, self.min_separation)
        wanted = "a tuple of 1 and of finite numbers of at most 0"
        require(isinstance(self.taken_back, tuple), "taken_back", self.taken_back, wanted)
        for number in self.taken_back:
            require_real("taken_back", number, -math.inf)
        first, *others = self.taken_back or (0.0,)
        good = first == 1 and all(number <= 0 for number in others)
        require(good, "taken_back", self.taken_back, wanted)
        # As far as they are given: those after them fall if these do.
        response = _inverse(self.taken_back, len(self.taken_back))
        wanted = "such that the coefficients of 1/(1 + d_1 x + ...) never rise"
        require(np.all(np.diff(response) <= 0), "taken_back", self.taken_back, wanted)
        require_flag("disjoint", self.disjoint)

    def prefix_stddev(self) -> np.ndarray:
        """Standard deviation of the noise in the sums of the first 1, 2, ... steps, in units of σΔ.

        Raises:
            ValueError: an attribute is out of its range.
        """
        stretch = self.stretch()
        padded = np.zeros(self.num_steps)
        padded[: len(self.taken_back)] = self.taken_back[: self.num_steps]
        return stretch * np.sqrt(np.cumsum(np.cumsum(padded) ** 2))

    def init(self, like: Any) -> NoiseStream:
        """The beginning of a stream of statistics with the shapes of ``like``."""
        return _noise_streams.empty_stream(like, len(self.taken_back) - 1)

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
        memory = len(self.taken_back) - 1
        ago = (stream.step - 1 - jnp.arange(memory)) % max(memory, 1)  # steps before the last one
        # What a stream before has left is overwritten before it is read.
        weights = jnp.where(ago < stream.step, jnp.asarray(self.taken_back[1:])[ago], 0.0)

        def kept(past: jax.Array, new: jax.Array, back: jax.Array) -> jax.Array:
            if memory == 0:
                return past
            return _noise_streams.written(past, new, back, stream.step % memory)

        scaled = noise_multiplier, sensitivity
        return _noise_streams.step_of_stream(key, statistic, stream, *scaled, self, weights, kept)


def banded_square_root(
    num_steps: int,
    max_participations: int,
    min_separation: int | None = None,
    bands: int = 32,
    disjoint: bool = False,
) -> NoiseCorrelation:
    """Correlation after √(1 - x), cut after ``bands`` terms; for ``transforms.privatize``.

    One pass over T disjoint batches of users is ``max_participations=1``. A pass over the same T/k
    batches k times in the same order is ``max_participations=k, min_separation=T // k``.

    Args:
        num_steps: T, updates in a stream, at least 1.
        max_participations: in how many steps of the stream a user takes part, at most; in [1, T].
        min_separation: how many steps two of them are apart, at least; in [1, T]. Needed if there
            are several.
        bands: b: 1 is independent noise, T the whole square root; in [1, T] or cut to T.
        disjoint: whether no user takes part in two streams; ``privatize`` then charges for one of them.
    """
    require_flag("disjoint", disjoint)
    num_steps = require_integer("num_steps", num_steps, 1)
    pattern = _noise_streams.pattern_of(num_steps, max_participations, min_separation)
    bands = require_integer("bands", bands, 1)
    coefficients = [1.0]
    for j in range(1, min(bands, num_steps)):
        coefficients.append(coefficients[-1] * (j - 1.5) / j)
    return NoiseCorrelation(tuple(coefficients), num_steps, *pattern, disjoint)


def _inverse(taken_back: tuple[float, ...], length: int) -> np.ndarray:
    """The power series of 1/(1 + d_1 x + ...): the first column of C. Nonnegative, and never rises."""
    response = np.zeros(length)
    response[0] = 1.0
    back = -np.asarray(taken_back[1:])
    for t in range(1, length):
        reach = min(t, len(back))
        response[t] = back[:reach] @ response[t - reach : t][::-1]
    return response
