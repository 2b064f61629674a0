"""Epochs of a phase: the size of the first, by which examples are numbered and which a workdir
keeps (`epochs.json`), and the plans of those used last.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax import strict_json
from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.config.fields import settings_of
from bert_jax.errors import DataDamaged
from bert_jax.files import checksum_of, write_json
from bert_jax.progress import note

EPOCHS = "epochs.json"


class FirstEpoch(NamedTuple):
    """The size of a phase's epoch 0, by which the examples of all its epochs are numbered."""

    examples: int
    rows: int  # as many, where they are not packed
    tokens: int  # of all examples; 0 where rows are not packed


class EpochSizes:
    """The sizes of the first epochs of a run, kept in its workdir. Safe to call from several
    threads.

    A size follows from corpus and config, but only by planning that epoch, which takes minutes for
    a corpus of billions of tokens; so a run writes it down once it knows it, and a resumed one
    plans only the epoch that it is in.
    """

    def __init__(self, directory: Path, *, corpus: str, is_writer: bool):
        """`corpus` is the fingerprint of the corpus that is trained on. Of several processes one
        writes.

        A file that is damaged or of another corpus is said, and not used.
        """
        self._file, self._corpus, self._is_writer = directory / EPOCHS, corpus, is_writer
        self._lock = threading.Lock()
        self._phases = self._read()

    def get(self, phase: str, decisive: str) -> FirstEpoch | None:
        """Returns the size that is kept for a phase, if what decided it was the same."""
        entry = self._phases.get(phase)
        if entry is None:
            return None
        if entry["of"] != decisive:
            self._note(f"phase {phase} had other options", "its first epoch")
            return None
        return FirstEpoch(entry["examples"], entry["rows"], entry["tokens"])

    def put(self, phase: str, decisive: str, first: FirstEpoch) -> None:
        """Writes a size down. Where that fails, which is said, the run goes on without."""
        with self._lock:
            self._phases[phase] = {"of": decisive, **first._asdict()}
            if not self._is_writer:
                return
            values = {"corpus": self._corpus, "phases": self._phases}
            try:
                write_json(self._file, values | {"checksum": checksum_of(values)})
            except OSError as error:
                note(f"{self._file} cannot be written ({error.strerror}): a resumed run will plan "
                     "the first epoch again")  # fmt: skip

    def disagree(self, phase: str, kept: int, found: int) -> DataDamaged:
        """Returns the error for a phase's kept number of rows, of which the plan has others."""
        return DataDamaged(
            f"{self._file} says that the first epoch of phase {phase} has {kept:,} rows, and it "
            f"has {found:,}: delete this file, and the same command goes on"
        )

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            values = strict_json.parse(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            values = None
        if not isinstance(values, dict) or values.pop("checksum", None) != checksum_of(values):
            self._note("it is damaged", "the first epoch")
            return {}
        phases = values.get("phases")
        if not isinstance(phases, dict) or not all(map(_is_entry, phases.values())):
            self._note("it lacks what a run writes", "the first epoch")
            return {}
        if values.get("corpus") != self._corpus:
            self._note("it is of another corpus", "the first epoch")
            return {}
        return phases

    def _note(self, why: str, what: str) -> None:
        note(f"{self._file} is not used, since {why}: {what} is planned again")


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("of"), str):
        return False
    counts = [entry.get(name) for name in FirstEpoch._fields]
    return all(type(count) is int and count >= 0 for count in counts) and 0 not in counts[:2]


def decisive(options: DataConfig, phase: PhaseConfig, seed: int) -> str:
    """Returns a digest of all that a phase's first epoch is made from, but for the split and the
    phase's number.
    """
    values = {
        "seed": seed,
        "sequence_length": phase.sequence_length,
        "sequences": phase.sequences,
        "own": dict(options.options),
        **{
            name: getattr(options, name)
            for name, setting in settings_of(DataConfig).items()
            if setting is not None
            and setting.rule.on_resume != "free"
            and not name.startswith("source_")  # how many rows, not which
        },
    }
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class EpochCache:
    """The plans of the two epochs used last, or of more. A plan that several threads ask for is
    computed by one of them.
    """

    def __init__(self, plan: Callable[[Any], Any], *, keep: int = 2):
        """`plan` is called with an epoch, or another key."""
        self._plan, self._keep = plan, keep
        self._lock = threading.Lock()
        self._futures: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        # Of those that are to be computed in the background, what nobody has begun.
        self._waiting: dict[Hashable, Future[Any]] = {}
        self._is_working = False

    def get(self, epoch: Hashable) -> Any:
        future, is_new = self._entry(epoch)
        with self._lock:
            is_new |= self._waiting.pop(epoch, None) is not None
        if is_new:
            self._fill(epoch, future)
        return future.result()

    def begin(self, epoch: Hashable) -> None:
        """Computes in the background what is not there and not under way, one after the other."""
        future, is_new = self._entry(epoch)
        if not is_new:
            return
        with self._lock:
            self._waiting[epoch] = future
            if self._is_working:
                return
            self._is_working = True
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_working = False
                    return
                epoch = next(iter(self._waiting))
                future = self._waiting.pop(epoch)
            self._fill(epoch, future)

    def _entry(self, epoch: Hashable) -> tuple[Future[Any], bool]:
        with self._lock:
            is_new = epoch not in self._futures
            future = self._futures.setdefault(epoch, Future())
            self._futures.move_to_end(epoch)
            if len(self._futures) > self._keep:
                self._futures.popitem(last=False)
            return future, is_new

    def _fill(self, epoch: Hashable, future: Future[Any]) -> None:
        try:
            future.set_result(self._plan(epoch))
        except BaseException as error:
            with self._lock:
                self._futures.pop(epoch, None)  # whoever asks next tries again
            future.set_exception(error)
