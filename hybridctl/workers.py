"""Executors for work in many parts: this process, processes that may die, a Dask cluster."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
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
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import wait as wait_for_any
from os import cpu_count
from typing import Any, NamedTuple, TypeVar

from hybridctl.checks import count
from hybridctl.errors import InputError

R = TypeVar("R")
T = TypeVar("T")
ATTEMPTS = 3
_SECONDS_TO_STOP = 0.2
"""How long after a worker's death it may turn out that all are being stopped, s. A choice."""
_LOG = logging.getLogger(__name__)


def call_numbered(fn: Callable[[T], R], numbered: tuple[int, T]) -> R:
    """Call a function on an item that has a number, for items that cannot be told apart."""
    return fn(numbered[1])


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

    A call that has lost three processes raises `BrokenProcessPool`. The processes end with this
    one, however it ends, and leave keyboard interrupts to it. Each has a thread here, its lane.

    Life cycle: `submit` starts processes as they are needed. `shutdown` waits for the calls that
    are under way; `stop` does not.

    Args:
        workers: Number of processes.
    """

    def __init__(self, workers: int) -> None:
        _start_quiet_tracker()
        self._lanes = ThreadPoolExecutor(count("workers", workers), initializer=_block_interrupts)
        self._own = threading.local()
        self._pools: set[ProcessPoolExecutor] = set()
        self._starting = threading.Lock()
        self._stopped = threading.Event()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Return the future of a call in one of the processes."""
        return self._lanes.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after the calls that are under way."""
        self._lanes.shutdown(wait=wait, cancel_futures=cancel_futures)
        for pool in self._pools:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def stop(self) -> None:
        """End the processes at once, in the middle of their calls, whose futures fail."""
        self._stopped.set()
        with self._starting:  # a process that a lane is starting is among those of its pool then
            for pool in self._pools:
                for process in list((pool._processes or {}).values()):
                    process.kill()
        self.shutdown(cancel_futures=True)

    def _call(self, fn: Callable[..., R], args: Any, kwargs: Any) -> R:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._begin_call(fn, args, kwargs).result()
            except BrokenProcessPool:
                self._own.pool = None
                # A signal to all processes of a terminal or a job ends workers before `stop`.
                if attempt == ATTEMPTS or self._stopped.wait(_SECONDS_TO_STOP):
                    raise
                _LOG.warning("a worker died; its call is made again, attempt %d", attempt + 1)
        raise AssertionError("unreachable")

    def _begin_call(self, fn: Callable[..., R], args: Any, kwargs: Any) -> Future[R]:
        """Give a call to the one process of this lane, which is started if there is none."""
        with self._starting:
            if self._stopped.is_set():
                raise BrokenProcessPool("the processes have been stopped")
            pool = getattr(self._own, "pool", None)
            if pool is None:
                pool = self._own.pool = ProcessPoolExecutor(
                    1, mp_context=get_context("spawn"), initializer=_end_with_parent
                )
                self._pools.add(pool)
            return pool.submit(fn, *args, **kwargs)


def _start_quiet_tracker() -> None:
    """Start the process that removes semaphores, so that it does so silently.

    It warns of those that a killed process leaves, which removing them is the answer to.
    """
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


def _block_interrupts() -> None:
    """Block SIGINT in this thread, and in processes that it starts, from their first moment on.

    A terminal sends it to all processes: workers would print tracebacks.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """Arrange that this worker ends at once when its parent does, also if that was killed.

    A thread waits for the end of the parent. On Linux the kernel does so, too, as the thread cannot
    run while compiled code holds Python's lock: the pipe whose other end closes with the parent
    then sends SIGIO, which ends a process.
    """
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        wait_for_any([parent.sentinel])
        os._exit(1)

    if sys.platform == "linux":
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(target=follow, daemon=True).start()


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
        try:
            for item in items:
                waiting[self.pool.submit(fn, item)] = item
                if len(waiting) >= self.ahead:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        yield waiting.pop(future), future
            for future in as_completed(list(waiting)):
                yield waiting[future], future
        finally:  # if who asked has stopped, nobody wants the rest
            for future in waiting:
                future.cancel()


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
    except BaseException:
        pool.stop()
        raise
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
