"""The files that a source means, and those of a folder that are left out."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.sources import address
from bert_jax.data.sources.address import AnyFile, RemoteFile
from bert_jax.data.sources.stream import HELD_OUT, TESTS, TRAIN
from bert_jax.data.sources.unpacking import PACKED
from bert_jax.errors import UsageError
from bert_jax.registry import FORMATS

# Files of a group that are named one by one; of more, how many there are of each ending.
_NAMED = 8

_HIDDEN = "hidden"
_OTHER = "of no kind that is read"
_NOT_PLAIN = "not plain files"
_LINKS = "links to folders"
_FOLDERS = "folders, of which a glob takes none"
_OTHER_SPLIT = "of another split than {}"

# Names of splits, as files and folders of data sets have them: "train-00000-of-00002.parquet".
_TRAIN = ("train", "training")
_HELD_OUT = (("validation", "valid", "val", "dev", "eval"), ("test", "testing"))
_WORD = re.compile(r"[a-z]+")
_SPLITS = dict.fromkeys(_TRAIN, "train") | {name: kind[0] for kind in _HELD_OUT for name in kind}


def kinds() -> str:
    """Returns the endings of files that are read, as messages list them."""
    return f"{', '.join(FORMATS.names())} (each also {', '.join(PACKED)})"


def kind_of(name: str) -> tuple[str, str] | None:
    """Returns the ending that says the format of a file and that of its packing ("" if it is none),
    whatever their case; None for a file of another kind.
    """
    lower = name.lower()
    packing = next((ending for ending in PACKED if lower.endswith(ending)), "")
    lower = lower.removesuffix(packing)
    found = next((e for e in FORMATS.names() if lower.endswith(e.lower())), None)
    return None if found is None else (found, packing)


def find_files(
    source: str, *, splits: str = TRAIN
) -> tuple[list[AnyFile], dict[str, list[AnyFile]]]:
    """Returns the files of a source by name, and those that are left out, by the reason.

    A folder is read with its subfolders. Where files of a folder or glob, or the folders in it, are
    named as those of several splits, the `splits` that are asked for are read.

    Raises UsageError if there is no file to read, and for a file of another kind that was named or
    matches a glob.
    """
    left_out: dict[str, list[AnyFile]] = {}
    if address.is_address(source) and not Path(source).exists():
        return _find_remote(source, left_out, splits=splits), left_out
    path = Path(source)
    if path.is_dir():
        files: list[AnyFile] = list(_walk(path, left_out))
        if not files:
            seen = f": {describe(source, left_out)}" if left_out else ""
            raise UsageError(f"{source}: no {kinds()} file in this folder{seen}")
        files = _of_split(path, files, left_out, splits=splits)
        return _sorted(files), {reason: _sorted(names) for reason, names in left_out.items()}
    if path.exists():
        if not path.is_file():
            raise UsageError(
                f"{source} is not a plain file, and sources are read twice; pipe it in, and name "
                "- as the source"
            )
        files = [path]
    else:
        matching = sorted(Path(name) for name in glob.glob(source, recursive=True))
        files = [file for file in matching if not file.is_dir()]
        if len(files) < len(matching) and "**" not in source:
            left_out[_FOLDERS] = [file for file in matching if file.is_dir()]
        if not files:
            what = "no file matches" if glob.has_magic(source) else "no such file or folder"
            raise UsageError(
                f"{source}: {what}; a source is a file, folder or glob of {kinds()}; - (standard "
                "input); an address, such as gs://BUCKET/PATH or hf:NAME; "
                "tfds:NAME[/CONFIG][:SPLIT]; or docs:"
            )
    if others := [file for file in files if kind_of(file.name) is None]:
        raise UsageError(f"{_listed(others)}: not one of {kinds()}; rename or convert it")
    return _of_split(None, files, left_out, splits=splits), left_out


def _sorted(found: Sequence[Any]) -> list[AnyFile]:
    return sorted(found)


def _find_remote(source: str, left_out: dict[str, list[AnyFile]], *, splits: str) -> list[AnyFile]:
    """Does as `find_files` for an address."""
    folder, found = address.find(source)
    if folder is None:
        if others := [file for file in found if kind_of(file.name) is None]:
            raise UsageError(f"{_listed(others)}: not one of {kinds()}; rename or convert it")
        return _of_split(None, found, left_out, splits=splits)
    files: list[AnyFile] = []
    for file in found:
        inner = file.relative_to(folder).parts
        if _is_hidden(inner):
            left_out.setdefault(_HIDDEN, []).append(file)
        elif kind_of(file.name) is None:
            left_out.setdefault(_OTHER, []).append(file)
        else:
            files.append(file)
    if not files:
        raise UsageError(f"{source}: no {kinds()} file here: {describe(source, left_out)}")
    return _of_split(folder, files, left_out, splits=splits)


def _of_split(
    folder: AnyFile | None,
    files: Sequence[AnyFile],
    left_out: dict[str, list[AnyFile]],
    *,
    splits: str,
) -> list[AnyFile]:
    """Returns the files of the splits that are asked for; all where there is one split or none."""
    split_of = {path: _split_of(path, folder) for path in files}
    found = set(split_of.values()) - {None}
    if "train" not in found or len(found) == 1:
        return list(files)
    held_out = [kind[0] for kind in _HELD_OUT if kind[0] in found]
    # What names no split may be anything: it is read beside train, and not held out.
    wanted = {TRAIN: ["train", None], HELD_OUT: held_out[:1], TESTS: held_out}[splits]
    others = [path for path in files if split_of[path] not in wanted]
    if others:
        names = " and ".join(name for name in wanted if name)
        left_out[_OTHER_SPLIT.format(names)] = others
    return [path for path in files if split_of[path] in wanted]


def _split_of(path: Any, folder: AnyFile | None) -> str | None:
    """Returns the split that a file's name, or else the nearest folder inside `folder`, says."""
    parts = (path.name,) if folder is None else path.relative_to(folder).parts
    for name in reversed(parts):
        named = {_SPLITS[word] for word in _WORD.findall(name.lower()) if word in _SPLITS}
        if len(named) == 1:
            return named.pop()
    return None


