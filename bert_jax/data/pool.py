"""Runs the tasks of a command in worker processes.

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
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, Self

from bert_jax import worker
from bert_jax.errors import BertJaxError

# Results per process that may wait for an earlier one: tens of bytes per document.
_AHEAD = 4
# Tasks per process, running or waiting, up to which an offered task is accepted.
_OFFERED = 2
_SECONDS_BETWEEN_LOOKS = 0.1

# The pool of the task that this process runs, or the pipe to the pool.
_pool: "Pool | _Pipe | None" = None


def count(*amounts: int) -> None:
    """Adds up to three numbers to the counts of the running `Pool.map`."""
    if _pool is not None:
        _pool.count(amounts)


def offer(function: Callable[..., Any], *arguments: Any) -> bool:
    """Lets another process run a task if a process is idle; returns whether the task was taken."""
    return _pool is not None and _pool.offer(function, arguments)


class Pool:
    """Worker processes, started when a task needs one. With one worker this process runs the tasks.

    A task is a module-level function, called with `shared` and its arguments. `counts` includes the
    amounts of `count` immediately. Leaving the pool kills the processes, even in a task.
    """

    def __init__(self, workers: int, shared: Any = None) -> None:
        self.workers, self.shared = workers, shared
        self.counts = [0, 0, 0]  # by the tasks since `map` was called
        # A forked copy of a process that runs threads (tokenizers, jax) can deadlock.
        self._context = multiprocessing.get_context("spawn")
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="pool")
        self._of_thread = threading.local()
        self._lock, self._is_over = threading.Lock(), False
        self._processes: list[multiprocessing.process.BaseProcess] = []
        # The tasks of `map` in their order; an offered task is added at the end.
        self._waiting: deque[Future[Any]] = deque()
        self._unfinished = 0  # tasks of processes
        self._failed: BaseException | None = None
        self._watch: Callable[[], None] = lambda: None
        if workers > 1:
            worker.prepare_for_workers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            for process in self._processes:
                process.kill()
        # Each thread notices that its pipe is closed.
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.join()
            process.close()

    def map(
        self,
        function: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        *,
        is_here: bool = False,
        watch: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """Yields the results in the order of the arguments, which are consumed lazily, and between
        them the results of offered tasks.

        With `is_here` the tasks run in this process. `watch` is called from time to time. Raises
        the first error of a task, and BertJaxError if a process was killed.
        """
        self.counts[:], self._watch = [0, 0, 0], watch
        left = iter(arguments)
        run = self._run_here if is_here or self.workers == 1 else self._submit
        while True:
            for each in islice(left, max(0, _AHEAD * self.workers - len(self._waiting))):
                self._waiting.append(run(function, each))
            self._raise_failure()
            if not self._waiting:
                return
            if self._waiting[0].done():
                yield self._waiting.popleft().result()
            else:
                concurrent.futures.wait([self._waiting[0]], _SECONDS_BETWEEN_LOOKS)
                watch()

    def _raise_failure(self) -> None:
        """Raises the first error of a task. Called also before the next result is ready, because
        earlier tasks, or a task in this process, may take hours.
        """
        if self._failed is not None:
            raise self._failed

    # --- requests of a task in this process -------------------------------------------------------

    def count(self, amounts: tuple[int, ...]) -> None:
        self._raise_failure()
        self._add(amounts)
        self._watch()

    def offer(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
        self._raise_failure()
        if is_wanted := self._has_idle():
            self._waiting.append(self._submit(function, arguments))
        return is_wanted

    # --- running tasks ----------------------------------------------------------------------------

    def _run_here(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        global _pool
        _pool, future = self, Future[Any]()
        try:
            future.set_result(function(self.shared, *arguments))
        finally:
            _pool = None
        return future

    def _submit(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        with self._lock:
            self._unfinished += 1
        return self._threads.submit(self._call, function, arguments)

    def _has_idle(self) -> bool:
        return self.workers > 1 and self._unfinished < _OFFERED * self.workers

    def _add(self, amounts: tuple[int, ...]) -> None:
        with self._lock:
            for at, amount in enumerate(amounts):
                self.counts[at] += amount

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Runs a task in the process of this thread; returns its result or raises its error."""
        try:
            what = "killed"
            value: Any = None
            with contextlib.suppress(EOFError, OSError):
                connection = self._connection()
                connection.send((function, arguments))
                what, value = self._answer(connection)
            # Not in a handler: the frames of a cause would keep the buffer of an unsent message in
            # a reference cycle with this pool, and Python 3.13 reports such a buffer on stderr.
            if what == "killed":
                raise BertJaxError(
                    "a worker process was killed, perhaps for lack of memory; run the same "
                    f"command again to resume, with fewer than `workers` {self.workers} if memory "
                    "is the reason"
                )
            if what == "error":
                raise value
            return value
        except BaseException as error:
            self._failed = self._failed or error
            raise
        finally:
            with self._lock:
                self._unfinished -= 1

    def _answer(self, connection: Connection) -> tuple[str, Any]:
        """Handles the requests of a running task until it ends; returns "result" or "error", and
        the value.
        """
        while True:
            what, value = connection.recv()
            if what == "count":
                self._add(value)
            elif what == "offer":
                connection.send(is_wanted := self._has_idle())
                if is_wanted:
                    self._waiting.append(self._submit(*connection.recv()))
            else:
                return what, value

    def _connection(self) -> Connection:
        """Returns the pipe to the process of this thread, which is started if necessary."""
        if not hasattr(self._of_thread, "connection"):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_work, args=(theirs,))
            with self._lock:
                if self._is_over:
                    raise EOFError
                process.start()
                self._processes.append(process)
            theirs.close()
            self._of_thread.connection = ours
            # Not an argument of the process: `Process.start` never returns if the process is
            # killed while it reads more than the buffer of a pipe (64 KiB).
            ours.send(self.shared)
        return self._of_thread.connection


class _Pipe:
    """The pool, seen from a worker process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def count(self, amounts: tuple[int, ...]) -> None:
        self._pipe.send(("count", amounts))

    def offer(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
        self._pipe.send(("offer", None))
        if is_wanted := self._pipe.recv():
            self._pipe.send((function, arguments))
        return is_wanted


def _work(pipe: Connection) -> None:
    """Runs the tasks that arrive through the pipe, until the command closes it or ends."""
    global _pool
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    worker.begin()
    _pool = _Pipe(pipe)
    with contextlib.suppress(EOFError, ConnectionError):
        shared = pipe.recv()
        while True:
            function, arguments = pipe.recv()
            try:
                outcome = "result", function(shared, *arguments)
            except Exception as error:
                error.add_note("".join(traceback.format_exception(error)))
                outcome = "error", error
            pipe.send(outcome)
