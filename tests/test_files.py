"""Reading and writing files: pipes, links, full disks."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from bert_jax import files, strict_json
from bert_jax.errors import UsageError
from bert_jax.inference import embed
from bert_jax.interchange import name_map, safetensors_files


def test_a_value_that_is_no_object(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    assert strict_json.load(tmp_path / "a.json") == [1]
    with pytest.raises(UsageError, match=r"a.json is damaged: expected a JSON object"):
        strict_json.load_object(tmp_path / "a.json")


def test_a_link_stays_a_link_and_a_pipe_is_written_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "page").symlink_to(tmp_path / "kept" / "page")
    files.write_whole(tmp_path / "page", "a")
    assert (tmp_path / "page").is_symlink() and (tmp_path / "kept" / "page").read_text() == "a"
    os.mkfifo(pipe := tmp_path / "pipe")
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_whole(pipe, "b")
    assert os.read(reading, 9) == b"b" and pipe.is_fifo()
    os.close(reading)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here plays a full disk")
def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    def fill_a_new_directory():
        with name_map.new_directory(tmp_path / "hf"):
            Path("/dev/full").write_text("a")

    (tmp_path / "a.html.new").symlink_to("/dev/full")
    (tmp_path / "a.npz.new.npz").symlink_to("/dev/full")
    for name, write in (
        ("hf", fill_a_new_directory),
        ("a.html", lambda: files.write_whole(tmp_path / "a.html", "a")),
        ("a.npz", lambda: embed.save(tmp_path / "a.npz", {"vectors": np.zeros((99, 99))})),
    ):
        with pytest.raises(OSError) as found:
            write()
        assert (found.value.errno, found.value.filename) == (errno.ENOSPC, str(tmp_path / name))
    # What was written until then, which may be what fills the disk, is gone.
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_system_stays_that_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        safetensors_files.write_file(tmp_path / "none" / "a", {"a": np.zeros(2, np.float32)})
