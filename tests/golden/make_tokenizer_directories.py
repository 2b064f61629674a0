"""Writes tokenizer_directories.json.gz: small tokenizer directories, and the ids and offsets that
transformers gives for them.

    python -m tests.golden.make_tokenizer_directories

Run the command once with transformers 4 and once with transformers 5: each run records its own
version beside the other. Delete the file first to build new directories. transformers 4.57.6 and
5.24.0 with tokenizers 0.22.2 and 0.23.3 and sentencepiece 0.2.3 made the file.
"""

import base64
import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "tokenizer_directories.json.gz"
TRAIN = [
    "Utrecht ligt aan de Vecht, in het midden.",
    "De toren in Utrecht is 112 meter hoog en oud.",
    "The red horse eats hay in the stable.",
    "Größe und Ärger: l'été à Zürich, naïve!",
    "Привет, мир. Ёлка. In 3,000, 10, 12, x",
    "東京 日本語 한국어",
]
LINES = [
    *TRAIN,
    "  De  TOREN\tis   hoog. ",
    "hay<mask> hay [MASK]hay, <mask>.",
    "horse 2024-25 (Utrecht) a_b don't",
    "Cafe\u0301 ÉTÉ ﬁ ½ \u00a0x",
    "東京タワー🙂 hay",
    "[E1] the [E1]horse EXTRA extra",
    "",
]
ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def _config(class_name: str | None, names: dict[str, str], **more: Any) -> str:
    named = {f"{role}_token": token for role, token in names.items()}
    return json.dumps(({"tokenizer_class": class_name} if class_name else {}) | named | more)


def _whole(backend: Any, class_name: str | None, names: dict[str, str], **more: Any) -> dict:
    return {
        "tokenizer.json": backend.to_str(),
        "tokenizer_config.json": _config(class_name, names, **more),
    }


def _around(backend: Any, names: dict[str, str], *, separators: int) -> Any:
    from tokenizers import processors

    cls, sep = names["cls"], names["sep"]
    kind = 0 if separators > 1 else 1
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {' '.join([sep] * separators)} $B:{kind} {sep}:{kind}",
        special_tokens=[(name, backend.token_to_id(name)) for name in (cls, sep)],
    )


