"""Executors for work in many parts: this process, processes that may die, a Dask cluster.

`crew` opens one of them by the options `workers` and `dask` of a command, and `Crew.finished` hands
out calls and yields them as they end.
"""

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

from hybridctl.base.checks import check_count
from hybridctl.base.errors import InputError

R = TypeVar("R")
T = TypeVar("T")
MAX_ATTEMPTS = 3
"""Times that a call is made before it fails because its processes die. A choice: a process may be
killed by chance, as when memory is short, but a call that kills each process must end."""
_SECONDS_BEFORE_RETRY = 0.2
"""Time that a lane gives `stop` to be called, before it makes the call of a dead worker again, s.
A choice."""
_CALLS_PER_PROCESS = 2
"""Calls that a process is given at a time: one that runs and one that waits. A choice."""
_CALLS_PER_CLUSTER_THREAD = 4
"""Calls that each thread of a cluster is given at a time: they travel by a network. A choice."""
_CLUSTER_TIMEOUT = "10s"
"""Time that a scheduler has to answer. A choice."""
_LOG = logging.getLogger(__name__)


def call_numbered(fn: Callable[[T], R], numbered: tuple[int, T]) -> R:
    """Return `fn(item)` for a pair (number, item).

    The number comes back from `Crew.finished` with the pair: it tells equal items apart.

    Args:
        fn: Function of one item.
        numbered: Number and item. The number is not used here.
    """
    return fn(numbered[1])


class InProcessExecutor(Executor):
    """Executor that makes each call at once, in this process and thread."""

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Return the finished future of a call, which is made at once.

        Args:
            fn: The function. An `Exception` that it raises is held by the future.
            *args: Its arguments.
            **kwargs: Its keyword arguments.
        """
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class WorkerProcesses(Executor):
    """Executor of processes that may die: only the call of a dead process is made again.

    A call that has lost `MAX_ATTEMPTS` processes raises `BrokenProcessPool`. The processes end with
    this one, however it ends, and ignore keyboard interrupts. Each process belongs to one thread of
    this process, its lane, and is a pool of one: a dead process breaks no other pool.

    Life cycle: `submit` starts processes as they are needed. `shutdown` waits for the calls that
    have begun; `stop` kills them. Neither is followed by another `submit`.

    Args:
        workers: Number of processes, at least 1.

    Raises:
        InputError: `workers` is no such number.
    """

    def __init__(self, workers: int) -> None:
        _start_quiet_tracker()
        self._lanes = ThreadPoolExecutor(
            check_count("workers", workers), initializer=_block_interrupts
        )
        self._own = threading.local()
        self._pools: set[ProcessPoolExecutor] = set()
        self._starting = threading.Lock()
        self._stopped = threading.Event()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Return the future of a call in one of the processes.

        Args:
            fn: Function that can be pickled, as can its arguments and its result.
            *args: Its arguments.
            **kwargs: Its keyword arguments.
        """
        return self._lanes.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after their calls.

        Args:
            wait: Whether to return only when the processes have ended.
            cancel_futures: Whether calls that have not begun are cancelled.
        """
        self._lanes.shutdown(wait=wait, cancel_futures=cancel_futures)
        for pool in self._pools:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def stop(self) -> None:
        """Kill the processes and cancel the calls that have not begun.

        The futures of calls that have begun raise `BrokenProcessPool`.
        """
        self._stopped.set()
        with self._starting:  # no lane starts a process meanwhile, so all of them are listed
            for pool in self._pools:
                for process in list((pool._processes or {}).values()):
                    process.kill()
        self.shutdown(cancel_futures=True)

    def _call(self, fn: Callable[..., R], args: Any, kwargs: Any) -> R:
        """Return the result of a call in the process of this lane, made again if that dies.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            BrokenProcessPool: The process has died `MAX_ATTEMPTS` times, or was stopped.
            Exception: The function raises it.
        """
        attempt = 1
        while True:
            try:
                return self._begin_call(fn, args, kwargs).result()
            except BrokenProcessPool:
                self._own.pool = None
                # A signal to all processes of a terminal or a job ends workers before it makes this
                # process call `stop`: their calls must not be made again meanwhile.
                if attempt == MAX_ATTEMPTS or self._stopped.wait(_SECONDS_BEFORE_RETRY):
                    raise
                attempt += 1
                _LOG.warning("a worker died; its call is made again, attempt %d", attempt)

    def _begin_call(self, fn: Callable[..., R], args: Any, kwargs: Any) -> Future[R]:
        """Return the future of a call that the process of this lane begins; start one if needed.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            BrokenProcessPool: `stop` has been called.
        """
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
    """Start multiprocessing's process that removes left-over semaphores, without its warnings.

    Workers that `stop` kills leave semaphores. The process removes them, and would print a warning
    for them. Its interpreter gets the warning options that are set while it is started.
    """
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


def _block_interrupts() -> None:
    """Block SIGINT in this thread, and in processes that it starts, from their first moment on.

    A terminal sends SIGINT to all processes of a command, and workers would print tracebacks. A
    new process inherits the blocked signals of the thread that starts it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """Arrange that this worker ends at once when its parent does, also if the parent is killed.

    A thread waits for the end of the parent: a pipe whose other end the parent holds is closed
    then. The thread cannot run while compiled code holds Python's lock. On Linux, therefore, the
    kernel is asked to send SIGIO when the pipe closes: it ends a process that does not handle it.
    """
    parent = parent_process()
    if parent is None:
        return

    def exit_after_parent() -> None:
        wait_for_any([parent.sentinel])
        os._exit(1)

    if sys.platform == "linux":
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(target=exit_after_parent, daemon=True).start()


