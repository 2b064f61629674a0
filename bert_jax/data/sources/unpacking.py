"""Decompresses files as streams. Damage is always detected, also in a file of many frames."""

import bz2
import functools
import gzip
import io
import lzma
from collections.abc import Callable
from typing import IO, Any


class _Frames(io.RawIOBase):
    """The content of a file of frames; each frame gets a new decompressor.

    Python's readers of bz2 and xz treat a damaged frame header, or zero bytes before it, as the end
    of the file, and silently drop the rest. Here a file that ends inside a frame, or continues with
    other data, raises EOFError.
    """

    _CHUNK = 1 << 14  # compressed bytes; for zstd at its highest ratio, hundreds of megabytes

    def __init__(
        self,
        file: IO[bytes],
        new: Callable[[], Any],
        error: type[Exception],
        *,
        limit: tuple[int, ...] = (),
        padding: bytes = b"",
    ):
        """`new` makes a decompressor, which raises `error` for bytes that are not one of its frames
        and, if supported, accepts the `limit` of a result. `padding` may follow a frame.
        """
        self._file, self._new, self._error = file, new, error
        self._limit, self._padding = limit, padding
        self._frame: Any = new()
        self._packed = b""
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting:
            packed = b""
            if self._frame is None or getattr(self._frame, "needs_input", True):
                packed = self._packed or self._file.read(self._CHUNK)
                self._packed = b""
                if not packed and self._frame is None:
                    return 0
                if not packed:
                    raise EOFError("it ends inside a frame")
            if self._frame is None:
                packed = packed.lstrip(self._padding)
                if not packed:
                    continue
                self._frame = self._new()
            try:
                self._waiting = memoryview(self._frame.decompress(packed, *self._limit))
            except self._error as error:
                raise EOFError(str(error)) from error
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._waiting))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return size


def _bz2(file: IO[bytes]) -> Any:
    return _Frames(file, bz2.BZ2Decompressor, OSError, limit=(1 << 20,), padding=b"\0")


def _xz(file: IO[bytes]) -> Any:
    # In the older format, zero bytes would be a complete file without content.
    new = functools.partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
    return _Frames(file, new, lzma.LZMAError, limit=(1 << 20,), padding=b"\0")


def _zstd(file: IO[bytes]) -> Any:
    import zstandard  # pyright: ignore[reportMissingImports]

    # The largest window, which `zstd --long=31` writes.
    new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    return _Frames(file, new, zstandard.ZstdError)


# Suffix of a compressed file -> the function that decompresses a stream, and the program.
_UNPACKERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": _bz2,
    ".xz": _xz,
    ".zst": _zstd,
}
TOOLS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
PACKED = tuple(TOOLS)


def unpacked(file: Any, suffix: str) -> Any:
    """Returns the decompressed content of a file; `suffix` "" means no compression.

    Reading a damaged file raises the error of the library, or EOFError. An empty file, such as a
    failed download, raises the error here.
    """
    if not suffix:
        return file
    packed = io.BufferedReader(file)
    if not packed.peek(1):
        raise EOFError("it is empty")
    return _UNPACKERS[suffix](packed)
