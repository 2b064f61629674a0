"""Records of TensorFlow data sets."""

import os
import re
from collections.abc import Iterator
from typing import Any, cast

from bert_jax.data.sources.columns import decoded
from bert_jax.data.sources.stream import HELD_OUT, TESTS, TRAIN
from bert_jax.errors import UsageError, install_command

_ADDRESS = re.compile(r"tfds:(?P<name>[^:]+(:\d+\.\d+\.\d+)?)(:(?P<split>.+))?")
_SPLITS = {TRAIN: "train", HELD_OUT: "validation", TESTS: "test"}


def tfds_records(source: str, splits: str = TRAIN) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the records of `tfds:NAME[/CONFIG][:SPLIT]` with their locations, in a fixed order.

    For a source without a split, the split is chosen by `splits`: TRAIN, HELD_OUT (validation) or
    TESTS (test). Bytes are returned as text, or as the error of decoding them.

    The data directory is the default of tfds (TFDS_DATA_DIR). Raises UsageError if the data set
    cannot be loaded.
    """
    match = _ADDRESS.fullmatch(source)
    if match is None:
        raise UsageError(f"{source}: expected tfds:NAME[/CONFIG][:SPLIT]")
    split = match["split"] or _SPLITS[splits]
    data = load_tfds(source, match["name"], split)
    for number, record in enumerate(data.as_numpy_iterator(), 1):
        yield f"{source.removesuffix(f':{split}')}:{split}, record {number}", _plain(record)


def load_tfds(source: str, name: str, split: str) -> Any:
    """Returns a split of a TensorFlow data set. Raises UsageError if it cannot be loaded."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        install = install_command("tensorflow-datasets", "importlib-resources")
        raise UsageError(f"{source} needs tensorflow-datasets: {install}") from error
    try:
        return cast(
            Any,
            tfds.load(
                name,
                split=split,
                data_dir=os.environ.get("TFDS_DATA_DIR"),
                # One file after the other, for a fixed order of records.
                read_config=tfds.ReadConfig(interleave_cycle_length=1),
            ),
        )
    except Exception as error:  # the code of a data set may raise any exception
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(f"{source}: tensorflow_datasets cannot load {split}: {reason}") from error


def _plain(value: Any) -> Any:
    """Converts bytes to text and arrays to lists, at any depth."""
    if isinstance(value, dict):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, bytes):
        return decoded(value, "utf-8")
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(child) for child in value]
    return value
