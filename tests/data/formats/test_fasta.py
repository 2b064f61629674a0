"""FASTA: each record is a document with its lines joined."""

import gzip

import pytest

from bert_jax.data.sources import document
from bert_jax.data.sources.document import Continuation
from bert_jax.data.sources.read import read_documents
from bert_jax.data.sources.stream import Findings


@pytest.mark.parametrize(
    "content, expected",
    [
        (">a b c\nACGT\nAC\n>d\nGG\n", ["ACGTAC", "GG"]),
        (">a\r\nAC GT\r\n\r\n  AC\r\n>d\r\nGG", ["ACGTAC", "GG"]),  # blanks in blocks of letters
        ("\n\ufeff>a\nacgtn*-\n>empty\n\n>b\nM", ["acgtn*-", "M"]),
        ("", []),
    ],
)
def test_records_are_documents(tmp_path, content, expected):
    content = content.replace("\n\ufeff", "\ufeff")
    for name in ("a.fasta", "A.FA", "a.faa", "a.fna.gz"):
        data = content.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        findings = Findings()
        found = list(read_documents([str(tmp_path / name)], findings=findings))
        assert found == [(sequence,) for sequence in expected]
        assert findings.without_text == ("empty" in content) and not findings.files


def test_a_long_record_is_read_in_parts(tmp_path, monkeypatch):
    """With lines of any length, also longer than one read."""
    monkeypatch.setattr(document, "LONGEST_LINE_BYTES", 50)
    monkeypatch.setattr(document, "LONGEST_DOCUMENT_BYTES", 200)
    sequence = "".join("ACGT"[n * n % 7 % 4] for n in range(1030))
    for width in (10, 60, 2000):
        lines = [sequence[at : at + width] for at in range(0, len(sequence), width)]
        (tmp_path / "a.fa").write_text("\n".join([">x" + "y" * 120, *lines, ">z", "AC"]))
        *parts, last = read_documents([str(tmp_path / "a.fa")])
        assert "".join("".join(part) for part in parts) == sequence and last == ("AC",)
        assert len(parts) > 4 and not isinstance(parts[0], Continuation)
        assert all(isinstance(part, Continuation) for part in parts[1:])
