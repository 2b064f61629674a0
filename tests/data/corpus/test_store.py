import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import SPLITS, fingerprint, open_corpus
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import DataDamaged, UsageError

WORDS = ["apple", "bread", "cloud", "door", "earth", "fire", "glass", "house"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory, vocabulary):
    """A corpus with several shards per split, and its documents: sentences of WORDS."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = np.random.default_rng(0)
    documents = [
        [
            " ".join(draw.choice(WORDS, draw.integers(1, 9))).capitalize() + "."
            for _ in range(draw.integers(1, 6))
        ]
        for _ in range(200)
    ]
    source = folder / "source.txt"
    source.write_text("\n\n".join(" ".join(document) for document in documents))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.data.corpus.job.PART_BYTES", 200)
        patch.setattr("bert_jax.data.corpus.job.SHARD_TOKENS", 500)
        prepare(
            [str(source)],
            folder / "corpus",
            tokenizer=str(vocabulary),
            validation_fraction=0.2,
            workers=1,
        )
    return folder / "corpus", documents


@pytest.fixture
def corpus_folder(built, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(built[0], tmp_path / "corpus"))


def read_back(split, tokenizer):
    """Documents as lists of sentences of tokens, from the definition of `Split`."""
    documents = []
    for first, end in zip(split.document_starts[:-1], split.document_starts[1:], strict=True):
        sentences = []
        for sentence in range(first, end):
            start, stop = split.sentence_starts[sentence : sentence + 2]
            shard = int(np.searchsorted(split.shard_starts, start, side="right")) - 1
            assert stop <= split.shard_starts[shard + 1]
            ids = split.shards[shard][start - split.shard_starts[shard] :][: stop - start]
            sentences.append(" ".join(tokenizer.tokens(ids.tolist())))
        documents.append(sentences)
    return documents


def test_a_written_corpus_is_read(built):
    folder, documents = built
    corpus = open_corpus(folder, verify=SPLITS)
    tokenizer = load_tokenizer(folder / "tokenizer")
    expected = {
        tuple(sentence.lower().replace(".", " .") for sentence in document)
        for document in documents
    }
    found = {
        split: [tuple(document) for document in read_back(getattr(corpus, split), tokenizer)]
        for split in SPLITS
    }
    assert {*found["train"], *found["validation"]} == expected
    assert set(found["train"]).isdisjoint(found["validation"])
    assert len(found["train"]) + len(found["validation"]) == len(expected)
    assert corpus.vocab_size == len(VOCABULARY)
    assert corpus.tokenizer_hash == tokenizer.hash
    assert corpus.special == tokenizer.special


def test_types_and_starts(built):
    corpus = open_corpus(built[0])
    for split in (corpus.train, corpus.validation):
        assert len(split.shards) > 1
        for shard in split.shards:
            assert shard.dtype == np.uint16 and shard.ndim == 1
            assert isinstance(shard, np.memmap)
        sizes = [len(shard) for shard in split.shards]
        assert split.shard_starts.tolist() == [0, *np.cumsum(sizes)]
        counts = corpus.manifest["counts"][split.name]
        for starts, last, size in [
            (split.sentence_starts, counts["tokens"], counts["sentences"]),
            (split.document_starts, counts["sentences"], counts["documents"]),
        ]:
            assert starts[:].dtype == np.int64 and len(starts) == size + 1
            assert starts[0] == 0 and starts[-1] == last and (np.diff(starts) > 0).all()
        # Every shard begins with a document.
        sentences, documents = split.starts()
        assert np.isin(split.shard_starts[:-1], sentences[documents]).all()


FILES = ["train/00001.tokens.npy", "train/00000.sentences.npy", "validation/00001.documents.npy"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["truncated", "missing", "longer"])
def test_a_shard_of_the_wrong_size_is_named(corpus_folder, name, damage):
    file = corpus_folder / name
    data = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(data[:-2] if damage == "truncated" else data + b"x")
    with pytest.raises(DataDamaged) as caught:
        open_corpus(corpus_folder)
    assert caught.value.exit_code == 4
    assert str(file) in str(caught.value) and "run prepare again" in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_altered_bytes_are_found_by_checksum(corpus_folder, name):
    file = corpus_folder / name
    data = bytearray(file.read_bytes())
    data[-6] ^= 1
    file.write_bytes(data)
    open_corpus(corpus_folder)
    with pytest.raises(DataDamaged) as caught:
        open_corpus(corpus_folder, verify=SPLITS)
    assert str(file) in str(caught.value)
    # Files that are not verified are not read.
    open_corpus(corpus_folder, verify=set(SPLITS) - {name.split("/")[0]})


def test_a_shard_that_is_not_an_array_is_named(corpus_folder):
    file = corpus_folder / "train/00000.tokens.npy"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DataDamaged, match="is not a NumPy array"):
        open_corpus(corpus_folder)


@pytest.mark.parametrize(
    "tokens",
    [
        [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]],  # altered, with the same size
        VOCABULARY[:-3],  # smaller than the ids
        None,  # missing
    ],
)
def test_another_tokenizer_is_rejected(corpus_folder, tmp_path, tokens):
    folder = corpus_folder / "tokenizer"
    shutil.rmtree(folder)
    if tokens:
        (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
        load_tokenizer(tmp_path / "vocab.txt").save(folder)
    with pytest.raises(DataDamaged) as caught:
        open_corpus(corpus_folder)
    assert str(folder) in str(caught.value)
    if tokens:
        assert f"{len(tokens)} tokens" in str(caught.value)


def test_a_folder_without_a_corpus_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    no_corpus = r"is not a corpus: it has no corpus\.json"
    a_file = "is a file, but a corpus is a folder"
    for path, said in [
        (tmp_path, no_corpus),
        (tmp_path / "missing", no_corpus),
        (tmp_path / "file", a_file),
    ]:
        with pytest.raises(UsageError, match=said) as caught:
            open_corpus(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format_version": 1', "\xff"])
def test_an_unreadable_manifest_is_rejected(corpus_folder, text):
    (corpus_folder / "corpus.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataDamaged, match=r"corpus\.json cannot be read"):
        open_corpus(corpus_folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m["counts"]["train"].update(tokens=1), DataDamaged, "another fingerprint"),
        (lambda m: m.pop("counts"), DataDamaged, "was altered: fields that prepare writes"),
        (lambda m: m.update(files=3), DataDamaged, "was altered: fields that prepare writes"),
        (lambda m: m.update(format_version=99), UsageError, "format 99"),
    ],
)
def test_an_altered_manifest_is_rejected(corpus_folder, change, error, message):
    file = corpus_folder / "corpus.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))
    with pytest.raises(error, match=message) as caught:
        open_corpus(corpus_folder)
    assert str(corpus_folder) in str(caught.value)


@pytest.mark.parametrize("place", ["../outside", "/outside", "train/../../outside"])
def test_a_manifest_names_only_its_own_shards(corpus_folder, place):
    file = corpus_folder / "corpus.json"
    manifest = json.loads(file.read_text())
    for array in ("tokens", "sentences", "documents"):
        moved = manifest["files"].pop(f"train/00000.{array}.npy")
        manifest["files"][f"{place}/00000.{array}.npy"] = moved
    manifest["fingerprint"] = fingerprint(manifest)
    file.write_text(json.dumps(manifest))
    with pytest.raises(DataDamaged, match="names files that are not shards"):
        open_corpus(corpus_folder)
