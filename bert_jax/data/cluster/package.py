"""The package that workers install: this package, with the requirements of its stages.

Workers read and encode text and do not need jax or TensorFlow. The packages that decide the bytes
of a corpus have the same versions as in this environment.

    python -m bert_jax.data.cluster.package FOLDER [EXTRA ...]
"""

import base64
import hashlib
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import requires, version
from pathlib import Path

# Packages that the stages import. Those in the first list decide the bytes of a corpus.
_DECISIVE = ("tokenizers", "sentencex", "sentencepiece")
_OTHERS = ("numpy", "fsspec", "filelock", "huggingface-hub", "msgspec", "protobuf")
_EXTRAS = ("crawl", "formats")
_EPOCH = (2020, 1, 1, 0, 0, 0)


def write_wheel(folder: Path, extras: Sequence[str] = ()) -> Path:
    """Writes the wheel to a folder and returns its path. Equal code gives equal bytes.

    `extras` are the extras of bert-jax that the sources and the output need; the extra for file
    formats is always included.
    """
    here = Path(__file__).parents[2]
    name, number = f"{here.name}-{version('bert-jax')}", version("bert-jax")
    info = f"{name}.dist-info"
    files = {
        f"{here.name}/{file.relative_to(here).as_posix()}": file.read_bytes()
        for file in sorted(here.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }
    needed = "\n".join(f"Requires-Dist: {each}" for each in _needed((*_EXTRAS, *extras)))
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: bert-jax\nVersion: {number}\n{needed}\n".encode()
    )
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return wheel


def _needed(extras: Sequence[str]) -> Iterator[str]:
    for name in _DECISIVE:
        yield f"{name}=={version(name)}"
    for requirement in requires("bert-jax") or ():
        named, _, condition = (part.strip() for part in requirement.partition(";"))
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", condition)
        if extra[1] in extras if extra else re.split(r"[^\w-]", named)[0] in _OTHERS:
            yield named


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    print(write_wheel(Path(sys.argv[1]), sys.argv[2:]))
