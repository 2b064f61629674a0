"""Several processes, one run: how they meet, agree, prove that they are the same, and stop.

Every process runs the same program on its own part of each batch. Process 0 writes; checkpoints are
written by all, through orbax, to a workdir that all of them see.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from bert_jax.errors import BertJaxError, UsageError, with_exit_code
from bert_jax.model.sharding import AXES
from bert_jax.runtime import network

_T = TypeVar("_T")
_POLL_SECONDS = 0.1
# Seconds. A pod's hosts come up minutes apart, and a cold start compiles for minutes.
_INITIALIZATION_TIMEOUT = 1800
_HEARTBEAT_TIMEOUT = 100
_NO_CLUSTER = (
    "`distributed`: no cluster was found here ({}); it knows Cloud TPU, GKE and Slurm. Elsewhere "
    "use `coordinator`, `num_processes` and `process_id`"
)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How the processes find each other: by what Cloud TPU, GKE or Slurm say, or by address."""

    detect: bool = False
    # HOST:PORT of process 0.
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def validate(self) -> Self:
        given = [self.coordinator, self.num_processes, self.process_id]
        if self.detect and any(value is not None for value in given):
            raise UsageError(
                "`distributed` finds the processes itself; leave out either it or `coordinator`, "
                "`num_processes` and `process_id`"
            )
        if any(value is not None for value in given) and any(value is None for value in given):
            raise UsageError("`coordinator`, `num_processes` and `process_id` come together")
        if self.num_processes is not None and self.process_id is not None:
            if self.num_processes < 1 or not 0 <= self.process_id < self.num_processes:
                raise UsageError(
                    f"`process_id` {self.process_id}: with `num_processes` {self.num_processes} "
                    f"it lies between 0 and {self.num_processes - 1}"
                )
            if not (self.coordinator or "").rpartition(":")[2].isdigit():
                raise UsageError(f"`coordinator` {self.coordinator}: write it as HOST:PORT")
        return self

    def resolved(self) -> "Connection":
        """Returns the address, number and count that Cloud TPU, GKE or Slurm say, as jax finds
        them.

        Raises UsageError where none of them does.
        """
        if not self.detect:
            return self
        # jax has no public name for it (0.10.2 to 0.12).
        from jax._src.clusters import ClusterEnv

        found = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, _INITIALIZATION_TIMEOUT
        )
        address, number, rank = found[:3]
        if address is None or number is None or rank is None:
            raise UsageError(_NO_CLUSTER.format("nothing here tells of one"))
        return Connection(coordinator=address, num_processes=number, process_id=rank)

    def connect(self, *, seconds: float = _INITIALIZATION_TIMEOUT) -> None:
        """Waits for all processes. Does nothing for the only process of a run.

        Processes that are not there after `seconds` end this one: jax waits no longer. Raises
        UsageError if there is nothing to find them by, Unreachable if it does not answer.
        """
        if not self.detect and self.coordinator is None:
            return
        # Between processes on CPUs, jax's collectives go through gloo.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        try:
            # A metadata server that does not answer is asked again.
            network.retrying(
                lambda: self._initialize(seconds), name="what tells of the other processes"
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
    """Leaves in good order, after the others: a process that just goes takes them with it."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def is_main() -> bool:
    """Returns whether this process is the one that writes logs and talks."""
    return jax.process_index() == 0


# --- agreement -----------------------------------------------------------------------------------


def _gather(mesh: Mesh, words: np.ndarray) -> np.ndarray:
    """Returns `[processes, n]` of the int32 `[n]` that each gives. Waits for all of them."""
    layout = NamedSharding(mesh, jax.P(AXES))
    rows = np.broadcast_to(words, (mesh.size, len(words)))
    spread = jax.make_array_from_callback(rows.shape, layout, lambda index: rows[index])
    together = _replicated(spread)
    owners = [device.process_index for device in mesh.devices.flat]
    return np.asarray(together)[[owners.index(p) for p in sorted(set(owners))]]


@jax.jit
def _replicated(x: jax.Array) -> jax.Array:
    # One function for all calls: each new one would be compiled anew.
    return jax.reshard(x, jax.P())


def barrier(mesh: Mesh) -> None:
    """Returns when every process has come here. Used around what only process 0 writes."""
    if jax.process_count() > 1:
        _gather(mesh, np.zeros(1, np.int32))


def everywhere(error: BertJaxError) -> BertJaxError:
    """Marks an error that every process raises at the same place: they leave together."""
    error.is_everywhere = True
    return error


def assert_same_program(known: Callable[[], Mapping[str, str]], *, mesh: Mesh) -> None:
    """Raises UsageError, in every process, if one of them knows a fact otherwise.

    Processes that run different programs wait for each other in different collectives, for ever.
    The error names the rank and the fact.
    """
    if jax.process_count() == 1:
        return
    facts = known()
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in facts.values()]
    words = np.frombuffer(b"".join(digests), np.int32)
    gathered = _gather(mesh, words).reshape(jax.process_count(), len(facts), 2)
    differing = [
        f"process {rank}: {name}"
        for rank in range(1, jax.process_count())
        for i, name in enumerate(facts)
        if (gathered[rank, i] != gathered[0, i]).any()
    ]
    if differing:
        error = UsageError(
            f"the processes do not run the same program; other than in process 0 are "
            f"{'; '.join(differing)}. Start all of them with the same command on the same versions"
        )
        raise everywhere(error)


def broadcast_from_main(decide: Callable[[], int | None], *, mesh: Mesh) -> int | None:
    """Returns what process 0 decides (a number from 0, or None), in every process.

    An error of process 0 is raised in all of them, so that none waits for it.
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
    kind, number = _gather(mesh, answer)[0]
    if problem is not None:
        raise everywhere(problem)
    if kind == 2:
        error = with_exit_code(int(number), "process 0 found it; its own message says what")
        raise everywhere(error)
    return int(number) if kind == 1 else None


def of_main(values: Sequence[int], *, mesh: Mesh) -> list[int]:
    """Returns the values of process 0, in every process. All of them ask, at the same place."""
    if jax.process_count() == 1:
        return list(values)
    return _gather(mesh, np.array(values, np.int32))[0].tolist()


def largest(number: int, *, mesh: Mesh) -> int:
    """Returns the largest of the numbers that the processes give. All of them ask, at the same
    place.
    """
    if jax.process_count() == 1:
        return number
    return int(_gather(mesh, np.array([number], np.int32)).max())


def exchange(name: str, text: str, *, seconds: float) -> list[str]:
    """Returns what every process says under a name that is used once, in the order of their
    numbers.

    Waits for all, without a device. Raises jax's JaxRuntimeError if one says nothing in time.
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
    """Returns whether every process has come to the end of its run within some seconds.

    Where one has not, it waits in a step for this one, which is to go: what asks all of them would
    never return.
    """
    try:
        exchange(f"end-{next(_endings)}", "", seconds=20.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def smallest(size: int | None, *, mesh: Mesh) -> int | None:
    """Returns the least of all processes' sizes in bytes, to the MiB; None if one knows none."""
    if jax.process_count() == 1:
        return size
    word = np.array([-1 if size is None else size >> 20], np.int32)
    with jax.set_mesh(mesh):
        least = int(_gather(mesh, word).min())
    return None if least < 0 else least << 20


# --- what each is at ---------------------------------------------------------------------------

_ACTIVITY = "bert-jax/at/"


def publish_status(text: str) -> None:
    """Lets the other processes know. Does nothing once the coordination service is gone."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _client().key_value_set(f"{_ACTIVITY}{jax.process_index()}", text, allow_overwrite=True)


def peer_statuses() -> dict[int, str]:
    """Returns what each process has published last."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        pairs = _client().key_value_dir_get(_ACTIVITY)
        return {int(key.rpartition("/")[2]): text for key, text in pairs}
    return {}


def _client() -> Any:
    # jax has no public name for its key-value store (0.10.2 to 0.12).
    from jax._src import distributed

    return distributed.global_state.client


_LEAVE = "bert-jax/leave/"


def any_preempted(is_leaving: bool) -> bool:
    """Returns whether any process received a signal while the processes met.

    Every process asks once, right after they have met.
    """
    if not jax.distributed.is_initialized():
        return is_leaving
    client = _client()
    client.key_value_set(f"{_LEAVE}{jax.process_index()}", str(int(is_leaving)))
    client.wait_at_barrier("bert-jax/met", 1000 * _INITIALIZATION_TIMEOUT)
    return any(value == "1" for _, value in client.key_value_dir_get(_LEAVE))
