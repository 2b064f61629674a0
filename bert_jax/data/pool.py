"""Processes that run the tasks of a command.

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
from multiprocessing.connection import Connection
from typing import Any, Self

from bert_jax import worker
from bert_jax.errors import BertJaxError

# Results that wait for an earlier one, per process: they are tens of bytes per document.
_AHEAD = 4
# Tasks per process, running or waiting, up to which an offered task is taken.
_OFFERED = 2
_SECONDS_BETWEEN_LOOKS = 0.1


class _Context(threading.local):
    pool: "Pool | _Pipe | None" = None


# Of the thread that runs a task: its pool, or the pipe to its pool.
_context = _Context()


def count(*amounts: int) -> None:
    """Adds to what the tasks of `Pool.map` count, up to three numbers."""
    if _context.pool is not None:
        _context.pool.count(amounts)


def offer(function: Callable[..., Any], *arguments: Any) -> bool:
    """Lets another process run a task if one has nothing to do; returns whether one does."""
    pool = _context.pool
    if pool is None or not pool.wants():
        return False
    pool.take(function, arguments)
    return True


class _WorkerKilled(Exception):
    """A worker process ended in the middle of a task."""


class Pool:
    """Worker processes, started when a task needs one. With one worker this process runs the tasks.

    A task is a function of a module, called with `shared` and its arguments. What it counts with
    `count` is in `counts` at once. Leaving the pool kills the processes, whatever they do.
    """

    def __init__(self, workers: int, shared: Any = None) -> None:
        self.workers, self.shared = workers, shared
        self.counts = [0, 0, 0]  # by the tasks since `map` was called
        # A forked copy of a process that runs threads (tokenizers, jax) can deadlock.
        self._context = multiprocessing.get_context("spawn")
        self._threads: ThreadPoolExecutor | None = None
        self._of_thread = threading.local()
        self._lock, self._is_over = threading.Lock(), False
        self._was_killed = threading.Event()
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._unfinished = 0  # tasks that were submitted
        self._offered: list[Future[Any]] = []

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

    def map(
        self,
        function: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        *,
        is_here: Callable[[tuple[Any, ...]], bool] = lambda _: False,
        watch: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """Yields the results in the order of the arguments, which are taken when they are needed;
        between them, those of tasks that were offered.

        A task with arguments for which `is_here` runs in this process. `watch` is called from time
        to time. Raises what a task raises, and BertJaxError where a process was killed.
        """
        self.counts[:] = [0, 0, 0]
        if self.workers == 1:
            self._watch = watch
            for each in arguments:
                yield self._run_here(function, each)
            return
        try:
            yield from self._map(function, iter(arguments), is_here, watch)
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
        watch: Callable[[], None],
    ) -> Iterator[Any]:
        if self._threads is None:
            worker.prepare_for_workers()
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="pool")
        waiting: deque[Future[Any]] = deque()
        are_over = False
        while True:
            # Not only where its result is next: the tasks before may take hours.
            if self._was_killed.is_set():
                raise _WorkerKilled
            while not are_over and len(waiting) < _AHEAD * self.workers:
                each = next(arguments, None)
                are_over = each is None
                if each is not None:
                    submit = self._submit_here if is_here(each) else self._submit
                    waiting.append(submit(function, each))
            if waiting and waiting[0].done():
                yield waiting.popleft().result()
                continue
            with self._lock:
                done = [future for future in self._offered if future.done()]
                self._offered = [future for future in self._offered if not future.done()]
                running = [*(future for future in waiting if not future.done()), *self._offered]
            for future in done:
                yield future.result()
            if not waiting and not running:
                return
            concurrent.futures.wait(
                running, _SECONDS_BETWEEN_LOOKS, concurrent.futures.FIRST_COMPLETED
            )
            watch()

    # --- what a task asks for ---------------------------------------------------------------------

    def count(self, amounts: tuple[int, ...]) -> None:
        with self._lock:
            for at, amount in enumerate(amounts):
                self.counts[at] += amount
        if self.workers == 1:
            self._watch()

    def wants(self) -> bool:
        return self.workers > 1 and self._unfinished < _OFFERED * self.workers

    def take(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        future = self._submit(function, arguments)
        with self._lock:
            self._offered.append(future)

    # --- running tasks ----------------------------------------------------------------------------

    def _run_here(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        _context.pool = self
        try:
            return function(self.shared, *arguments)
        finally:
            _context.pool = None

    def _submit_here(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        future = Future[Any]()

        def run() -> None:
            try:
                future.set_result(self._run_here(function, arguments))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def _submit(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        assert self._threads is not None
        with self._lock:
            self._unfinished += 1
        return self._threads.submit(self._call, function, arguments)

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
            what, value = self._answer(connection)
        except (EOFError, OSError) as error:
            self._was_killed.set()
            raise _WorkerKilled from error
        finally:
            with self._lock:
                self._unfinished -= 1
        if what == "error":
            raise value
        return value

    def _answer(self, connection: Connection) -> tuple[str, Any]:
        """Returns "result" or "error" of the task of a process, and the value. Meanwhile, does what
        the task asks for.
        """
        while True:
            what, value = connection.recv()
            if what == "count":
                self.count(value)
            elif what == "wants":
                connection.send(is_wanted := self.wants())
                if is_wanted:
                    self.take(*connection.recv())
            else:
                return what, value

    def _start_process(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,))
        with self._lock:
            if self._is_over:
                raise _WorkerKilled
            process.start()
            self._processes.append(process)
        theirs.close()
        return ours


class _Pipe:
    """The pool, seen from a worker process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def count(self, amounts: tuple[int, ...]) -> None:
        self._pipe.send(("count", amounts))

    def wants(self) -> bool:
        self._pipe.send(("wants", None))
        return self._pipe.recv()

    def take(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._pipe.send((function, arguments))


def _work(pipe: Connection) -> None:
    """Runs the tasks that come through the pipe, until the command closes it or ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    worker.begin()
    _context.pool = _Pipe(pipe)
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
