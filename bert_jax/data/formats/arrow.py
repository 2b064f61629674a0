"""Arrow files, as `datasets` saves them to disk: one column holds a document a row."""

from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.formats.columns import damage_named, documents_of, find_column
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError

# How the kind begins that is read in places; the other one is a stream.
_FILE = b"ARROW1"


def read_arrow(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of an Arrow file or stream: the column `text_field`. One batch of rows
    is held at a time, as large as the writer made it.
    """
    from pyarrow import ipc

    with damage_named(path, "Arrow"):
        if stream.peek(6)[:6] == _FILE:
            if not stream.seekable():
                raise UsageError(f"{path}: unpack it first; this kind of file is read in places")
            file = ipc.open_file(stream)
            batches = map(file.get_batch, range(file.num_record_batches))
            schema = file.schema
        else:
            batches = ipc.open_stream(stream)
            schema = batches.schema
        names = find_column(path, schema, stream.reading.fields)
        yield from documents_of(path, stream, batches, names)
