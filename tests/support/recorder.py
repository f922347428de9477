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
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax._src.debugging import debug_callback_p  # has no public name

from dpsco_jax import privacy
from tests.support.apart import traced_apart
from tests.support.recorder_patches import PATCHES
from tests.support.taint import marked
from tests.support.tape import Declared, Draw, Release, Tape

__all__ = ["Declared", "Draw", "Recorded", "Release", "Run", "Tape", "recorded", "recording"]


class Run(NamedTuple):
    """One run: its result, its releases in the order of arrival, what was charged, and the tape's keys."""

    result: Any
    releases: tuple[Release, ...]
    charges: tuple[privacy.PrivacyLoss, ...]
    samples: tuple[bytes, ...]
    used: tuple[bytes, ...]
    parents: tuple[bytes, ...]

    def by_key(self) -> dict[bytes, Release]:
        """The releases by their keys.

        Raises:
            AssertionError: a key was used for two releases, for two samples, for one of each, or gave random
                bits and something else: then noise and samples are not independent, as every charge assumes.
        """
        found = {release.key: release for release in self.releases}
        assert len(found) == len(self.releases), "a key was used for two releases"
        assert len(set(self.samples)) == len(self.samples), "a key was used for two samples"
        assert not found.keys() & set(self.samples), "a key was used for a release and for a sample"
        assert len(set(self.used)) == len(self.used), "a key gave random bits twice"
        assert not set(self.used) & set(self.parents), "a key gave random bits and other keys"
        return found


@contextlib.contextmanager
def recording(freeze: bool = False) -> Iterator[Tape]:
    """While active, mechanisms, samplers and ledgers report to the tape.

    Args:
        freeze: leave the data's part out of everything that is released.
    """
    tape = Tape(freeze)
    with contextlib.ExitStack() as stack:
        stack.enter_context(traced_apart())  # what was compiled before does not report
        imported = _imported([getattr(owner, name) for owner, name, _ in PATCHES])
        for owner, name, make in PATCHES:
            right = getattr(owner, name)
            wrapped = make(tape, right)
            stack.enter_context(mock.patch.object(owner, name, wrapped))
            for holder, alias in imported[id(right)]:
                if holder is not owner:
                    stack.enter_context(mock.patch.object(holder, alias, wrapped))
        yield tape


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

            self._traced = jax.jit(traced).trace(jnp.int32(-1), *arguments)
            self._compiled = self._traced.lower().compile()
            tape.forced = None
        self._sizes = [1, *(len(jax.tree.leaves(argument)) for argument in arguments)]
        self._tape = tape

    @property
    def draws(self) -> set[Draw]:
        """All samples of users that the program asks for."""
        return self._tape.draws

    def dependent(self, place: int) -> list[str]:
        """The paths of the results that are computed from the argument at this place, whatever is run."""
        marks = [i == place + 1 for i, size in enumerate(self._sizes) for _ in range(size)]
        return marked(self._traced.jaxpr, self._traced.out_info, marks)

    def __call__(self, *arguments: Any, forced: int = -1) -> Run:
        """Runs on these data; the user at the place ``forced`` of its population is in every sample."""
        self._tape.releases, self._tape.charges = [], []
        self._tape.keys = {kind: [] for kind in self._tape.keys}
        with mock.patch.object(debug_callback_p, "impl", _at_once):
            result = jax.block_until_ready(self._compiled(jnp.int32(forced), *arguments))
            jax.effects_barrier()
        tape = self._tape
        keys = {kind: tuple(found) for kind, found in tape.keys.items()}
        return Run(result, tuple(tape.releases), tuple(tape.charges), **keys)


def _at_once(*arrays: Any, callback: Callable[..., Any], **_: Any) -> tuple[()]:
    """Calls back with the arrays as they are: a copy on a device of each key takes a fifth of a run's time.

    They are lent: what is kept of them is copied.
    """
    callback(*arrays)
    return ()


def _imported(functions: list[Any]) -> dict[int, list[tuple[Any, str]]]:
    """Of each function by its ``id`` the modules of the package that have it, under which names."""
    found: dict[int, list[tuple[Any, str]]] = {id(function): [] for function in functions}
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "dpsco_jax":
            for alias, value in vars(module).items():
                if id(value) in found:
                    found[id(value)].append((module, alias))
    return found
