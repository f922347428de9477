"""What the recorder writes down: releases, samples that were asked for, charges; and where it writes them."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpsco_jax import _compensated, privacy
from dpsco_jax.privacy.sampling import Proven, WithoutReplacement


class Declared(NamedTuple):
    """What the code around a mechanism says of one release.

    Attributes:
        sensitivity: of the statistic, in the norm of the mechanism.
        multiplier: noise over sensitivity, as it is charged.
        scheme: how the users were drawn, of ``privacy.sampling``; ``None`` where nothing was said.
    """

    sensitivity: Any = np.nan
    multiplier: Any = np.nan
    scheme: Any = None


class Release(NamedTuple):
    """One call of a mechanism.

    Attributes:
        name: ``"gaussian"``, ``"laplace"``, ``"bounded_laplace"``, ``"correlated"``, ``"test"``,
            ``"interval"`` or ``"argmax"``.
        key: bytes of the PRNG key: the identity of the release.
        step: its place in the order of arrival.
        statistic: before the noise, raveled, float64.
        noise: standard deviation (Gaussian), scale (Laplace, tests, argmax); ε of an interval.
        sensitivity: declared, NaN where nothing was.
        multiplier: declared, likewise.
        scheme: declared way of sampling, or ``None``.
    """

    name: str
    key: bytes
    step: int
    statistic: np.ndarray
    noise: float
    sensitivity: float
    multiplier: float
    scheme: Any

    def moved(self, other: "Release") -> float:
        """How far the statistic of ``other`` is away, in the norm in which the mechanism needs it bounded.

        ℓ2 for Gaussian noise, ℓ1 for Laplace, the largest entry for tests and argmax; for an interval the
        number of values that changed.
        """
        same = (self.statistic == other.statistic) | (
            np.isnan(self.statistic) & np.isnan(other.statistic)
        )
        if self.name == "interval":
            return float(np.sum(~same))
        away = np.where(same, 0.0, np.abs(self.statistic - other.statistic))
        order = {"laplace": 1, "bounded_laplace": 1, "test": np.inf, "argmax": np.inf}.get(
            self.name, 2
        )
        return float(np.linalg.norm(away, order)) if away.size else 0.0


class Draw(NamedTuple):
    """A sample of users that was asked for: the name of the sampler and its numbers, the key left out."""

    sampler: str
    arguments: tuple[float, ...]


class Tape:
    """Where an active recording writes; see ``Recorded`` for whole solvers."""

    def __init__(self, freeze: bool) -> None:
        self.freeze = freeze
        self.releases: list[Release] = []
        self.charges: list[privacy.PrivacyLoss] = []
        self.draws: set[Draw] = set()
        # Keys as bytes: of samples of users, of all that gave random bits, and of all that were split.
        self.keys: dict[str, list[bytes]] = {"samples": [], "used": [], "parents": []}
        self.forced: Any = None
        # Of a draw: what its potential says of the data, and what is declared of that.
        self.draw_of: Any = None
        self._declared: list[list[Declared]] = []
        self._silent = 0

    @contextlib.contextmanager
    def declaring(self, *declared: Declared) -> Iterator[None]:
        """Says what the additive releases made inside are, in their order; the last of all further."""
        self._declared.append(list(declared))
        yield
        self._declared.pop()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing is recorded inside: the mechanism around it is."""
        self._silent += 1
        yield
        self._silent -= 1

    @property
    def is_silent(self) -> bool:
        """Whether nothing is recorded now."""
        return self._silent > 0

    def next_declared(self) -> Declared:
        if not self._declared:
            return Declared()
        queue = self._declared[-1]
        return queue.pop(0) if len(queue) > 1 else queue[0]

    def write(self, name: str, key: Any, statistic: Any, noise: Any, declared: Declared) -> None:
        """Records one release, now or (while tracing) whenever the program gets here."""
        if self.is_silent:
            return

        scheme = declared.scheme
        scheme = scheme.scheme if isinstance(scheme, Proven) else scheme
        drawn = isinstance(scheme, WithoutReplacement)  # of sizes that may be traced
        sizes = tuple(scheme) if drawn else ()

        def append(
            data: Any, flat: Any, noise: Any, sensitivity: Any, multiplier: Any, *sizes: Any
        ) -> None:
            of_run = WithoutReplacement(*(int(size) for size in sizes)) if drawn else scheme
            self.releases.append(
                Release(
                    name,
                    np.asarray(data).tobytes(),
                    len(self.releases),
                    np.array(flat, np.float64),
                    float(noise),
                    float(sensitivity),
                    float(multiplier),
                    of_run,
                )
            )

        arrays = jax.tree.map(jnp.asarray, _compensated.rounded(statistic))
        wide = jax.tree.map(
            lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), arrays
        )
        numbers = (noise, declared.sensitivity, declared.multiplier)
        flat = ravel_pytree(wide)[0]
        jax.debug.callback(
            append,
            jax.random.key_data(key),
            flat,
            *(jnp.asarray(x, float) for x in numbers),
            *sizes,
        )

    def drawn(self, key: Any, draw: Draw) -> None:
        """Records a sample of users: what was asked for now, and its key whenever it is drawn."""
        self.draws.add(draw)
        self.keep("samples", key)

    def keep(self, kind: str, key: Any) -> None:
        """Records a key whenever the program gets here."""

        def append(data: Any) -> None:
            self.keys[kind].append(np.asarray(data).tobytes())

        jax.debug.callback(append, jax.random.key_data(key))

    def charged(self, loss: privacy.PrivacyLoss) -> None:
        """Records one entry of a ledger."""

        def append(rdp: Any, delta: Any) -> None:
            self.charges.append(privacy.PrivacyLoss(np.array(rdp), np.array(delta)))

        jax.debug.callback(append, jnp.asarray(loss.rdp, float), jnp.asarray(loss.delta, float))
