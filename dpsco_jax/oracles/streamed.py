"""Sums over users who are on disk: read in blocks, each added to one sum in two parts.

What it computes: the estimate of an oracle that is a sum over users (``gradients``, ``ghost`` and ``linear``
have one: ``clipped_gradient_sum``), for ``problems.stored.StoredUsers``. A sample is drawn as in memory, from
the same key; its users are read in the order of the sample, a block at a time, and added up by one compiled
program in the same chunks.

Source: microbatching, with blocks of whole chunks.

Formal guarantee: every user of the sample is counted once, and no other. Chunks hold the same users in the
same places as in memory and are added to the same sum in the same order, so that the sum is that of
``chunks.split_sum_over_users`` (docs/theory/sums.md, section 7), and ``_compensated.room`` is that of all
users. An oracle that takes all users as one chunk, as linear models with one item a user do, takes a block as
a chunk here: the section has why the room is enough. Rows that fill up a block are masked.

Cost: one read of every user of the sample, while the blocks before are added up; memory of the blocks and one
integer for each user who may be drawn. Blocks lie on one device.

Example:
    >>> import jax, numpy as np
    >>> from dpsco_jax.oracles import gradients, streamed
    >>> from dpsco_jax.problems.stored import StoredUsers
    >>> mean_of_items = lambda key, params, items, mask: items.mean(axis=0)
    >>> oracle = gradients.clipped_gradient_sum(mean_of_items, clip_norm=10.0)
    >>> sums = streamed.Sums(oracle, StoredUsers(np.ones((100, 2, 3), np.float32)))
    >>> float(sums.estimate(jax.random.key(0), ()).gradient[0].round(2))
    100.0
"""

import collections
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _compensated
from dpsco_jax._redact import Words
from dpsco_jax.oracles import Estimate, chunks
from dpsco_jax.oracles._summed import Parts, SumOracle, summed
from dpsco_jax.oracles.sampling import UserSample
from dpsco_jax.problems.stored import StoredUsers

__all__ = ["Sums"]

# Of which blocks hold a multiple, where an oracle leaves it to them what a chunk is: whole groups, of the
# largest size that an oracle adds up without order (``ghost``), a power of two as all others are.
_GROUPS = 256


class Block(NamedTuple):
    """What is asked of the disk, and what is added of it.

    Attributes:
        users: numbers of the rows, ``[block]``; of rows that are not counted they may be any user's.
        counted: bool ``[block]``.
        position: int32 ``[block]``, places in the sample.
        trips: how many chunks of the block there are.
        is_last: of its estimate.
    """

    users: np.ndarray
    counted: np.ndarray
    position: np.ndarray
    trips: int
    is_last: bool


