"""Control characters in texts and names are escaped on a terminal."""

import io
import sys
from types import SimpleNamespace

import pytest

from bert_jax.__main__ import main
from bert_jax.cli import output
from bert_jax.errors import shown
from bert_jax.progress import Progress, note, say

_HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\x9bc\u202ed\u2028e\nbert-jax: all is well"
_SHOWN = r"a\x1b]0;title\x07\x1b[2Jb\x9bc\u202ed\u2028e\nbert-jax: all is well"
# Joiners of Persian and Hindi, marks, a family of emojis, Hebrew with a mark of direction.
_WORDS = "می\u200cخواهم क्\u200dष สวัสดี e\u0301 👨\u200d👩 עברית\u200f! so\u00adft no\u00a0break"


def test_control_characters_are_escaped():
    assert shown(_HOSTILE) == _SHOWN == shown(_SHOWN)
    assert shown(_WORDS) == _WORDS


@pytest.mark.parametrize("tell", [note, say])
def test_a_message_is_one_line(tell, capsys):
    output.show_messages({})
    tell(_HOSTILE)
    assert capsys.readouterr() == ("", _SHOWN + "\n")


def test_lines_and_tables_of_stdout(capsys):
    output.tell(_HOSTILE)
    assert capsys.readouterr().out == _SHOWN + "\n"
    output.table("t\x1b\nforged", ["c\x9b", "two"], [["\x1b[2J", _WORDS], ["one\nmore", ""]])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == r"t\x1b\nforged" and r"c\x9b" in lines[1]
    assert r"\x1b[2J" in lines[3] and _WORDS in lines[3]
    assert "one" in lines[4] and "more" in lines[5] and len(lines) == 7
    # A text without blanks is not cut.
    for whole in ("马吃干草" * 40, "runs/" + "a-long-directory-name/" * 9):
        output.table("t", ["c", "two"], [[whole, "1"]])
        lines = capsys.readouterr().out.splitlines()[4:-1]
        assert "".join(line.split("│")[1].strip() for line in lines) == whole
    # A title that is longer than its table or the terminal is one line.
    output.table(long := "runs/demo/workdir, step 1,800 " * 5, ["c"], [["1"]])
    assert capsys.readouterr().out.splitlines()[0] == long


def test_a_bar_on_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with Progress("[red]x\x1b]0;", total=1) as bar:
        bar.describe = lambda: "y\x1b]0;"
        bar.print("z\x1b]0;")
        say("w\x1b]0;")
        bar.advance()
    said = terminal.getvalue()
    assert "\x1b]" not in said and r"[red]x\x1b]0;" in said
    assert all(rf"{letter}\x1b]0;" in said for letter in "yzw")


def test_a_file_name_with_a_line_break(tmp_path, capsys):
    """Each bad file is one line."""
    (texts := tmp_path / "texts").mkdir()
    for name in ("\x1b[31ma\nbert-jax: b.txt", "c.txt"):
        (texts / name).write_bytes(b"caf\xe9")
    arguments = ["--source", str(texts), "--output-dir", str(tmp_path / "c"), "--workers", "1"]
    assert main(["prepare", *arguments]) == 2
    *_, head, first, second, remedy = capsys.readouterr().err.splitlines()
    assert head == "bert-jax prepare: error: 2 files cannot be read:"
    assert first.startswith(rf"  {texts}/\x1b[31ma\nbert-jax: b.txt, line 1: not UTF-8")
    assert second.startswith(f"  {texts}/c.txt, line 1: not UTF-8")
    assert remedy == "fix them, or skip them with --on-bad-record skip"


def test_an_argument_with_a_line_break(capsys):
    with pytest.raises(SystemExit):
        main(["config", "show", "bert_base", "--no\x1b[2J\nbert-jax:"])
    assert r"--no\x1b[2J\nbert-jax" in capsys.readouterr().err.splitlines()[-1]


def test_paused_time_is_not_in_the_time_left(monkeypatch):
    now = 0.0
    monkeypatch.setattr("bert_jax.progress.time", SimpleNamespace(monotonic=lambda: now))
    bar = Progress("x", total=10)
    bar.advance()
    for seconds in (2.0, 4.0):
        now += seconds
        bar.advance()
        with bar.paused():
            now += 1000.0
    assert bar._seconds_left() == 7 * 3.0
