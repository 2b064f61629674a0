"""Several processes of one run: how they connect, agree, and verify that they run the same program.

Every process runs the same program on its part of each batch. Process 0 writes the logs. All
processes write checkpoints, through Orbax, to a workdir that all of them can access.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import BertJaxError, UsageError, with_exit_code
from bert_jax.runtime import network

_T = TypeVar("_T")
# In seconds. The hosts of a pod may start minutes apart, and a cold start compiles for minutes.
_INITIALIZATION_TIMEOUT = 1800
_HEARTBEAT_TIMEOUT = 100
_NO_CLUSTER = (
    "`distributed`: no cluster detected ({}); Cloud TPU, GKE and Slurm are supported. Elsewhere "
    "use `coordinator`, `num_processes` and `process_id`"
)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How the processes find each other: through Cloud TPU, GKE or Slurm, or by address."""

    distributed: bool = False
    # HOST:PORT of process 0.
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def validate(self) -> Self:
        given = [self.coordinator, self.num_processes, self.process_id]
        if self.distributed and any(value is not None for value in given):
            raise UsageError(
                "`distributed` detects the processes itself; remove it, or remove `coordinator`, "
                "`num_processes` and `process_id`"
            )
        if any(value is not None for value in given) and any(value is None for value in given):
            raise UsageError("set all of `coordinator`, `num_processes` and `process_id`")
        if self.num_processes is not None and self.process_id is not None:
            if self.num_processes < 1 or not 0 <= self.process_id < self.num_processes:
                raise UsageError(
                    f"`process_id` {self.process_id}: with `num_processes` {self.num_processes} "
                    f"it must be from 0 to {self.num_processes - 1}"
                )
            if not (self.coordinator or "").rpartition(":")[2].isdigit():
                raise UsageError(f"`coordinator` {self.coordinator}: must be HOST:PORT")
        return self

    def resolved(self) -> "Connection":
        """Returns the address, count and process id that JAX detects on Cloud TPU, GKE or Slurm.

        Raises UsageError if it detects none.
        """
        if not self.distributed:
            return self
        # JAX has no public name for it (0.10.2 to 0.12).
        from jax._src.clusters import ClusterEnv

        found = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, _INITIALIZATION_TIMEOUT
        )
        address, number, rank = found[:3]
        if address is None or number is None or rank is None:
            raise UsageError(_NO_CLUSTER.format("no environment variable or metadata names one"))
        return Connection(coordinator=address, num_processes=number, process_id=rank)

    def connect(self, *, seconds: float = _INITIALIZATION_TIMEOUT) -> None:
        """Waits for all processes. Does nothing for a single process.

        JAX ends this process if the others are missing after `seconds`. Raises UsageError if no
        cluster is found, Unreachable if the metadata server of the cluster does not answer.
        """
        if not self.distributed and self.coordinator is None:
            return
        # Between processes on CPUs, JAX's collectives use gloo.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        try:
            # Retries while the metadata server does not answer.
            network.retrying(
                lambda: self._initialize(seconds), name="the server that lists the other processes"
            )
        except ValueError as error:
            raise UsageError(_NO_CLUSTER.format(error)) from error

    def _initialize(self, seconds: float) -> None:
        jax.distributed.initialize(
            coordinator_address=self.coordinator,
            num_processes=self.num_processes,
            process_id=self.process_id,
            initialization_timeout=int(seconds),
            heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT,
        )


def disconnect() -> None:
    """Disconnects after the others: a process that exits without this would end them as well."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def is_main() -> bool:
    """Returns whether this is process 0, which writes logs and messages."""
    return jax.process_index() == 0


# --- agreement -----------------------------------------------------------------------------------


def _gather(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns `[processes, n]` of the int32 `[n]` of each process. Waits for all of them."""
    return np.asarray(multihost_utils.process_allgather(np.asarray(values, np.int32)))