class Crew(NamedTuple):
    """An executor, and how many calls it is given at a time.

    Attributes:
        pool: The executor.
        ahead: Most calls that are submitted and not yet yielded. More than there are processes, so
            that none waits for the next call; few, so that a long list of items is not pickled at
            once.
    """

    pool: Executor
    ahead: int = 1

    @property
    def parallel_executor(self) -> Executor | None:
        """The executor, or None if calls are made in this process, which needs none."""
        return None if isinstance(self.pool, InProcessExecutor) else self.pool

    def finished(self, fn: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, Future[R]]]:
        """Yield the items with their finished calls, in the order in which the calls end.

        Args:
            fn: Function of one item.
            items: The items. The next one is taken when fewer than `ahead` calls are open.

        Yields:
            Pairs (item, future). The future holds the result or the exception of the call.
        """
        waiting: dict[Future[R], T] = {}
        try:
            for item in items:
                waiting[self.pool.submit(fn, item)] = item
                if len(waiting) >= self.ahead:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        yield waiting.pop(future), future
            for future in as_completed(list(waiting)):
                yield waiting[future], future
        finally:  # if the caller stops in between, calls that have not begun are not made
            for future in waiting:
                future.cancel()


@contextmanager
def crew(workers: int = 1, dask: str | None = None) -> Iterator[Crew]:
    """Open an executor for a `with` block: this process, several processes, or a Dask cluster.

    Args:
        workers: Number of processes; 1 for this process alone, 0 for one on each processor.
        dask: Address of a Dask scheduler, which takes the place of processes; None for none.

    Yields:
        The crew. When the block ends, processes finish the calls that they have begun, and the
        other calls are cancelled. If the block fails, the processes are killed instead.

    Raises:
        InputError: `workers` is negative or no whole number, Dask is not installed, or no scheduler
            answers at the address.
    """
    if dask is not None:
        with _connect_to_cluster(dask) as client:
            threads = max(sum(client.nthreads().values()), 1)
            yield Crew(client.get_executor(pure=False), _CALLS_PER_CLUSTER_THREAD * threads)
        return
    workers = check_count("workers", workers, at_least=0) or cpu_count() or 1
    if workers == 1:
        yield Crew(InProcessExecutor())
        return
    pool = WorkerProcesses(workers)
    try:
        yield Crew(pool, _CALLS_PER_PROCESS * workers)
    except BaseException:  # nobody takes results any more, so no call is waited for
        pool.stop()
        raise
    pool.shutdown(cancel_futures=True)


@contextmanager
def _connect_to_cluster(address: str) -> Iterator[Any]:
    """Yield a `distributed.Client` of the scheduler at an address.

    Raises:
        InputError: Dask is not installed, or no scheduler answers there.
    """
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise InputError('--dask needs `pip install "hybridctl[cluster]"`') from error
    try:
        client = distributed.Client(address, timeout=_CLUSTER_TIMEOUT)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address!r}: {error}") from error
    with client:
        yield client
