"""The recorder: a private solver run with every release written down, whatever the algorithm is.

While ``recording`` is active every primitive mechanism of the package (additive noise, correlated noise,
threshold tests, private intervals, noisy argmax) reports each call at run time, from inside of ``jit``,
``scan``, ``while_loop`` and ``vmap``, through ``jax.debug.callback``: the statistic before the noise, the
size of the noise, and what the code around it has declared: a sensitivity, a multiplier, a way of sampling.
The samplers of ``oracles.sampling`` report what they were asked to draw, and every charge its curve.

A release is known by its PRNG key. Two runs of the same program with the same key and all releases frozen
make the same releases with the same keys, in whatever order they arrive, so that statistics of neighbouring
data sets are compared one to one. Frozen means that the data's part is left out of what is released: noise on
zero, intervals of users who are all at zero, tests that pass. A user who is ``forced`` is put into every
sample, and the noise stays the same: which releases a user can enter is seen by changing the user.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms import (
    additive,
    concentrated_mean,
    correlated_noise,
    private_range,
    selection,
    sparse_vector,
    winsorized_mean,
)
from dpsco_jax.oracles import sampling


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
        name: ``"gaussian"``, ``"laplace"``, ``"correlated"``, ``"test"``, ``"interval"`` or ``"argmax"``.
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
        order = {"laplace": 1, "test": np.inf, "argmax": np.inf}.get(self.name, 2)
        return float(np.linalg.norm(away, order)) if away.size else 0.0


class Draw(NamedTuple):
    """A sample of users that was asked for: the name of the sampler and its numbers, the key left out."""

    sampler: str
    arguments: tuple[float, ...]


class Run(NamedTuple):
    """One run: its result, its releases in the order of arrival, the curves that were charged."""

    result: Any
    releases: tuple[Release, ...]
    charges: tuple[privacy.PrivacyLoss, ...]

    def by_key(self) -> dict[bytes, Release]:
        """The releases by their keys.

        Raises:
            AssertionError: a key was used for two releases.
        """
        found = {release.key: release for release in self.releases}
        assert len(found) == len(self.releases), "a key was used for two releases"
        return found


class Tape:
    """Where an active recording writes; see ``Recorded`` for whole solvers."""

    def __init__(self, freeze: bool) -> None:
        self.freeze = freeze
        self.releases: list[Release] = []
        self.charges: list[privacy.PrivacyLoss] = []
        self.draws: set[Draw] = set()
        self.forced: Any = None
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

    def next_declared(self) -> Declared:
        if not self._declared:
            return Declared()
        queue = self._declared[-1]
        return queue.pop(0) if len(queue) > 1 else queue[0]

    def write(self, name: str, key: Any, statistic: Any, noise: Any, declared: Declared) -> None:
        """Records one release, now or (while tracing) whenever the program gets here."""
        if self._silent:
            return

        def append(data: Any, flat: Any, noise: Any, sensitivity: Any, multiplier: Any) -> None:
            self.releases.append(
                Release(
                    name,
                    np.asarray(data).tobytes(),
                    len(self.releases),
                    np.asarray(flat, np.float64),
                    float(noise),
                    float(sensitivity),
                    float(multiplier),
                    declared.scheme,
                )
            )

        arrays = jax.tree.map(jnp.asarray, statistic)
        wide = jax.tree.map(
            lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), arrays
        )
        numbers = (noise, declared.sensitivity, declared.multiplier)
        flat = ravel_pytree(wide)[0]
        jax.debug.callback(
            append, jax.random.key_data(key), flat, *(jnp.asarray(x, float) for x in numbers)
        )

    def charged(self, loss: privacy.PrivacyLoss) -> None:
        """Records one entry of a ledger."""

        def append(rdp: Any, delta: Any) -> None:
            self.charges.append(privacy.PrivacyLoss(np.asarray(rdp), np.asarray(delta)))

        jax.debug.callback(append, jnp.asarray(loss.rdp, float), jnp.asarray(loss.delta, float))


@contextlib.contextmanager
def recording(freeze: bool = False) -> Iterator[Tape]:
    """While active, mechanisms, samplers and ledgers report to the tape.

    Args:
        freeze: leave the data's part out of everything that is released.
    """
    tape = Tape(freeze)
    jax.clear_caches()  # what was compiled before does not report
    with contextlib.ExitStack() as stack:
        for owner, name, make in _PATCHES:
            right = getattr(owner, name)
            wrapped = make(tape, right)
            for holder, alias in _holders(owner, name, right):
                stack.enter_context(mock.patch.object(holder, alias, wrapped))
        yield tape
    jax.clear_caches()


def recorded(run: Callable[[], Any], freeze: bool = False) -> list[Release]:
    """All releases of ``run()``, in the order in which they arrive."""
    with recording(freeze) as tape:
        jax.block_until_ready(run())
        jax.effects_barrier()
    return tape.releases


class Recorded:
    """A solver compiled once, with all releases recorded, to be run on many data sets.

    Args:
        solve: ``solve(*arguments) -> result``, the key and all settings closed over.
        arguments: an example, for shapes and dtypes.
        freeze: as for ``recording``.
    """

    def __init__(self, solve: Callable[..., Any], *arguments: Any, freeze: bool = True) -> None:
        with recording(freeze) as tape:

            def traced(forced: Any, *arguments: Any) -> Any:
                tape.forced = forced
                return solve(*arguments)

            self._compiled = jax.jit(traced).lower(jnp.int32(-1), *arguments).compile()
            tape.forced = None
        self._tape = tape

    @property
    def draws(self) -> set[Draw]:
        """All samples of users that the program asks for."""
        return self._tape.draws

    def __call__(self, *arguments: Any, forced: int = -1) -> Run:
        """Runs on these data; the user at the place ``forced`` of its population is in every sample."""
        self._tape.releases, self._tape.charges = [], []
        result = jax.block_until_ready(self._compiled(jnp.int32(forced), *arguments))
        jax.effects_barrier()
        return Run(result, tuple(self._tape.releases), tuple(self._tape.charges))


def _holders(owner: Any, name: str, right: Any) -> list[tuple[Any, str]]:
    """Where the function is found: in its owner, and in all modules of the package that import it by name."""
    found = [(owner, name)]
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "dpsco_jax" and module is not owner:
            found += [(module, alias) for alias, value in vars(module).items() if value is right]
    return found


def _zeros(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)


def _additive(name: str) -> Callable[[Tape, Any], Any]:
    def make(tape: Tape, right: Any) -> Any:
        def mechanism(key: Any, tree: Any, size: Any) -> Any:
            if not tape._silent:
                tape.write(name, key, tree, size, tape.next_declared())
            return right(key, _zeros(tree) if tape.freeze else tree, size)

        return mechanism

    return make


def _privatize(tape: Tape, right: Any) -> Any:
    signature = inspect.signature(right)

    def privatize(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        chain = right(*args, **kwargs)
        aggregate, multiplier = (given.arguments[x] for x in ("aggregate", "noise_multiplier"))
        declared = Declared(aggregate.sensitivity, multiplier, given.arguments["sampling"])

        def update(*args: Any, **kwargs: Any) -> Any:
            with tape.declaring(declared):
                return chain.update(*args, **kwargs)

        return chain._replace(update=update)

    return privatize


def _winsorized_mean(tape: Tape, right: Any) -> Any:
    def mean(key: Any, vectors: Any, releases: Any) -> Any:
        # Laplace noise is on every coordinate by itself: for all of them the ℓ1 sensitivity counts.
        entries = releases.padded if releases.form == "laplace" else 1
        final = Declared(releases.sensitivity * entries, releases.noise_multiplier)
        coarse = Declared(releases.coarse_sensitivity, releases.coarse_multiplier)
        steps = (coarse, final) if releases.form in ("refined", "recentred") else (final,)
        with tape.declaring(*steps):
            return right(key, vectors, releases)

    return mean


def _outlier_removed_mean(tape: Tape, right: Any) -> Any:
    signature = inspect.signature(right)

    def transformation(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        chain = right(*args, **kwargs)
        releases, radius, reach = (given.arguments[x] for x in ("releases", "radius", "reach"))

        def update(updates: Any, *args: Any, **kwargs: Any) -> Any:
            one = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), updates
            )
            unit = radius * (1 + concentrated_mean.headroom(one, reach))
            # Bounded for those neighbours only whose scores are high: see ``ConcentratedReleases``.
            mean = Declared(
                releases.sensitivity * unit, releases.noise_stddev / releases.sensitivity
            )
            far = releases.score_sensitivity
            with tape.declaring(mean, Declared(far, 1 / releases.test_epsilon)):
                return chain.update(updates, *args, **kwargs)

        return chain._replace(update=update)

    return transformation


def _add_noise(tape: Tape, right: Any) -> Any:
    def add_noise(
        self: Any, key: Any, statistic: Any, stream: Any, multiplier: Any, far: Any
    ) -> Any:
        noise = multiplier * far * self.stretch()
        tape.write("correlated", key, statistic, noise, Declared(far, multiplier))
        with tape.silent():
            return right(self, key, statistic, stream, multiplier, far)

    return add_noise


def _sparse_vector(tape: Tape, right: Any) -> Any:
    def tests(
        threshold: Any, epsilon: Any, sensitivity: Any, max_answers: int, answer_is_above: bool
    ) -> Any:
        made = right(threshold, epsilon, sensitivity, max_answers, answer_is_above)

        def step(key: Any, state: Any, query: Any) -> Any:
            scale = 4 * sensitivity * max_answers / epsilon
            tape.write("test", key, query, scale, Declared(sensitivity, scale / sensitivity))
            passing = jnp.asarray(-1e30 if answer_is_above else 1e30, jnp.result_type(float))
            return made.step(key, state, passing if tape.freeze else query)

        return made._replace(step=step)

    return tests


def _private_range(tape: Tape, right: Any) -> Any:
    def interval(key: Any, values: Any, epsilon: Any, *args: Any, **kwargs: Any) -> Any:
        tape.write("interval", key, values, epsilon, Declared(1.0, epsilon))
        return right(key, _zeros(values) if tape.freeze else values, epsilon, *args, **kwargs)

    return interval


def _noisy_argmax(tape: Tape, right: Any) -> Any:
    def argmax(
        key: Any, scores: Any, epsilon: Any, sensitivity: Any, monotone: Any, draw: Any
    ) -> Any:
        scale = (1 if monotone else 2) * sensitivity / epsilon
        tape.write("argmax", key, scores, scale, Declared(sensitivity, scale / sensitivity))
        return right(
            key, _zeros(scores) if tape.freeze else scores, epsilon, sensitivity, monotone, draw
        )

    return argmax


def _charge(tape: Tape, right: Any) -> Any:
    def charge(ledger: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        tape.charged(loss)
        return right(ledger, loss, *args, **kwargs)

    return charge


def _with_user(sample: Any, name: str, population: int, user: Any) -> Any:
    """The sample with the user in it: in the place of another, or one more where its size is random."""
    indices, size = sample
    there = (indices == user) & (jnp.arange(len(indices)) < size)
    force = (user >= 0) & (user < population) & ~jnp.any(there)
    place = size if name == "poisson" else 0
    forced = jnp.where(force, indices.at[place].set(user.astype(indices.dtype)), indices)
    return sample._replace(
        indices=forced, size=size + force.astype(jnp.int32) if name == "poisson" else size
    )


def _sampler(tape: Tape, right: Any) -> Any:
    name, depth = right.__name__, [0]

    @functools.wraps(right)
    def sampler(key: Any, *arguments: Any) -> Any:
        if depth[0]:  # a sampler that calls itself
            return right(key, *arguments)
        numbers = tuple(float(np.asarray(x)) for x in arguments)
        tape.draws.add(Draw(name, numbers))
        depth[0] += 1
        try:
            sample = right(key, *arguments)
        finally:
            depth[0] -= 1
        return (
            sample if tape.forced is None else _with_user(sample, name, arguments[0], tape.forced)
        )

    return sampler


_PATCHES: tuple[tuple[Any, str, Callable[[Tape, Any], Any]], ...] = (
    (additive, "gaussian", _additive("gaussian")),
    (additive, "laplace", _additive("laplace")),
    (transforms, "privatize", _privatize),
    (winsorized_mean, "winsorized_mean", _winsorized_mean),
    (transforms, "outlier_removed_mean", _outlier_removed_mean),
    (correlated_noise.NoiseCorrelation, "add_noise", _add_noise),
    (sparse_vector, "_sparse_vector", _sparse_vector),
    (private_range, "private_range", _private_range),
    (selection, "_noisy_argmax", _noisy_argmax),
    (privacy, "charge", _charge),
    (sampling, "poisson", _sampler),
    (sampling, "without_replacement", _sampler),
    (sampling, "with_replacement", _sampler),
)
