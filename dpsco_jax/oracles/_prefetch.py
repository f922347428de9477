"""Work that is done ahead of its use by one thread, a bounded number of pieces."""

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


@contextlib.contextmanager
def prefetched(
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
