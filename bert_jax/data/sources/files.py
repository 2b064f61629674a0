"""Finds the files of a source, and the files of a folder that are skipped."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from bert_jax.data.sources import address
from bert_jax.data.sources.address import AnyFile, RemoteFile
from bert_jax.data.sources.stream import HELD_OUT, TESTS, TRAIN
from bert_jax.data.sources.unpacking import PACKED
from bert_jax.errors import UsageError, some
from bert_jax.registry import FORMATS

# The number of skipped files to name; of more files, only the number is reported.
_NAMED = 8

# Names of splits in files and folders of data sets: "train-00000-of-00002.parquet".
_TRAIN = ("train", "training")
_HELD_OUT = (("validation", "valid", "val", "dev", "eval"), ("test", "testing"))
# A file of every corpus (data/corpus/store.py).
_FIRST_SHARD = ("train", "00000.tokens.npy")
_WORD = re.compile(r"[a-z]+")
_SPLITS = dict.fromkeys(_TRAIN, "train") | {name: kind[0] for kind in _HELD_OUT for name in kind}


def kinds() -> str:
    """Returns the supported file suffixes for messages."""
    return f"{', '.join(FORMATS.names())} (each also {', '.join(PACKED)})"


def kind_of(name: str) -> tuple[str, str] | None:
    """Returns the suffixes of a file's format and compression ("" if it is not compressed), in any
    case; None for a file of another kind.
    """
    packing = packing_of(name)
    lower = name.lower().removesuffix(packing)
    found = next((e for e in FORMATS.names() if lower.endswith(e.lower())), None)
    return None if found is None else (found, packing)


def packing_of(name: str) -> str:
    """Returns the suffix of a file's compression; "" if it is not compressed."""
    return next((ending for ending in PACKED if name.lower().endswith(ending)), "")


def find_files(source: str, *, splits: str = TRAIN) -> tuple[list[AnyFile], list[AnyFile]]:
    """Returns the files of a source by name, and the files that are skipped.

    Subfolders are included. A folder's hidden files, files of other kinds, links to folders and
    special files are skipped. If the names of files or folders in a folder or glob contain several
    splits, only the requested `splits` are read.

    Raises UsageError if there is no file to read, and for a file of another kind that was named or
    matches a glob.
    """
    left_out: list[AnyFile] = []
    folder, files = _find(source, left_out)
    if folder is None:
        if others := [str(file) for file in files if kind_of(file.name) is None]:
            raise UsageError(f"{some(others)}: not one of {kinds()}; rename or convert it")
        return _of_split(folder, files, left_out, splits=splits), left_out
    found: list[AnyFile] = []
    for file in files:
        # Programs keep copies in hidden folders, such as .ipynb_checkpoints.
        is_hidden = any(part.startswith(".") for part in _inside(file, folder).parts)
        is_read = not is_hidden and kind_of(file.name) is not None
        (found if is_read else left_out).append(file)
        if not is_hidden and (*_inside(file, folder).parts, "")[-3:-1] == _FIRST_SHARD:
            # The only text in a corpus is its vocabulary.
            corpus = str(file).rsplit("/", 2)[0]
            raise UsageError(
                f"{corpus} is a prepared corpus, not text: name the text that it was made from, or "
                f"new text and `known` {corpus}"
            )
    if not found:
        seen = f": {describe(source, left_out)}" if left_out else ""
        raise UsageError(f"{source}: no {kinds()} file in this folder{seen}")
    return _of_split(folder, found, left_out, splits=splits), left_out


def _find(source: str, left_out: list[AnyFile]) -> tuple[AnyFile | None, list[AnyFile]]:
    """Returns the folder that a source names, None for a file or a glob, and all its files."""
    path = Path(source)
    if address.is_address(source) and not path.exists():
        folder, remote = address.find(source)
        return folder, [*remote]
    if path.is_dir():
        return path, sorted(_walk(path, left_out))
    if path.is_file():
        return None, [path]
    if path.exists():
        raise UsageError(
            f"{source} is not a plain file, and sources are read twice; write it to a file"
        )
    matching = sorted(Path(name) for name in glob.glob(source, recursive=True))
    files: list[AnyFile] = [file for file in matching if not file.is_dir()]
    if "**" not in source:  # "**" matches the files in folders, not the folders
        left_out += [file for file in matching if file.is_dir()]
    if not files:
        what = "no file matches" if glob.has_magic(source) else "no such file or folder"
        if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not path.parent.exists():
            what += f" (for a dataset of the hub, write hf:{source})"
        raise UsageError(
            f"{source}: {what}; a source is a file, folder or glob of {kinds()}; an address, such "
            "as gs://BUCKET/PATH or hf:NAME; tfds:NAME[/CONFIG][:SPLIT]; or docs:"
        )
    return None, files


def _walk(folder: Path, left_out: list[AnyFile]) -> Iterator[Path]:
    """Yields the plain files of a folder and its subfolders."""
    for inner, folders, names in os.walk(folder, onerror=_refuse_folder):
        left_out += [link for name in folders if (link := Path(inner, name)).is_symlink()]
        for path in (Path(inner, name) for name in names):
            if path.exists() and not path.is_file():  # reading a pipe would block
                left_out.append(path)
            else:
                yield path


def _refuse_folder(error: OSError) -> None:
    raise UsageError(f"{error.filename}: {error.strerror}") from error


def _of_split(
    folder: AnyFile | None,
    files: Sequence[AnyFile],
    left_out: list[AnyFile],
    *,
    splits: str,
) -> list[AnyFile]:
    """Returns the files of the requested splits; all files if there is at most one split."""
    split_of = {path: _split_of(path, folder) for path in files}
    found = set(split_of.values()) - {None}
    if "train" not in found or len(found) == 1:
        return list(files)
    held_out = [kind[0] for kind in _HELD_OUT if kind[0] in found]
    # Files without the name of a split are read with train, and not held out.
    wanted = {TRAIN: ["train", None], HELD_OUT: held_out[:1], TESTS: held_out}[splits]
    left_out += [path for path in files if split_of[path] not in wanted]
    return [path for path in files if split_of[path] in wanted]


def _split_of(path: Any, folder: AnyFile | None) -> str | None:
    """Returns the split in a file's name, or in the name of the nearest folder inside `folder`."""
    parts = (path.name,) if folder is None else path.relative_to(folder).parts
    for name in reversed(parts):
        named = {_SPLITS[word] for word in _WORD.findall(name.lower()) if word in _SPLITS}
        if len(named) == 1:
            return named.pop()
    return None


def _inside(file: AnyFile, folder: AnyFile) -> PurePath:
    return file.relative_to(folder)  # pyright: ignore[reportArgumentType]


def describe(source: str, left_out: Sequence[AnyFile]) -> str:
    """Returns a line about the skipped files of a source."""
    names = some(sorted(_relative(file, source) for file in left_out), _NAMED)
    return f"skipped {len(left_out):,} file{'s' * (len(left_out) > 1)}: {names}"


def _relative(file: AnyFile, folder: str) -> str:
    if isinstance(file, RemoteFile):
        return str(file).removeprefix(f"{folder.rstrip('/')}/")
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)
