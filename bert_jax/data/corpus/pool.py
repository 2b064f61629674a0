"""Processes that do the work of a command, by units of its sources: what goes between them and the
command is names and numbers, never text.

The pool is not a `ProcessPoolExecutor`. The workers of an executor share one pipe for results: if
one is killed in the middle of a result, the executor reads forever. From Python 3.12 on, an
executor ends the other workers with SIGTERM, which these workers ignore, and joins them without a
limit (`_join_executor_internals(broken=True)`). Here each worker has a pipe, and a thread that
waits at the other end.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Self

from bert_jax import worker
from bert_jax.errors import BertJaxError

# Results that wait for an earlier one, for each process: they are tens of bytes a document.
_AHEAD = 4
_SECONDS_BETWEEN_LOOKS = 0.1
# In a worker process: what the command shares with all of its tasks, and what they have counted.
_shared: Any = None
_counts: Any = None
_look: Callable[[], None] | None = None  # where this process does all the work

Task = tuple[Callable[..., Any], tuple[Any, ...]]


class _WorkerKilled(Exception):
    """A worker process ended in the middle of a task."""


class Pool:
    """Worker processes, started when a task needs one. With one worker this process does the work.

    A task is a function of a module, called with `shared` and its arguments; `is_here` says of
    arguments that only this process can have them. What it counts with `count` is in `counts` at
    once. Leaving the pool kills the processes, whatever they do.
    """

    def __init__(self, workers: int, shared: Any = None) -> None:
        self.workers, self.shared = workers, shared
        # A forked copy of a process that runs threads (tokenizers, jax) can deadlock.
        self._context = multiprocessing.get_context("spawn")
        self._threads: ThreadPoolExecutor | None = None
        self._of_thread = threading.local()
        self._lock, self._is_over = threading.Lock(), False
        self._was_killed = threading.Event()
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._own = [0, 0, 0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is None:
            return
        with self._lock:
            self._is_over = True
            for process in self._processes:
                process.kill()
        # Each thread finds the end of its pipe.
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.join()
            process.close()

    @property
    def counts(self) -> list[int]:
        """Returns what all tasks have counted since `map` was called."""
        return self._own if self._threads is None else [*self._counter.get_obj()]

    def map(
        self,
        function: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        *,
        is_here: Callable[[tuple[Any, ...]], bool] = lambda _: False,
        more: Callable[[], Iterable[Task]] = tuple,
        look: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """Yields the results in the order of the arguments, which are taken when they are needed.

        Processes with nothing else to do take tasks of `more`, whose results are nobody's. `look`
        is called now and then. Raises what a task raises, and BertJaxError where a process was
        killed.
        """
        global _counts, _look
        if self.workers == 1:
            self._own[:] = [0, 0, 0]
            _counts, _look = self._own, look
            for each in arguments:
                yield function(self.shared, *each)
            return
        try:
            yield from self._map(function, iter(arguments), is_here, more, look)
        except _WorkerKilled as error:
            raise BertJaxError(
                "a worker process was killed, perhaps for lack of memory; run the same command "
                f"again to resume, with fewer than `workers` {self.workers} if memory is the reason"
            ) from error

    def _map(
        self,
        function: Callable[..., Any],
        arguments: Iterator[tuple[Any, ...]],
        is_here: Callable[[tuple[Any, ...]], bool],
        more: Callable[[], Iterable[Task]],
        look: Callable[[], None],
    ) -> Iterator[Any]:
        global _counts, _look
        threads = self._started()
        _counts, _look = self._counter, None
        self._counter[:] = [0, 0, 0]  # pyright: ignore
        waiting: deque[concurrent.futures.Future[Any]] = deque()
        others: set[concurrent.futures.Future[Any]] = set()
        are_over = False
        while True:
            # Not only where its result is next: the tasks before may take hours, or wait for a lock
            # that the killed process held.
            if self._was_killed.is_set():
                raise _WorkerKilled
            while not are_over and len(waiting) < _AHEAD * self.workers:
                each = next(arguments, None)
                if each is None:
                    are_over = True
                elif is_here(each):
                    waiting.append(_in_thread(function, self.shared, *each))
                else:
                    waiting.append(threads.submit(self._call, function, each))
            others |= {threads.submit(self._call, *task) for task in more()}
            if waiting and waiting[0].done():
                yield waiting.popleft().result()
                continue
            running = {future for future in [*waiting, *others] if not future.done()}
            done = {future for future in others if future.done()}
            for future in done:
                future.result()
            others -= done
            if not waiting and not others and are_over:
                return
            concurrent.futures.wait(
                running, _SECONDS_BETWEEN_LOOKS, concurrent.futures.FIRST_COMPLETED
            )
            look()

    def _started(self) -> ThreadPoolExecutor:
        if self._threads is None:
            worker.prepare_for_workers()
            self._counter = self._context.Array("q", 3)
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="pool")
        return self._threads

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Returns what a task returns in the process of this thread, or raises what it raises."""
        connection: Connection | None = getattr(self._of_thread, "connection", None)
        try:
            if connection is None:
                connection = self._of_thread.connection = self._start_process()
                # Not an argument of the process: `Process.start` of a process that is killed while
                # it reads more than the buffer of a pipe (64 KiB) never returns.
                connection.send(self.shared)
            connection.send((function, arguments))
            is_error, result = connection.recv()
        except (EOFError, OSError) as error:
            self._was_killed.set()
            raise _WorkerKilled from error
        if is_error:
            raise result
        return result

    def _start_process(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._counter))
        with self._lock:
            if self._is_over:
                raise _WorkerKilled
            process.start()
            self._processes.append(process)
        theirs.close()
        return ours


def count(*amounts: int) -> None:
    """Adds to what the tasks of `Pool.map` count: up to three numbers."""
    if _counts is None:
        return
    if isinstance(_counts, list):
        for at, amount in enumerate(amounts):
            _counts[at] += amount
        if _look is not None:
            _look()
        return
    with _counts.get_lock():
        for at, amount in enumerate(amounts):
            _counts[at] += amount


def _in_thread(function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
    future = concurrent.futures.Future[Any]()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _work(pipe: Connection, counts: Any) -> None:
    """Does the tasks that come through the pipe, until the command closes it or ends."""
    global _shared, _counts
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    worker.begin()
    _counts = counts
    with contextlib.suppress(EOFError, ConnectionError):
        _shared = pipe.recv()
        while True:
            pipe.send(_answer(*pipe.recv()))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Returns whether a task raised an error, and the error or the result."""
    try:
        return False, function(_shared, *arguments)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        return True, error