class Sums:
    """The estimates of one oracle, of which all programs are compiled once."""

    def __init__(self, oracle: SumOracle, data: StoredUsers) -> None:
        """Compiles nothing yet.

        Args:
            oracle: a ``clipped_gradient_sum`` of ``gradients``, ``ghost`` or, with data that are ``mapped``
                to its form, ``linear``.
            data: on disk.

        Raises:
            ValueError: ``oracle`` is no sum over users, ``data`` no ``StoredUsers``, or there are several
                processes of ``jax.distributed``.
        """
        _checks.require_instance("oracle", oracle, SumOracle)
        _checks.require_instance("data", data, StoredUsers)
        # Each would sum the users of its own files, and cover them with the same noise as all others.
        alone, wanted = jax.process_count() == 1, "UserData where there are several processes"
        _checks.require(alone, "data", Words("StoredUsers"), wanted)
        self.oracle, self.data = oracle, data
        self._by_groups = False
        # Keys go as their words: every block of a step is of the same key, at places of its own.
        self._draw = jax.jit(self._drawn, static_argnames="impl")
        self._add = jax.jit(self._added, static_argnames=("impl", "at_once"))

    def estimate(self, key: jax.Array, params: Any) -> Estimate:
        """What ``oracle(key, params, data)`` returns in memory; who is drawn, and how many, is secret.

        Args:
            key: a typed key.
            params: the point.

        Raises:
            ValueError: ``key`` or ``params`` are traced, or a file has changed.
        """
        _checks.require_key(key)
        # Inside of a compiled function words are traced, even of a key from outside.
        for name, given in (("key", jax.random.key_data(key)), ("params", params)):
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given))
            wanted = "concrete: files are read by the host"
            _checks.require(not traced, name, "a traced one", wanted)
        with self.totals([key], params) as total:
            return self.finish(key, params, total(key, params))

    @contextlib.contextmanager
    def totals(
        self, keys: Iterable[jax.Array], params: Any
    ) -> Iterator[Callable[[jax.Array, Any], Any]]:
        """``total(key, params)``, to be asked for each of the keys, once and in their order.

        Blocks of later keys are read while those of earlier ones are added up. A total with another key is a
        ``ValueError``; after one that was left unfinished, by an interrupt or an error, there are no more.

        Args:
            keys: typed keys.
            params: a point, for its shapes.
        """
        at_once = self.at_once(params)
        nothing: list[Any] = []
        announced: collections.deque[jax.Array] = collections.deque()
        is_whole = True

        def requests() -> Iterator[Block]:
            for key in keys:
                announced.append(key)
                yield from self.blocks(key, at_once)

        def read(block: Block) -> Any:
            return self.data.read(block.users)

        with _prefetched(read, requests(), self.data.prefetch) as blocks:

            def total(key: jax.Array, params: Any) -> Any:
                nonlocal is_whole
                if not is_whole:
                    raise RuntimeError("a total was left unfinished, whose blocks are gone")
                is_whole = False
                if not nothing:
                    nothing.append(self._nothing(params, at_once))
                so_far, words = nothing[0], jax.random.key_data(key)
                settings = {"impl": jax.random.key_impl(key), "at_once": at_once}
                for block, rows in blocks:
                    if so_far is nothing[0]:
                        next_one = _are_same(announced.popleft(), key)
                        _checks.require(next_one, "key", "another", "the next of those announced")
                    what = (block.counted, block.position, np.int32(block.trips))
                    so_far = self._add(so_far, words, params, rows, what, **settings)
                    # What is dispatched and not done would hold on to the rows of all blocks.
                    jax.block_until_ready(so_far)
                    del rows
                    if block.is_last:
                        self.data.require_same()
                        is_whole = True
                        return so_far
                raise RuntimeError("a total was asked for of more keys than were announced")

            yield total

    def finish(self, key: jax.Array, params: Any, total: Any) -> Estimate:
        """The estimate from its total; may be traced."""
        sum_in_parts, count = total
        whole = self._parts(key, params).finish(sum_in_parts)
        return summed(whole, count, self.oracle.clip_norm, self.sample_shape)

    def _drawn(self, words: jax.Array, impl: Any) -> UserSample:
        sampler = self.oracle.sampler
        assert sampler is not None
        key = jax.random.wrap_key_data(words, impl=impl)
        return sampler(self.oracle.keys(key)[0])

    @functools.cached_property
    def sample_shape(self) -> UserSample | None:
        """A sample without numbers: its capacity, and its size if that is fixed; ``None`` for everybody."""
        if self.oracle.sampler is None:
            return None
        fixed: list[Any] = []

        def indices(key: jax.Array) -> jax.Array:
            sample = self._drawn(jax.random.key_data(key), jax.random.key_impl(key))
            fixed.append(sample.size if isinstance(sample.size, int) else None)
            traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(sample.draw))
            fixed.append(None if traced else sample.draw)
            return sample.indices

        shape = jax.eval_shape(indices, jax.random.key(0))
        return UserSample(shape, *fixed)

    def _parts(self, key: jax.Array, params: Any) -> Parts:
        other_key = self.oracle.keys(key)[1]
        return self.oracle.parts(other_key, params, self.data.shapes, self.sample_shape)

    def at_once(self, params: Any) -> int:
        """Users in a chunk."""
        found: list[int] = []

        def look(key: jax.Array, params: Any) -> None:
            found.append(self._parts(key, params).at_once)

        jax.eval_shape(look, jax.random.key(0), params)
        users, sample = self.data.num_users, self.sample_shape
        block = -(-self.data.block_users // _GROUPS) * _GROUPS
        # Everybody is one chunk: a block of whole groups is, here.
        self._by_groups = sample is None and found[0] >= users and block < users
        if self._by_groups:
            return block
        fixed: Any = None if sample is None else sample.size
        # As in memory: a batch of fixed size that is no longer than a chunk is one.
        if fixed is not None and fixed <= found[0]:
            return int(fixed)
        return min(found[0], users if sample is None else len(sample.indices))

    def blocks(self, key: jax.Array, at_once: int) -> Iterator[Block]:
        """The blocks of one estimate, at least one."""
        users = self.data.num_users
        if self.oracle.sampler is None:
            chosen, count, most = None, users, users
        else:
            sample = self._draw(jax.random.key_data(key), impl=jax.random.key_impl(key))
            count, most = int(sample.size), len(sample.indices)
            chosen = np.asarray(sample.indices)[:count]
        together = min(max(self.data.block_users // at_once, 1), -(-most // at_once))
        chunk = np.arange(at_once, dtype=np.int64)
        trips = -(-count // at_once)
        for first in range(0, max(trips, 1), together):
            starts = (first + np.arange(together, dtype=np.int64)) * at_once
            place = starts[:, None] + chunk
            if chosen is None and not self._by_groups:
                # The last chunk starts early enough to be whole, as in memory: who was counted is masked.
                place = np.minimum(starts, users - at_once)[:, None] + chunk
            counted = (place >= starts[:, None]) & (place < count)
            # Whoever fills up a block is one of those in it, and masked: a read more of nobody else.
            within = np.minimum(place, max(count - 1, 0)).ravel()
            numbers = within if chosen is None else (chosen[within] if count else 0 * within)
            yield Block(
                numbers.astype(np.int64),
                counted.ravel(),
                place.ravel().astype(np.int32),
                min(together, trips - first),
                first + together >= trips,
            )

    def _added(
        self,
        total: Any,
        words: jax.Array,
        params: Any,
        rows: Any,
        block: Any,
        impl: Any,
        at_once: int,
    ) -> Any:
        parts = self._parts(jax.random.wrap_key_data(words, impl=impl), params)
        counted, position, trips = block
        ready = self.data.form(rows)
        return chunks.add_chunks(total, parts.chunk_sum, ready, counted, position, at_once, trips)

    def _nothing(self, params: Any, at_once: int) -> Any:
        """The empty total."""

        def one_chunk(key: jax.Array, params: Any, rows: Any) -> Any:
            who = jnp.ones(at_once, bool), jnp.arange(at_once, dtype=jnp.int32)
            return self._parts(key, params).chunk_sum(rows, *who)

        rows = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((at_once, *x.shape[1:]), x.dtype), self.data.shapes
        )
        return _compensated.zeros(jax.eval_shape(one_chunk, jax.random.key(0), params, rows))


def _are_same(key: jax.Array, other: jax.Array) -> bool:
    first, second = (np.asarray(jax.random.key_data(x)) for x in (key, other))
    return jax.random.key_impl(key) == jax.random.key_impl(other) and np.array_equal(first, second)


@contextlib.contextmanager
def _prefetched(
    work: Callable[[Any], Any], requests: Iterable[Any], ahead: int
) -> Iterator[Iterator[tuple[Any, Any]]]:
    """Pairs of a request and ``work(request)``, in order.

    An error in the thread is raised where its pair is asked for. At the end, whatever it is, what has not
    begun is dropped and what has begun is waited for.

    Args:
        work: done in the thread.
        requests: asked for in the thread that uses the pairs, ``ahead`` before they are needed.
        ahead: how many are worked on, or wait, while one is used.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="dpsco-jax-reader")
    try:
        yield _in_order(pool, work, iter(requests), ahead)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[Any], Any], requests: Iterator[Any], ahead: int
) -> Iterator[tuple[Any, Any]]:
    waiting: collections.deque[tuple[Any, Future[Any]]] = collections.deque()

    def begin(count: int) -> None:
        for request in itertools.islice(requests, count):
            waiting.append((request, pool.submit(work, request)))

    begin(ahead)
    while waiting:
        request, future = waiting.popleft()
        found = future.result()
        del future
        begin(1)
        yield request, found
        del request, found
