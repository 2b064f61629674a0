"""Processes that do the work of a command, by units of its sources: what goes between them and the
command is names and numbers, never text.
"""

import concurrent.futures
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
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


class Pool:
    """Worker processes that begin when they are needed first. With one worker there is none: this
    process does the work.

    A task is a function of a module, called with `shared` and its arguments; `is_here` says of
    arguments that only this process can have them. What it counts with `count` is in `counts` at
    once.
    """

    def __init__(self, workers: int, shared: Any = None) -> None:
        self.workers, self.shared = workers, shared
        self._context = multiprocessing.get_context("spawn")
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None
        self._own = [0, 0, 0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._executor is not None:
            if kind is not None:
                self._alive.close()  # they end at once, whatever they do
            self._executor.shutdown(cancel_futures=True)
            self._alive.close()

    @property
    def counts(self) -> list[int]:
        """Returns what all tasks have counted since `map` was called."""
        return self._own if self._executor is None else [*self._counter.get_obj()]

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
        except BrokenProcessPool as error:
            raise BertJaxError(
                "a worker process was killed, perhaps for lack of memory; the same command goes on "
                "where this one stopped, and takes less memory with fewer than "
                f"`workers` {self.workers}"
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
        executor = self._started()
        _counts, _look = self._counter, None
        self._counter[:] = [0, 0, 0]  # pyright: ignore
        waiting: deque[concurrent.futures.Future[Any]] = deque()
        others: set[concurrent.futures.Future[Any]] = set()
        are_over = False
        while True:
            while not are_over and len(waiting) < _AHEAD * self.workers:
                each = next(arguments, None)
                if each is None:
                    are_over = True
                elif is_here(each):
                    waiting.append(_in_thread(function, self.shared, *each))
                else:
                    waiting.append(executor.submit(_call, function, each))
            others |= {executor.submit(_call, *task) for task in more()}
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

    def _started(self) -> concurrent.futures.ProcessPoolExecutor:
        if self._executor is None:
            worker.prepare_for_workers()
            heard, self._alive = self._context.Pipe(duplex=False)
            self._counter = self._context.Array("q", 3)
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self.workers,
                # A forked copy of a process that runs threads (tokenizers, jax) can deadlock.
                mp_context=self._context,
                initializer=_begin,
                initargs=(heard, self.shared, self._counter),
            )
        return self._executor


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


def _begin(alive: Any, shared: Any, counts: Any) -> None:
    global _shared, _counts
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    worker.begin(alive)
    _shared, _counts = shared, counts


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(_shared, *arguments)
