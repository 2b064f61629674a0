import shutil
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest

from bert_jax.data.sources import documentation as module
from bert_jax.data.sources.documentation import documentation, prose
from bert_jax.data.sources.read import read_documents
from bert_jax.errors import UsageError


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A Python with one topic, one library module and one package, and files to skip."""
    library, packages = tmp_path / "lib", tmp_path / "site"
    files = {
        library / "pydoc_data/topics.py": (
            "topics = {'b': 'The second topic is about names.\\n',"
            "'a': 'A first topic\\n*************\\n\\nThe first topic is about loops.\\n'}"
        ),
        library / "json/__init__.py": '"""Reads and writes the JSON format of text."""',
        library / "test/test_json.py": '"""Tests of the JSON module stand in here."""',
        library / "site-packages/numpy.py": '"""Not of the library but of a package."""',
        packages / "numpy/core.py": (
            '"""Arrays of numbers and what to do with them."""\n'
            "class Array:\n"
            '    """Holds numbers of one type, in a grid."""\n'
            "    def sum(self):\n"
            '        """Reads and writes the JSON format of text."""\n'
            "    def mean(self):\n"
            '        "The mean of all numbers, over an axis."\n'
            "if True:\n"
            "    def f():\n"
            '        """This one is defined on some platforms only."""\n'
            "pattern = '\\d'\n"
            'raise SystemExit("imported")\n'
        ),
        packages / "numpy/tests/core.py": '"""A test is no documentation of anything."""',
        packages / "numpy/python2.py": '"""This is of an older grammar."""\nprint "x"\n',
        packages / "other/core.py": '"""This package is not on the list of packages."""',
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (packages / "numpy/__init__.py").touch()
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    monkeypatch.setattr(sys, "path", [str(packages)])
    module.documentation.cache_clear()
    yield tmp_path
    module.documentation.cache_clear()


def test_one_document_per_topic_or_module_without_repeated_paragraphs(machine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(read_documents(["docs:"]))
    assert found == [
        ("The first topic is about loops.",),
        ("The second topic is about names.",),
        ("Reads and writes the JSON format of text.",),
        (
            "Arrays of numbers and what to do with them.",
            "Holds numbers of one type, in a grid.",
            "The mean of all numbers, over an axis.",
            "This one is defined on some platforms only.",
        ),
    ]


def test_a_machine_without_source_files_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(sys, "path", [])
    module.documentation.cache_clear()
    with pytest.raises(UsageError, match=r"docs:.*without source files"):
        list(read_documents(["docs:"]))


def test_the_library_of_this_machine(tmp_path, monkeypatch):
    """A part of the standard library: all of it takes a hundred times as long."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in ("pydoc_data", "asyncio", "email", "logging", "unittest"):
        shutil.copytree(library / name, tmp_path / name)
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(module, "_PACKAGES", ())
    module.documentation.cache_clear()
    documents = documentation()
    module.documentation.cache_clear()
    paragraphs = [paragraph for document in documents for paragraph in document]
    assert len(documents) > 100
    assert sum(len(paragraph.split()) for paragraph in paragraphs) > 40_000
    assert len({paragraph.casefold() for paragraph in paragraphs}) == len(paragraphs)
    text = "\n".join(paragraphs)
    assert ">>>" not in text and "```" not in text and ":func:`" not in text
    assert all(paragraph == paragraph.strip() and paragraph for paragraph in paragraphs)
    assert "\n" not in "".join(paragraphs)


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "The first line goes on\nin a second one.\n\nAnother paragraph\nstands here by itself.",
            ["The first line goes on in a second one.", "Another paragraph stands here by itself."],
        ),
        # A doctest, with its output; code fences; literal blocks; directives with their bodies.
        (
            "It adds up two numbers:\n\n>>> add(1, 2)\nThe sum of these is three.\n\n"
            "That is all of it.",
            ["It adds up two numbers:", "That is all of it."],
        ),
        (
            "An example of it follows::\n\n    The code is not here.\n\n"
            "    Nor is this code here.\n\n"
            "And after it comes text.",
            ["An example of it follows:", "And after it comes text."],
        ),
        (
            ".. math::\n\n    The sum of all things here.\n\n"
            ".. note::\n\n    The body of a note stays in.",
            ["The body of a note stays in."],
        ),
        # Headings, rules, tables.
        ("A heading of several words.\n-----------------------\nText below it comes here.",
         ["Text below it comes here."]),
        ("| The cells of a table. | Are not in here. |\n\nThe text after it is in.",
         ["The text after it is in."]),
        # Parameters: names and types go, descriptions stay, each a paragraph.
        (
            "Parameters\n----------\nx : array_like, optional\n"
            "    The array that is to be sorted.\n"
            "axis, order : int\n    The axis along which to sort,\n    or none at all.",
            ["The array that is to be sorted.", "The axis along which to sort, or none at all."],
        ),
        (":param x: The number that is to be rounded.\n:returns: The number nearest to it.",
         ["The number that is to be rounded.", "The number nearest to it."]),
        ("Things to be done:\n\n- Read the whole file first.\n* Then close it without delay.",
         ["Read the whole file first.", "Then close it without delay."]),
        # Markup.
        (
            "See :func:`~os.path` and :class:`the list <list>`, ``None`` or `x`, in "
            "**bold** and *italic* [1]_ letters.",
            ["See os.path and the list, None or x, in bold and italic letters."],
        ),
        # Not prose: too short, no sentence, code, licences.
        ("A list of words without an end", []),
        ("x = f(y)[0] + g(z) ** 2 if a else {b: c}.", []),
        ("Copyright 2018 The Authors. All rights reserved by them.", []),
    ],
)  # fmt: skip
def test_prose(text, expected):
    assert prose(text) == expected
