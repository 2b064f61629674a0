"""One token per character: vocabularies, corpora and fill-mask of sequences."""

import itertools
import json
import random
import re

import numpy as np
import pytest

from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.data.tokenizer.words import begins_word
from bert_jax.errors import UsageError

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ESM = [*["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]]
# Texts, options, the characters in the order of their ids.
VOCABULARIES = {
    "dna": (["AACGTN", "AACG"], {}, "ACGNT"),
    "soft-masked": (["AAacg", "AAacA"], {}, "Aacg"),
    "folded": (["AAacg", "AAacA"], {"lowercase": True}, "acg"),
    "SMILES": (["CCc1ccccc1Cl", "[C@@H]"], {}, "cC1@H[]l"),
    "small": (["AAACCGT"], {"vocab_size": 7}, "AC"),
    "spaces": (["a b\t\u3000c", "aa"], {}, " abc"),
    "NFC": (["cafe\u0301", "caf\u00e9"], {}, "acf\u00e9"),
    "beyond ASCII": (["中文中", "👩\u200d🚀"], {}, "中\u200d文👩🚀"),
}  # fmt: skip


def trained(name):
    texts, options, _ = VOCABULARIES[name]
    return texts, train_tokenizer("characters", texts, **{"vocab_size": 1000, **options})


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_character_is_a_token(name, tmp_path):
    """Trained, saved and loaded here and by transformers, as single texts and as running text."""
    transformers = pytest.importorskip("transformers", reason="needs the `dev` extra")
    texts, tokenizer = trained(name)
    characters = VOCABULARIES[name][2]
    tokens = tokenizer.tokens(list(range(tokenizer.vocab_size)))
    assert tokens == [*SPECIALS, *characters]
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.hash, again.kind) == (tokenizer.hash, "characters")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    others = [
        "",
        "  A c ",
        "A[MASK]c",
        "A [MASK] c",
        "a\nc",
        "e\u0301\u00df\u0130",
        "[ACG]",
        "X  X",
    ]
    for text in [*texts, *others]:
        ids = tokenizer.encode(text)
        assert ids == again.encode(text) == theirs(text)["input_ids"], text
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    found, lengths = again.encode_running_text([*texts, *others])
    assert found.tolist() == [i for text in [*texts, *others] for i in again.encode(text)[1:-1]]
    assert lengths.tolist() == [len(again.encode(text)) - 2 for text in [*texts, *others]]


@pytest.mark.parametrize(
    "name, text, decoded",
    [
        ("dna", "AACG TN\nAA", "AACGTNAA"),  # without a space in the vocabulary
        ("SMILES", "[C@@H]Clc1", "[C@@H]Clc1"),
        ("spaces", " a  b\n", " a b "),
        ("folded", "AaCcGg", "aaccgg"),
        ("NFC", "cafe\u0301", "caf\u00e9"),
    ],
)
def test_decoding_gives_the_text(name, text, decoded):
    _, tokenizer = trained(name)
    assert tokenizer.decode(tokenizer.encode(text)) == decoded


def test_whole_words_are_between_spaces_or_single_characters():
    _, spaced = trained("spaces")
    tokens = spaced.tokens(list(range(spaced.vocab_size)))
    assert begins_word(spaced).tolist() == [token == " " for token in tokens]
    _, dna = trained("dna")
    assert begins_word(dna).all()


# --- ESM ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["letters", "k-mers"])
@pytest.mark.parametrize("has_config", [True, False])
def test_esm_is_read_as_transformers_reads_it(kind, has_config, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the `dev` extra")
    bases = [a + b + c for a in "ACGT" for b in "ACGT" for c in "ACGT"]
    kmers = ["<unk>", "<pad>", "<mask>", "<cls>", "<eos>", "<bos>", *bases, *"ACGTN"]
    (tmp_path / "vocab.txt").write_text("\n".join(ESM if kind == "letters" else kmers))
    theirs = transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    if has_config:
        theirs.save_pretrained(tmp_path)
    else:
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    ours = load_tokenizer(tmp_path)
    ours.save(tmp_path / "ours")
    again = load_tokenizer(tmp_path / "ours")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again.hash == ours.hash and ours.special.sep == theirs.eos_token_id
    draw = random.Random(0)
    texts = ["MKTALLV", "MK*LL j", "JJJ J MJ", "MK<mask>TA <mask> L", "<null_1>M-.", "", "M\u00e9"]
    texts += ["".join(draw.choices("ACGTNMKJx* <", k=40)) for _ in range(50)]
    for text in texts:
        expected = theirs(text)["input_ids"]
        assert ours.encode(text) == auto(text)["input_ids"] == expected, text
        assert again.encode_running_text([text])[0].tolist() == expected[1:-1], text
    assert auto("MK", "LL")["input_ids"] == theirs("MK", "LL")["input_ids"]
    with pytest.raises(UsageError, match="keeps the case"):
        load_tokenizer(tmp_path, lowercase=True)


def test_esm_without_an_end_token_is_noted(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("\n".join(ESM))
    config = {"tokenizer_class": "EsmTokenizer", "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).encode("M") == [0, 20, 2]
    assert "has no <eos> after a text" in capsys.readouterr().err


# --- corpora --------------------------------------------------------------------------------------


def sequences(count, length, letters="ACGT", seed=0):
    draw = random.Random(seed)
    return ["".join(draw.choices(letters, k=length + draw.randrange(50))) for _ in range(count)]


def text_of(corpus, split):
    """Returns the decoded documents of a split."""
    side = {"train": corpus.train, "validation": corpus.validation}[split]
    tokenizer = load_tokenizer(corpus.directory)
    sentences, documents = side.starts()
    ids = np.concatenate(side.shards).tolist()
    starts = sentences[documents].tolist()
    return [tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise(starts)]


def test_no_letter_is_lost_in_long_lines(tmp_path, capsys):
    """For any number of workers, and in FASTA, wrapped or not."""
    found = [*sequences(12, 30_000), *sequences(20, 80, "acgtN", seed=1)]
    (tmp_path / "a.txt").write_text("\n".join(found))
    wrapped = [re.sub("(.{60})", r"\1\n", sequence) for sequence in found]
    (tmp_path / "a.fa").write_text("".join(f">name {n}\n{s}\n" for n, s in enumerate(wrapped)))
    (tmp_path / "blank.txt").write_text("\n\n".join(wrapped))
    options = {"tokenizer": "characters", "validation_fraction": 0.2}
    for name, more in (
        ("a.txt", {"document_boundary": "line", "workers": 1}),
        ("a.txt", {"document_boundary": "line", "workers": 3}),
        ("a.fa", {"workers": 1}),
        ("blank.txt", {"workers": 1}),
    ):
        corpus = prepare([tmp_path / name], tmp_path / f"{name}{more}", **options, **more)
        kept = [*text_of(corpus, "train"), *text_of(corpus, "validation")]
        assert sorted(kept) == sorted(found)
        assert not corpus.manifest["unknown_share"]["total"]
        first = (tmp_path / f"{name}{more}/tokenizer/tokenizer.json").read_bytes()
        assert first == (corpus.directory / "tokenizer/tokenizer.json").read_bytes()
        tokenizer = load_tokenizer(corpus.directory)
        assert sorted(tokenizer.tokens(list(range(5, 14)))) == sorted("ACGTNacgt")
    assert "wrapped" not in capsys.readouterr().err


def test_documents_are_compared_exactly(tmp_path):
    """Case, bonds and charges change the molecule; white space does not."""
    found = ["c1ccccc1", "C1CCCCC1", "CC=O", "CCO", "C[O-]", "CC(O)C", "CC#N", "CCN", "C=CC", "CCC"]
    (tmp_path / "a.txt").write_text("\n".join([*found, "CCO", " CCN"]))
    options = {"document_boundary": "line", "validation_fraction": 0.3, "seed": 1}
    corpus = prepare([tmp_path / "a.txt"], tmp_path / "c", tokenizer="characters", **options)
    total = corpus.manifest["counts"]["total"]
    assert total["documents"] == len(found) and total["duplicate_documents"] == 2
    (tmp_path / "b.txt").write_text("".join(f"{'C' * n}\n" for n in range(5, 25)) + "CCc\nCCO\n")
    corpus = prepare(
        [tmp_path / "b.txt"], tmp_path / "d", tokenizer=tmp_path / "c", known=[tmp_path / "c"],
        **options,
    )  # fmt: skip
    total = corpus.manifest["counts"]["total"]
    assert total["documents"] == 21 and total["duplicate_documents"] == 1


def test_wordpiece_on_sequences_proposes_characters(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n".join(sequences(60, 120, "ACDEFGHIKLMNPQRSTVWY")))
    options = {"document_boundary": "line", "validation_fraction": 0.2}
    prepare([tmp_path / "a.txt"], tmp_path / "c", tokenizer="wordpiece", **options)
    said = capsys.readouterr().err
    assert "of the tokens of the corpus are [UNK]" in said
    assert "`tokenizer` characters, for sequences such as DNA" in said
