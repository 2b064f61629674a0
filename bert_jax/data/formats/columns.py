"""The text column of tables in Arrow's memory, which parquet and Arrow files become."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.formats import delimited
from bert_jax.data.formats.records import require_column
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError, brief

_REFUSED = "; `text_field` names another"


def find_column(path: Path, schema: Any, fields: tuple[str, ...]) -> list[str]:
    """Returns the names that lead to the first of `fields` that a schema has: several for a field
    inside of a struct ("doc.text").

    Raises UsageError where it has none, or one that is no text.
    """
    found = next((names for name in fields if (names := _inside(schema, name))), None)
    if found is None:
        require_column(path, schema.names, fields)
        raise AssertionError("a name that the schema has leads somewhere")
    require_column(path, schema.names, (found[0],))
    kind = _type_of(schema, found)
    if not _is_text(kind):
        raise UsageError(
            f"{path}: column {'.'.join(found)!r} is {brief(str(kind))[1:-1]}, not text{_REFUSED}"
        )
    return found


def _type_of(schema: Any, names: list[str]) -> Any:
    """Returns the type of the column, or field of a struct, that `names` lead to."""
    kind = schema.field(names[0]).type
    for name in names[1:]:
        kind = kind.field(name).type
    return kind


def _inside(schema: Any, name: str) -> list[str] | None:
    """Returns the path of a name; a field whose own name has a dot comes before one inside."""
    import pyarrow

    fields = [schema.field(i) for i in range(len(schema))] if hasattr(schema, "names") else schema
    kinds = {field.name: field.type for field in fields}
    if name in kinds:
        return [name]
    for at, character in enumerate(name):
        kind = kinds.get(name[:at]) if character == "." else None
        if (
            kind is not None
            and pyarrow.types.is_struct(kind)
            and (rest := _inside([kind.field(i) for i in range(kind.num_fields)], name[at + 1 :]))
        ):
            return [name[:at], *rest]
    return None


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    words = kind.value_type if types.is_dictionary(kind) else kind
    is_string = types.is_string(words) or types.is_large_string(words)
    return is_string or types.is_string_view(words) or _is_binary(kind)


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    words = kind.value_type if types.is_dictionary(kind) else kind
    is_binary = types.is_binary(words) or types.is_large_binary(words)
    return is_binary or types.is_binary_view(words)


@contextlib.contextmanager
def damage_named(path: Path, kind: str) -> Iterator[None]:
    """Raises UsageError, with the `kind` of the file, where pyarrow finds it damaged."""
    # Arrow's own allocator keeps some 20 MB of what it gave back.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's own
        reason = brief(str(error).partition("\n")[0])[1:-1] or "it asks for too much memory"
        raise UsageError(f"{path}: damaged {kind} file ({reason}); fetch it again") from error


def documents_of(
    path: Path, stream: SourceStream, batches: Iterable[Any], names: list[str]
) -> Iterator[Document]:
    """Yields the documents of batches of rows, one after the other."""
    first = 1
    for batch in batches:
        yield from _documents_of_batch(path, stream, batch, names, first)
        first += len(batch)


def _documents_of_batch(
    path: Path, stream: SourceStream, batch: Any, names: list[str], first: int
) -> Iterator[Document]:
    longest = delimited.LONGEST_RECORD_BYTES
    # Strings are UTF-8 by the format of the file, whatever texts beside it are written in.
    encoding = stream.reading.encoding if _is_binary(_type_of(batch.schema, names)) else None
    for number, value in enumerate(_bytes_of(batch.column(names[0]), names[1:]), first):
        if value is not None and len(value) > longest:
            stream.refuse(
                UsageError(
                    f"{path}, row {number}: longer than {longest >> 20} MiB; a row holds one "
                    "document: split this one"
                )
            )
            continue
        try:
            text = None if value is None else value.decode(encoding or "utf-8")
        except UnicodeDecodeError as error:
            kind = encoding or "UTF-8"
            field = ".".join(names)
            stream.refuse(
                UsageError(f"{path}, row {number}: {field!r} is not {kind} ({error.reason})")
            )
            continue
        if found := stream.document(text):
            yield found


def _bytes_of(array: Any, names: list[str]) -> Iterable[bytes | None]:
    """Returns a column of text, or the field of a struct that `names` lead to, as bytes: text that
    is not UTF-8 is then the error of one row.

    A word of a dictionary is looked up for each row: all rows at once might not fit into memory.
    """
    import pyarrow

    array.validate()
    for name in names:
        # Flattened: where the struct itself is null, its fields are.
        array = array.flatten()[array.type.get_field_index(name)]
    if not pyarrow.types.is_dictionary(array.type):
        return _checked(array).to_pylist()
    words = _checked(array.dictionary)
    # Numbers that lead out of the dictionary are refused here.
    numbers = pyarrow.DictionaryArray.from_arrays(array.indices, words).indices
    places = (number.as_py() for number in numbers)
    return (None if place is None else words[place].as_py() for place in places)


def _checked(array: Any) -> Any:
    """Returns an array of text or bytes as bytes.

    Raises ArrowInvalid where a length or a place in it leads out of it: they are what the file
    says, and to follow such a one would end the process.
    """
    import pyarrow

    as_bytes = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    array = array.view(as_bytes.get(array.type, array.type))
    array.validate(full=True)
    return array