def _byte_level(
    steps: list[Any],
    *,
    trim: bool | None = True,
    names: dict[str, str] = ROBERTA,
    is_mask_lstrip: bool = True,
    normalizer: Any = None,
    added: tuple[str, ...] = (),
) -> Any:
    """Returns byte-level BPE; `trim` None puts a template around a text in place of RoBERTa's."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from tokenizers.processors import RobertaProcessing

    backend = Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(names.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TRAIN * 30, trainer)
    backend.add_special_tokens([AddedToken(names["mask"], lstrip=is_mask_lstrip, special=True)])
    backend.add_tokens(list(added))
    if trim is None:
        backend.post_processor = _around(backend, names, separators=1)
    else:
        space = any(getattr(step, "add_prefix_space", False) for step in steps)
        cls, sep = ((names[role], backend.token_to_id(names[role])) for role in ("cls", "sep"))
        backend.post_processor = RobertaProcessing(
            sep, cls, trim_offsets=trim, add_prefix_space=space
        )
    return backend


def _word_pieces(normalizer: Any, *, names: dict[str, str] = BERT) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted({c for line in TRAIN for c in (line + line.lower()) if not c.isspace()})
    words = ["the", "The", "de", "De", "horse", "hay", "utrecht", "Utrecht", "to", "##ren", "##t"]
    words += ["ete", "été", "##rger", "grosse", "größe", "##2", "##0", "EXTRA", "extra"]
    tokens = dict.fromkeys([*names.values(), *letters, *(f"##{c}" for c in letters), *words])
    vocab = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token=names["unk"]))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(names.values()))
    backend.post_processor = _around(backend, names, separators=1)
    return backend


def _words(pre_tokenizer: Any) -> Any:
    from tokenizers import Tokenizer, models, normalizers

    found = {w.strip(".,:!") for line in TRAIN for w in line.lower().split()} | {".", ",", "!"}
    vocab = {token: number for number, token in enumerate([*BERT.values(), *sorted(found)])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token=BERT["unk"]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizer
    backend.add_special_tokens(list(BERT.values()))
    backend.post_processor = _around(backend, BERT, separators=1)
    return backend


def _model(**options: Any) -> bytes:
    """Returns a SentencePiece unigram model with a table of few characters."""
    import sentencepiece

    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder, "rules.tsv")
        table = {"ﬁ": "fi", "½": "1/2", "\u00a0": " ", "\t": " ", "e\u0301": "é"}
        rows = [[" ".join(f"{ord(c):X}" for c in side) for side in pair] for pair in table.items()]
        rules.write_text("".join("\t".join(row) + "\n" for row in rows))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAIN * 30),
            model_writer=model,
            minloglevel=2,
            **{
                "vocab_size": 160,
                "hard_vocab_limit": False,
                "normalization_rule_tsv": str(rules),
                "character_coverage": 1.0,
            }
            | options,
        )
    return model.getvalue()


def _unigram(steps: list[Any], names: dict[str, str]) -> Any:
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers.pre_tokenizers import Sequence

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(_model())
    pieces = [(piece.piece, piece.score) for piece in model.pieces[3:]]
    first = [(names[role], 0.0) for role in ("cls", "pad", "sep", "unk")]
    vocab = [*first, *pieces, (names["mask"], 0.0)]
    backend = Tokenizer(models.Unigram(vocab, unk_id=3))
    table = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    backend.normalizer = normalizers.Sequence([table, spaces])
    backend.pre_tokenizer = steps[0] if len(steps) == 1 else Sequence(steps)
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([*(name for name, _ in first)])
    backend.add_special_tokens([AddedToken(names["mask"], lstrip=True, special=True)])
    backend.post_processor = _around(backend, names, separators=2)
    return backend


def _gemma() -> Any:
    """Returns BPE that writes a space as "▁" before it cuts, as Gemma's and mmBERT's."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    names = {"pad": "<pad>", "sep": "<eos>", "cls": "<bos>", "unk": "<unk>", "mask": "<mask>"}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*names.values(), *bytes_], show_progress=False
    )
    backend.train_from_iterator([f" {w}" for line in TRAIN * 30 for w in line.split()], trainer)
    state = json.loads(backend.to_str())
    kept = [each for each in state["added_tokens"] if not each["content"].startswith("<0x")]
    backend = Tokenizer.from_str(json.dumps(state | {"added_tokens": kept}))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    backend.post_processor = _around(backend, names, separators=1)
    return _whole(backend, "PreTrainedTokenizerFast", names)


