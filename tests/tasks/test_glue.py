"""GLUE and SQuAD from TFDS, built on disk by its own builders from the files we also read."""

import json
import os

import numpy as np
import pytest

from bert_jax.data.tasks import squad
from bert_jax.errors import UsageError
from bert_jax.tasks import glue

pytest.importorskip("tensorflow_datasets", reason="needs the 'tfds' extra")
pytestmark = pytest.mark.filterwarnings("ignore")  # of tensorflow's own imports

# Folders and columns as GLUE's archives have them.
_FOLDERS = {"sst2": "SST-2", "cola": "CoLA", "stsb": "STS-B", "qqp": "QQP", "mnli": "MNLI",
            "qnli": "QNLI", "rte": "RTE", "wnli": "WNLI"}  # fmt: skip
_CONTEXT = "The Normans came to Normandy in the 10th century. They were Norse."


def glue_files(folder, task: glue.GlueTask) -> None:
    """Every file of the task's folder: quotes, accents and each of its labels."""
    spec = task.spec
    labels = spec.labels or ("0.0", "2.4", "5.000")
    names = {"train.tsv", "test.tsv", *(file for _, file, _ in task.dev)}
    if spec.name == "mnli":
        names |= {"test_matched.tsv", "test_mismatched.tsv"}
    columns = task.columns or (*spec.text_columns, spec.label_column)
    folder.mkdir(parents=True)
    for name in names:
        has_header = task.columns is None or name == "test.tsv"
        lines = ["\t".join(columns)] if has_header else []
        for number, label in enumerate(labels):
            texts = [f'{name} "{number} ({i}) é' for i in range(len(spec.text_columns))]
            row = dict(zip(spec.text_columns, texts, strict=True)) | {spec.label_column: label}
            lines.append("\t".join(row.get(column, "-") for column in columns))
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def squad_files(folder) -> None:
    answer = {"text": "Normandy", "answer_start": _CONTEXT.index("Normandy")}
    asked = [
        {"id": "a", "question": "Where?", "answers": [answer, answer], "is_impossible": False},
        {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    folder.mkdir()
    for version, questions in (("v1.1", asked[:1]), ("v2.0", asked)):
        paragraphs = [{"context": _CONTEXT, "qas": questions}]
        text = json.dumps({"data": [{"title": "Normans", "paragraphs": paragraphs}]})
        for split in ("train", "dev"):
            (folder / f"{split}-{version}.json").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`files/` as published, `tfds/` as TFDS keeps them; only the download is left out."""
    import tensorflow_datasets as tfds

    home = tmp_path_factory.mktemp("tfds")
    files = home / "files"

    def local(self, addresses):
        if isinstance(addresses, dict):
            return {key: str(files / "SQuAD" / os.path.basename(at))
                    for key, at in addresses.items()}  # fmt: skip
        return str(files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds.download.DownloadManager, "download_and_extract", local)
        patch.setenv("TQDM_DISABLE", "1")
        for name, place in _FOLDERS.items():
            glue_files(files / place, glue.NAMED[name])
            tfds.builder(f"glue/{name}", data_dir=home / "tfds").download_and_prepare()
        squad_files(files / "SQuAD")
        for version in ("v1.1", "v2.0"):
            tfds.builder(f"squad/{version}", data_dir=home / "tfds").download_and_prepare()
    return home


@pytest.fixture(autouse=True)
def data_dir(folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(folder / "tfds"))


@pytest.mark.parametrize("name", _FOLDERS)
def test_a_task_of_glue(folder, name):
    task = glue.NAMED[name]
    splits = [("train.tsv", "train"), *(rest for _, *rest in task.dev)]
    for file, split in splits:
        from_files = task.read_split(str(folder / "files" / _FOLDERS[name]), file, split)
        from_tfds = task.read_split(f"tfds:glue/{task.spec.name}", file, split)
        rows = [
            # A score is a float32 there.
            sorted((r.texts, r.label if task.spec.labels else np.float32(r.label)) for r in found)
            for found in (from_files, from_tfds)
        ]
        assert rows[0] == rows[1] and len(rows[0]) == (len(task.spec.labels) or 3)


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
def test_squad(folder, version):
    for file, split in (("train", "train"), ("dev", "validation")):
        from_files = squad.read_questions(folder / "files" / "SQuAD" / f"{file}-{version}.json")
        from_tfds = squad.read_questions(f"tfds:squad/{version}:{split}")
        facts = [
            sorted((q.id, q.question, q.context, q.answers, q.starts) for q in found)
            for found in (from_files, from_tfds)
        ]
        assert facts[0] == facts[1] and len(facts[0]) == (1 if version == "v1.1" else 2)


def test_another_data_set_is_refused():
    with pytest.raises(UsageError, match=r"no column 'sentence', only .* Use tfds:glue/sst2"):
        glue.NAMED["sst2"].read_split("tfds:glue/rte", "train.tsv", "train")
