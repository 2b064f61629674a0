"""Documents of somebody else's: read where they are plain files, and copied without their links."""

import os

import pytest

from bert_jax import files, strict_json
from bert_jax.errors import UsageError


def test_what_has_no_end_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("zero.json", "pipe.json"):
        with pytest.raises(UsageError, match=f"{name} is no plain file"):
            strict_json.load(tmp_path / name)
    (tmp_path / "a.json").write_text("[1]")
    assert strict_json.load(tmp_path / "a.json") == [1]
    with pytest.raises(UsageError, match=r"a.json is damaged: it holds no JSON object"):
        strict_json.load_object(tmp_path / "a.json")
    monkeypatch.setattr(files, "LONGEST_DOCUMENT", 2)
    with pytest.raises(UsageError, match=r"a.json has 3 bytes, of at most 2"):
        strict_json.load(tmp_path / "a.json")


def test_a_folder_is_copied_without_what_lies_elsewhere(tmp_path):
    source = tmp_path / "tokenizer"
    source.mkdir()
    (source / "vocab.txt").write_text("a")
    files.copy_files(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "vocab.txt").read_text() == "a"
    (source / "notes.txt").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"tokenizer/notes.txt is no plain file; take it away"):
        files.copy_files(source, tmp_path / "other")
    assert not (tmp_path / "other" / "notes.txt").exists()