def directories() -> dict[str, dict[str, str | bytes]]:
    """Returns the files of each directory."""
    from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

    byte_level, split = pre_tokenizers.ByteLevel, pre_tokenizers.Split
    generic, roberta = "PreTrainedTokenizerFast", "RobertaTokenizer"
    with_space, without = byte_level(add_prefix_space=True), byte_level(add_prefix_space=False)
    whole = _byte_level([without])
    state = json.loads(whole.to_str())
    pairs = [" ".join(pair) for pair in state["model"]["merges"]]
    robbert = [pre_tokenizers.Whitespace(), with_space]
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first")
    xlm_roberta = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    eurobert = split(Regex(r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    no_regex = byte_level(add_prefix_space=False, use_regex=False)
    bert = normalizers.BertNormalizer
    extra = _word_pieces(bert(lowercase=True))
    extra.add_special_tokens(["[E1]"])
    extra.add_tokens([AddedToken("extra", single_word=True), "horses"])
    modern = _byte_level(
        [without], trim=None, names=BERT, normalizer=normalizers.NFC(), added=("   ", "[E1]")
    )
    albert = {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "pad_id": 0, "unk_id": 1}
    albert |= {"bos_id": -1, "eos_id": -1, "pad_piece": "<pad>"}
    camembert = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    bare = _word_pieces(bert(lowercase=True)).get_vocab()
    lines = sorted(bare, key=bare.__getitem__)
    lines[20:20] = ["", ""]  # lines that somebody left empty are ids
    names = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    return {
        # Byte-level BPE, by what cuts text before it.
        "roberta": _whole(whole, roberta, {"mask": "<mask>"}),
        "roberta-prefix": _whole(
            _byte_level([with_space]), roberta, ROBERTA, add_prefix_space=True
        ),
        "roberta-files": {
            "vocab.json": json.dumps(state["model"]["vocab"]),
            "merges.txt": "\n".join(["#version: 0.2", *pairs, ""]),
            "tokenizer_config.json": _config("RobertaTokenizer", {}),
        },
        "whitespace-trim": _whole(_byte_level(robbert), generic, ROBERTA, add_prefix_space=True),
        "whitespace": _whole(_byte_level(robbert, trim=False), generic, ROBERTA),
        "digits": _whole(
            _byte_level([pre_tokenizers.Digits(individual_digits=True), without], trim=False),
            generic,
            ROBERTA,
        ),
        "eurobert": _whole(
            _byte_level([eurobert, no_regex], trim=None, is_mask_lstrip=False), generic, ROBERTA
        ),
        "no-marks": _whole(
            _byte_level([pre_tokenizers.BertPreTokenizer(), without], trim=False), generic, ROBERTA
        ),
        "modernbert": _whole(modern, generic, BERT),
        # SentencePiece, by class.
        "xlm-roberta": _whole(_unigram(xlm_roberta, ROBERTA), "XLMRobertaTokenizer", ROBERTA),
        "xlm-roberta-model": {
            "sentencepiece.bpe.model": _model(),
            "tokenizer_config.json": _config("XLMRobertaTokenizer", {}),
        },
        "camembert-model": {
            "sentencepiece.bpe.model": _model(**camembert),
            "tokenizer_config.json": _config("CamembertTokenizer", {}),
        },
        "albert-model": {
            "spiece.model": _model(**albert),
            "tokenizer_config.json": _config("AlbertTokenizer", {}),
        },
        "deberta-model": {
            "spm.model": _model(**albert | {"pad_piece": "[PAD]", "unk_piece": "[UNK]"}),
            "tokenizer_config.json": _config("DebertaV2Tokenizer", {}),
        },
        "metaspace": _whole(_unigram([metaspace], ROBERTA), generic, ROBERTA),
        "gemma": _gemma(),
        # WordPiece, by normalizer.
        "bert-uncased": _whole(_word_pieces(bert(lowercase=True)), "BertTokenizer", BERT),
        "bert-cased": _whole(
            _word_pieces(bert(lowercase=False)), "BertTokenizer", BERT, do_lower_case=False
        ),
        "bert-default": _whole(_word_pieces(bert(lowercase=False)), "BertTokenizer", BERT),
        "electra-accents": _whole(
            _word_pieces(bert(lowercase=True, strip_accents=False)),
            "ElectraTokenizer",
            BERT,
            strip_accents=False,
            do_lower_case=True,
        ),
        "nfd": _whole(
            _word_pieces(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
            generic,
            BERT,
        ),
        "bert-empty-lines": {
            "vocab.txt": "\n".join(lines) + "\n",
            "tokenizer_config.json": _config("BertTokenizer", {}, do_lower_case=True),
        },
        "roformer": _whole(_word_pieces(bert(lowercase=True)), "RoFormerTokenizer", names),
        # Whole words, and tokens beyond the vocabulary.
        "words": _whole(_words(pre_tokenizers.Whitespace()), generic, BERT),
        "words-by-space": _whole(_words(pre_tokenizers.WhitespaceSplit()), generic, BERT),
        "added-tokens": _whole(extra, "BertTokenizer", BERT, do_lower_case=True),
    }


def observe(directory: Path) -> dict[str, Any]:
    """Returns the ids and offsets of the lines, without special tokens around them, and the ids of
    a text and a pair, as transformers gives them; or its error.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        found = [
            tokenizer(line, add_special_tokens=False, return_offsets_mapping=True) for line in LINES
        ]
        pair = [tokenizer("hay").input_ids, tokenizer("hay", "horse").input_ids]
    except Exception as error:  # any: a class may need a package that is absent
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "ids": [each.input_ids for each in found],
        "offsets": [[list(span) for span in each.offset_mapping] for each in found],
        "pair": pair,
    }


def write(files: dict[str, str], directory: Path) -> Path:
    """Writes the files of a directory, as the golden file has them."""
    directory.mkdir(parents=True)
    for name, content in files.items():
        data = base64.b64decode(content) if name.endswith(".model") else content.encode()
        (directory / name).write_bytes(data)
    return directory


def _stored(content: str | bytes) -> str:
    return content if isinstance(content, str) else base64.b64encode(content).decode()


def main() -> None:
    import transformers

    if FILE.exists():
        golden = json.loads(gzip.decompress(FILE.read_bytes()))
    else:
        golden = {
            name: {"files": {file: _stored(content) for file, content in files.items()}}
            for name, files in directories().items()
        }
    version = transformers.__version__.partition(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        for name, entry in golden.items():
            entry[version] = observe(write(entry["files"], Path(folder, name)))
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