def _walk(folder: Path, left_out: dict[str, list[AnyFile]]) -> Iterator[Path]:
    for inner, folders, names in os.walk(folder, onerror=_refuse_folder):
        for name in folders:
            if Path(inner, name).is_symlink():
                left_out.setdefault(_LINKS, []).append(Path(inner, name))
        for name in names:
            path = Path(inner, name)
            if _is_hidden(path.relative_to(folder).parts):
                left_out.setdefault(_HIDDEN, []).append(path)
            elif kind_of(name) is None:
                left_out.setdefault(_OTHER, []).append(path)
            elif path.exists() and not path.is_file():  # a pipe would be waited for
                left_out.setdefault(_NOT_PLAIN, []).append(path)
            else:
                yield path


def _is_hidden(parts: Sequence[str]) -> bool:
    """Returns whether a glob would pass over a file, for its own name or a folder's: in there are
    copies that a program keeps for itself, as of notebooks (.ipynb_checkpoints).
    """
    return any(part.startswith(".") for part in parts)


def _refuse_folder(error: OSError) -> None:
    raise UsageError(f"{error.filename}: {error.strerror}") from error


def describe(source: str, left_out: dict[str, list[AnyFile]]) -> str:
    """Returns what to say of the files of a source that are left out."""
    count = sum(map(len, left_out.values()))
    groups = "; ".join(f"{_listed(files, source)} ({reason})" for reason, files in left_out.items())
    return f"skipped {count:,} file{'s' * (count > 1)}: {groups}"


def folders_of_split(files: Sequence[AnyFile]) -> list[str]:
    """Returns the folders in which files are named as those of a split, by name."""
    named = [file for file in files if _split_of(file, None) is not None]
    return sorted({str(file).rpartition("/")[0] for file in named})


def _listed(files: Sequence[AnyFile], folder: str = "") -> str:
    if len(files) <= _NAMED:
        return ", ".join(_relative(file, folder) for file in files)
    counts = Counter(file.suffix.lower() or "without an ending" for file in files)
    common = counts.most_common(_NAMED)
    listed = [f"{count:,} {ending}" for ending, count in common]
    if rest := len(files) - sum(count for _, count in common):
        listed.append(f"{rest:,} others")
    return ", ".join(listed)


def _relative(file: AnyFile, folder: str) -> str:
    if isinstance(file, RemoteFile):
        return str(file).removeprefix(f"{folder.rstrip('/')}/")
    return str(file.relative_to(folder) if folder and file.is_relative_to(folder) else file)
