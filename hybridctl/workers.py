"""Executors for work in many parts: this process, processes that may die, a Dask cluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from os import cpu_count
from typing import Any, NamedTuple, TypeVar

from hybridctl.checks import count
from hybridctl.errors import InputError

R = TypeVar("R")
T = TypeVar("T")
ATTEMPTS = 3
_LOG = logging.getLogger(__name__)


class Here(Executor):
    """An executor that makes each call at once, in this process."""

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """The finished call."""
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Processes(Executor):
    """Processes that do not share their fate: where one dies, its call alone is made again.

    A call that has lost three processes raises `BrokenProcessPool`.
    """

    def __init__(self, workers: int) -> None:
        self._lanes = ThreadPoolExecutor(count("workers", workers))
        self._own = threading.local()
        self._pools: set[ProcessPoolExecutor] = set()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """A call in one of the processes."""
        return self._lanes.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes."""
        self._lanes.shutdown(wait=wait, cancel_futures=cancel_futures)
        for pool in self._pools:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _call(self, fn: Callable[..., R], args: Any, kwargs: Any) -> R:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._pool().submit(fn, *args, **kwargs).result()
            except BrokenProcessPool:
                self._own.pool = None
                if attempt == ATTEMPTS:
                    raise
                _LOG.warning("a worker died; its call is made again, attempt %d", attempt + 1)
        raise AssertionError("unreachable")

    def _pool(self) -> ProcessPoolExecutor:
        """The one process of this lane."""
        pool = getattr(self._own, "pool", None)
        if pool is None:
            pool = self._own.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            self._pools.add(pool)
        return pool


class Crew(NamedTuple):
    """An executor, and how many calls it is given before the first of them ends."""

    pool: Executor
    ahead: int = 1

    @property
    def others(self) -> Executor | None:
        """The executor, or None where it is this process."""
        return None if isinstance(self.pool, Here) else self.pool

    def finished(self, fn: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, Future[R]]]:
        """The items with their calls, as they end; few are handed out ahead of what has ended."""
        waiting: dict[Future[R], T] = {}
        for item in items:
            waiting[self.pool.submit(fn, item)] = item
            if len(waiting) >= self.ahead:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future
        for future in as_completed(list(waiting)):
            yield waiting[future], future


@contextmanager
def crew(workers: int = 1, dask: str | None = None) -> Iterator[Crew]:
    """The crew: this process for one worker, as many processes for more, or a Dask cluster.

    workers: 0 for one on each processor. Raises `InputError` where Dask is asked for and not
    installed, or does not answer.
    """
    if dask is not None:
        with _cluster(dask) as client:
            yield Crew(client.get_executor(pure=False), 4 * max(sum(client.nthreads().values()), 1))
        return
    workers = count("workers", workers, at_least=0) or cpu_count() or 1
    if workers == 1:
        yield Crew(Here())
        return
    pool = Processes(workers)
    try:
        yield Crew(pool, 2 * workers)
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise InputError('--dask needs `pip install "hybridctl[cluster]"`') from error
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address!r}: {error}") from error
    with client:
        yield client
