"""The files that a source means, and those of a folder that are left out."""

import glob
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.corpus.source_stream import PACKED
from bert_jax.errors import UsageError
from bert_jax.registry import FORMATS

# Files of a group that are named one by one; of more, how many there are of each ending.
_NAMED = 8

_HIDDEN = "hidden"
_OTHER = "of no kind that is read"
_NOT_PLAIN = "not plain files"
_LINKS = "links to folders"
_FOLDERS = "folders, of which a glob takes none"


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


def find_files(source: str) -> tuple[list[Path], dict[str, list[Path]]]:
    """Returns the files of a source by name, and those that are left out, by the reason.

    A folder is read with its subfolders. Raises UsageError if there is no file to read, and for a
    file of another kind that was named or matches a glob.
    """
    path = Path(source)
    left_out: dict[str, list[Path]] = {}
    if path.is_dir():
        files = list(_walk(path, left_out))
        if not files:
            seen = f": {describe(source, left_out)}" if left_out else ""
            raise UsageError(f"{source}: no {kinds()} file in this folder{seen}")
        return sorted(files), {reason: sorted(names) for reason, names in left_out.items()}
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
                "input); tfds:NAME[/CONFIG][:SPLIT]; or docs:"
            )
    if others := [file for file in files if kind_of(file.name) is None]:
        raise UsageError(f"{_listed(others)}: not one of {kinds()}; rename or convert it")
    return files, left_out


def _walk(folder: Path, left_out: dict[str, list[Path]]) -> Iterator[Path]:
    for inner, folders, names in os.walk(folder, onerror=_refuse_folder):
        for name in folders:
            if Path(inner, name).is_symlink():
                left_out.setdefault(_LINKS, []).append(Path(inner, name))
        for name in names:
            path = Path(inner, name)
            if name.startswith("."):
                left_out.setdefault(_HIDDEN, []).append(path)
            elif kind_of(name) is None:
                left_out.setdefault(_OTHER, []).append(path)
            elif path.exists() and not path.is_file():  # a pipe would be waited for
                left_out.setdefault(_NOT_PLAIN, []).append(path)
            else:
                yield path


def _refuse_folder(error: OSError) -> None:
    raise UsageError(f"{error.filename}: {error.strerror}") from error


def describe(source: str, left_out: dict[str, list[Path]]) -> str:
    """Returns what to say of the files of a source that are left out."""
    count = sum(map(len, left_out.values()))
    groups = "; ".join(
        f"{_listed(files, Path(source))} ({reason})" for reason, files in left_out.items()
    )
    return f"skipped {count:,} file{'s' * (count > 1)}: {groups}"


def _listed(files: list[Path], folder: Path | None = None) -> str:
    if len(files) <= _NAMED:
        return ", ".join(_relative(file, folder) for file in files)
    counts = Counter(file.suffix.lower() or "without an ending" for file in files)
    common = counts.most_common(_NAMED)
    listed = [f"{count:,} {ending}" for ending, count in common]
    if rest := len(files) - sum(count for _, count in common):
        listed.append(f"{rest:,} others")
    return ", ".join(listed)


def _relative(file: Path, folder: Path | None) -> str:
    return str(file.relative_to(folder) if folder and file.is_relative_to(folder) else file)