def barrier() -> None:
    """Returns once every process has called it. Used around writes of process 0."""
    if jax.process_count() > 1:
        _gather([0])


def everywhere(error: BertJaxError) -> BertJaxError:
    """Marks an error that every process raises at the same point, so that they end together."""
    error.is_everywhere = True
    return error


def assert_same_program(known: Callable[[], Mapping[str, str]]) -> None:
    """Raises UsageError, in every process, if a fact differs between them.

    Different programs would wait for each other in different collectives. The error names the rank
    and the fact.
    """
    if jax.process_count() == 1:
        return
    facts = known()
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in facts.values()]
    words = np.frombuffer(b"".join(digests), np.int32)
    gathered = _gather(words).reshape(jax.process_count(), len(facts), 2)
    differing = [
        f"process {rank}: {name}"
        for rank in range(1, jax.process_count())
        for i, name in enumerate(facts)
        if (gathered[rank, i] != gathered[0, i]).any()
    ]
    if differing:
        error = UsageError(
            f"the processes do not run the same program; these differ from process 0: "
            f"{'; '.join(differing)}. Start all of them with the same command on the same versions"
        )
        raise everywhere(error)


def broadcast_from_main(decide: Callable[[], int | None]) -> int | None:
    """Returns the decision of process 0 (a number from 0, or None), in every process.

    An error of process 0 is raised in all of them.
    """
    if jax.process_count() == 1:
        return decide()
    answer, problem = np.zeros(2, np.int32), None
    if is_main():
        try:
            decided = decide()
            answer[:] = (0 if decided is None else 1, decided or 0)
        except BertJaxError as error:
            problem, answer[:] = error, (2, error.exit_code)
    kind, number = _gather(answer)[0]
    if problem is not None:
        raise everywhere(problem)
    if kind == 2:
        error = with_exit_code(int(number), "process 0 failed; see its message for the reason")
        raise everywhere(error)
    return int(number) if kind == 1 else None


def of_main(values: Sequence[int]) -> list[int]:
    """Returns the values of process 0, in every process. All processes must call it at the same
    point.
    """
    return list(values) if jax.process_count() == 1 else _gather(values)[0].tolist()


def largest(number: int) -> int:
    """Returns the largest number of all processes. All processes must call it at the same point."""
    return number if jax.process_count() == 1 else int(_gather([number]).max())


def smallest(size: int | None) -> int | None:
    """Returns the smallest size in bytes of all processes, rounded to MiB; None if any has None."""
    if jax.process_count() == 1:
        return size
    least = int(_gather([-1 if size is None else size >> 20]).min())
    return None if least < 0 else least << 20


def exchange(name: str, text: str, *, seconds: float) -> list[str]:
    """Returns the texts of all processes, by rank, under a name that is used once.

    Waits for all, without using devices. Raises JAX's JaxRuntimeError if one is missing in time.
    """
    if not jax.distributed.is_initialized():
        return [text]
    client = _client()
    client.key_value_set(f"bert-jax/exchange/{name}/{jax.process_index()}", text)
    return [
        client.blocking_key_value_get(f"bert-jax/exchange/{name}/{rank}", int(1000 * seconds))
        for rank in range(jax.process_count())
    ]


_endings = itertools.count()


def all_end() -> bool:
    """Returns whether every process reaches the end of its run within 20 seconds.

    A process that does not may wait for this one in a collective that would never return.
    """
    try:
        exchange(f"end-{next(_endings)}", "", seconds=20.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _client() -> Any:
    # JAX has no public name for its key-value store (0.10.2 to 0.12).
    from jax._src import distributed

    return distributed.global_state.client


def any_preempted(is_leaving: bool) -> bool:
    """Returns whether any process received a signal while the processes connected.

    Every process calls it once, right after connecting.
    """
    return "1" in exchange("leave", str(int(is_leaving)), seconds=_INITIALIZATION_TIMEOUT)
