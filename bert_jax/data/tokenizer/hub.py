"""Resolves names of the Hugging Face Hub in the local cache. Nothing is downloaded."""

import re
import shlex
from pathlib import Path

from bert_jax.progress import note_once

# OWNER/MODEL, or MODEL (huggingface_hub.utils.validate_repo_id).
_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]*[A-Za-z0-9_]")
# The files of a model that are read: .json, .safetensors and .txt; others are for other frameworks.
# It is one pattern, because versions of `hf` before 1.0 use the last one only.
_READ = "*.[jst]*"
_OPTION = "--"  # an option of the command `hf`
_HUB_DATA = "hf://datasets/"
# The path of a data set's file in the cache: name, revision, and the path in the data set.
_CACHED_DATA = re.compile(r".*/datasets--([^/]+)/snapshots/([^/]+)(/.*)?")
# Paths of TensorFlow data sets, and the names of these data sets on the hub.
_DATA_SETS = {
    "tfds:glue/": "nyu-mll/glue",
    "tfds:squad/v1": "rajpurkar/squad",
    "tfds:squad/v2": "rajpurkar/squad_v2",
}
# Files that torch unpickles, which executes their content.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def located(path: str | Path) -> Path:
    """Returns a path if it exists, else the cached snapshot of that name, else the path."""
    path = Path(path)
    if path.exists() or not _is_name(path):
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(str(path), local_files_only=True))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError):
        return path
    note_once(f"{path} is read from the local Hugging Face cache: {found}")
    return found


def advice(path: str | Path) -> str:
    """Returns the fix for an error about a missing path; begins with "; "."""
    # A plain word is more likely a typing error than a model. With a folder, it is a local path.
    is_path = "/" in str(path) and Path(path).parent.exists()
    if not _is_name(Path(path)) or is_path or not {"-", "/"} & {*str(path)}:
        return ""
    name = shlex.quote(str(path))
    return (
        f"; for a model of the hub: hf download {name} {_OPTION}local-dir {name} "
        f"{_OPTION}include '{_READ}'"
    )


def pickle_advice(*paths: str | Path) -> str:
    """Returns why pickled files are not read, and the command that converts them; "" if the first
    of `paths`, the files of one model, is not pickled.
    """
    first = Path(paths[0])
    if first.suffix not in PICKLES:
        return ""
    new, files = str(first.with_name("model.safetensors")), [str(path) for path in paths]
    return (
        f"{', '.join(files)} {'is' if len(files) == 1 else 'are'} pickled, and pickles are never "
        "read, since loading one can execute code; if you trust the source, convert the weights "
        "with torch: python -c "
        f"\"import torch, safetensors.torch as s; found = [torch.load(f, map_location='cpu', "
        f"weights_only=True) for f in {files!r}]; "
        # Tied tensors share memory, which safetensors rejects.
        "s.save_file({n: t.clone().contiguous() for each in found for n, t in each.items()}, "
        f'{new!r})", with config.json and the tokenizer in {first.parent}, and name that directory'
    )


def name_of(source: str | None) -> str | None:
    """Returns the hub's name of a run's initial checkpoint; None for a local path."""
    return source if source is not None and located(source) != Path(source) else None


def source_name(source: str) -> str:
    """Returns a source's name for publication: an address unchanged; the file or folder name of a
    path, or hf://datasets/OWNER/NAME@REVISION/FILE for a path in the hub's cache.
    """
    if re.match(r"[a-z]+:", source):
        return source
    if cached := _CACHED_DATA.fullmatch(str(Path(source).absolute())):
        name, revision, file = cached.groups(default="")
        return f"{_HUB_DATA}{name.replace('--', '/')}@{revision}{file}"
    return Path(source).name


def data_set_of(name: str) -> str | None:
    """Returns the hub's name of the data set of a `source_name`, None if it has none."""
    for start in (_HUB_DATA, "hf:"):
        if name.startswith(start):
            owner, *rest = name.removeprefix(start).partition("@")[0].split("/")
            return "/".join([owner, *rest[:1]])
    return next((found for start, found in _DATA_SETS.items() if name.startswith(start)), None)


def _is_name(path: Path) -> bool:
    return bool(_NAME.fullmatch(str(path))) and path.suffix not in PICKLES
