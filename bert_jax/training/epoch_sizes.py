"""The sizes of the first epochs, kept in the workdir (`epochs.json`).

The examples of a phase are numbered by the size of its first epoch. It follows from corpus and
config, but only by planning that epoch, which takes minutes for a corpus of billions of tokens; so
a run writes it down once it knows it, and a resumed one plans only the epoch that it is in.
"""

import threading
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.pretraining.epochs import FirstEpoch
from bert_jax.errors import DataDamaged
from bert_jax.files import write_json
from bert_jax.progress import note
from bert_jax.workdir.manifest import checksum_of

EPOCHS = "epochs.json"


class EpochSizes:
    """The `KeptEpochs` of a workdir. Safe to call from several threads."""

    def __init__(self, directory: Path, *, corpus: str, is_writer: bool):
        """`corpus` is the fingerprint of the corpus that is trained on. Of several processes one
        writes.

        A file that is damaged or of another corpus is said, and not used.
        """
        self._file, self._corpus, self._is_writer = directory / EPOCHS, corpus, is_writer
        self._lock = threading.Lock()
        self._phases = self._read()

    def get(self, phase: str, decisive: str) -> FirstEpoch | None:
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

    def disagree(self, phase: str, kept: int, found: int) -> Exception:
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
