"""Languages other than English: sentences, codes, and guessing the language of a text."""

import re

import pytest

from bert_jax.data.language import codes, guess
from bert_jax.data.language.sentences import LONGEST_SENTENCE, sentences_of
from bert_jax.errors import UsageError


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    return [piece.lstrip() for pieces in sentences_of(paragraph, language) for piece in pieces]


# Written for this test; | marks the end of a sentence.
_SENTENCES = {
    "de": [
        "Er kam z. B. am Montag, d. h. zu spät. | Niemand wartete.",
        "Das kostet 1.250,50 Euro. | Ist das teuer? | Nein!",
    ],
    "fr": [
        "Voilà ! | Où vas-tu ? | Je ne sais pas.",
        "Le prix est de 3.50 euros. | C'est trop cher.",
    ],
    "es": [
        "El Sr. García vive en Madrid. | La Sra. López no.",
        "¿Cómo estás? | ¡Muy bien! | Gracias.",
    ],
    "it": [
        "Il dott. Rossi abita a Roma. | La sig.ra Bianchi a Milano.",
        "Costa 3.50 euro. | È poco? | Sì!",
    ],
    "ru": [
        "А. С. Пушкин родился в 1799 г. в Москве. | Он был поэтом.",
        "Он живёт на ул. Ленина, д. 5. | Она живёт рядом.",
    ],
    "pl": [
        "Prof. Nowak mieszka w Krakowie. | Zna go każdy.",
        "To jest dom, a to jest las. | Nie wiem, jak się to robi.",
    ],
    "el": [
        "Πού πας; | Πάω στο σχολείο.",
        "Ο ήλιος ανατέλλει. | Η μέρα είναι ζεστή.",
    ],
    "hy": [
        "Ես գնում եմ դպրոց։ Նա տանն է։".replace("։ ", "։ | "),
        "Այսօր արև է։ | Վաղը անձրև կլինի։",
    ],
    "ja": [
        "私は学校に行きます。 | 彼は家にいます。",
        "本当ですか？ | はい！ | よかった。",
    ],
    "zh": [
        "我去学校。 | 他在家里。",
        "你好吗？ | 我很好！ | 谢谢。",
    ],
    "hi": [
        "मैं स्कूल जाता हूँ। | वह घर पर है।",
        "तुम कहाँ हो? | मैं यहाँ हूँ।",
    ],
    "ar": [
        "ذهب الولد إلى المدرسة. | عاد في المساء.",
        "أين أنت؟ | أنا هنا.",
    ],
    "th": [
        "เมื่อ พ.ศ. 2550 เขาไปกรุงเทพฯ ดร.สมชาย มาถึงแล้ว",
        "ราคา 3.50 บาท ถูกมาก! จริงหรือ? จริง",
    ],
    "km": [
        "ខ្ញុំទៅផ្សារ។ | គាត់នៅផ្ទះ។",
        "ថ្លៃ 3.50 ដុល្លារ។ | ថោកណាស់៕",
    ],
}
_CASES = [(code, case) for code, cases in _SENTENCES.items() for case in cases]


def _sentences(marked: str) -> tuple[str, list[str]]:
    """The text of a case, without spaces after the stops of its script, and its sentences."""
    sentences = [part.strip() for part in marked.split("|")]
    text = re.sub(r"(?<=[。！？」]) ?\| ?", "", marked)
    return re.sub(r" ?\| ?", " ", text), sentences


@pytest.mark.parametrize(("code", "marked"), _CASES)
def test_sentences_end_by_the_rules_of_their_language(code, marked):
    text, sentences = _sentences(marked)
    assert split_sentences(text, code) == sentences


def test_sentences_are_split_and_the_text_is_preserved():
    paragraph = 'Dr. Smith paid 3.14 dollars  to the U.S. army. "Why?" he asked.  Nobody knew!'
    sentences = split_sentences(paragraph)
    assert sentences == [
        "Dr. Smith paid 3.14 dollars  to the U.S. army.",
        '"Why?" he asked.',
        "Nobody knew!",
    ]
    assert split_sentences("") == split_sentences(" \t ") == []


def test_a_sentence_too_long_is_cut_at_a_space():
    sentence = " ".join(f"word{i}" for i in range(1000))
    cut = split_sentences(sentence)
    assert len(cut) > 5 and max(map(len, cut)) <= LONGEST_SENTENCE
    assert min(map(len, cut[:-1])) > LONGEST_SENTENCE - 10
    assert " ".join(cut) == sentence
    solid = split_sentences("x" * 2500)
    assert [len(piece) for piece in solid] == [1000, 1000, 500]


def test_time_to_cut_a_sentence_does_not_grow_with_its_square(monkeypatch):
    """The number of reads per character is bounded for any length; counted, not timed."""

    class Watched(str):
        copied = 0

        def __getitem__(self, key):
            piece = str.__getitem__(self, key)
            Watched.copied += len(piece)
            return piece

        def strip(self):
            return self

    import sentencex

    monkeypatch.setattr(sentencex, "segment", lambda language, text: [Watched(text)])
    for words in (2_000, 20_000):
        Watched.copied = 0
        text = "many words" + " and more" * words
        assert " ".join(split_sentences(text)) == text
        assert Watched.copied < 1.1 * len(text)


def test_a_paragraph_without_stops_is_cut_at_spaces():
    thai = "ภาษาไทยไม่มีจุด " * 200
    pieces = split_sentences(thai.strip(), "th")
    assert " ".join(pieces) == thai.strip() and max(map(len, pieces)) <= LONGEST_SENTENCE
    assert len(pieces) == len(thai) // LONGEST_SENTENCE + 1
    assert split_sentences("", "th") == split_sentences(" \t", "km") == []


@pytest.mark.parametrize("code", ["en", "kk", "de", "ru", "el", "ja", "zh"])
def test_all_white_space_is_accepted_by_the_segmenter(code):
    """It panics at multi-byte white space before a stop and, with some rules, after a stop."""
    for text in ("J\u00a0. Smith", "J .\u2009.;", " \u00a0.J\u3000.", "\u2009" * 50_000):
        split_sentences(text, code)


@pytest.mark.parametrize(
    ("given", "code"),
    [("de", "de"), ("DE", "de"), ("de-AT", "de"), ("zh_TW", "zh"), ("pt_BR.UTF-8", "pt"),
     ("th", "th"), ("bar", "bar"), ("cbk-zam", "cbk-zam"), (" ja ", "ja")],
)  # fmt: skip
def test_codes_as_people_write_them(given, code):
    assert codes.canonical(given) == code


@pytest.mark.parametrize("given", ["german", "szll", "", "???"])
def test_an_unknown_code_is_rejected(given):
    with pytest.raises(UsageError, match="not a code of ISO 639-1, such as de, ja or th"):
        codes.canonical(given)


def test_every_language_that_is_guessed_has_a_code():
    known = {*guess._WORDS, *guess._OF_SCRIPT.values()}
    assert all(codes.canonical(code) == code for code in known)


@pytest.mark.parametrize(
    ("text", "code"),
    [(" ".join(text.replace("|", "") for text in cases), code)
     for code, cases in _SENTENCES.items()]
    + [
        ("The cat sat on the mat, and that was that for the day.", "en"),
        ("Die Katze ist nicht auf der Matte, und das ist auch gut.", "de"),
        ("Tôi không có sách của bạn, và các bạn được trong lớp.", "vi"),
        ("Він не знає, що це таке, та як це зробити.", "uk"),
        ("این کتاب را از او گرفتم و به شما دادم که بخوانید.", "fa"),
        ("나는 학교에 갔다. 그는 집에 있다.", "ko"),
        ("12345 !!! ???", "en"),
        ("Lorem ipsum dolor sit amet consectetur adipiscing.", "en"),
    ],
)  # fmt: skip
def test_letters_and_words_determine_the_language(text, code):
    assert guess.guess(text) == code


def test_a_corpus_keeps_its_language_and_english_ones_compare_equal(tmp_path, capsys):
    from bert_jax.__main__ import main

    source = tmp_path / "de.txt"
    line = "Am 3. Oktober ist der Tag, und das ist auch gut. Das Buch von {} ist nicht da.\n\n"
    source.write_text("".join(line.format(i) for i in range(40)), encoding="utf-8")
    (tmp_path / "empty").mkdir()
    command = ["prepare", "--source", str(source), "--vocab-size", "300"]
    command += ["--validation-fraction", "0.2", "--workers", "1"]

    def prepare(name, *options):
        assert main([*command, "--output-dir", str(tmp_path / name), *options]) == 0
        import json

        manifest = json.loads((tmp_path / name / "corpus.json").read_text())
        return manifest, capsys.readouterr().err

    plain, said = prepare("plain")
    assert said.count("--language de") == 1 and "looks like de, but" in said
    english, said = prepare("english", "--language", "en")
    assert "looks like" not in said
    assert english["options"] == plain["options"] | {"language": "en"}
    assert english["fingerprint"] == plain["fingerprint"]
    german, said = prepare("german", "--language", "de_DE")
    assert "looks like" not in said and german["options"]["language"] == "de"
    assert german["counts"]["total"]["sentences"] == 80 < plain["counts"]["total"]["sentences"]
    # It is finished already.
    assert "is finished already" in prepare("german", "--language", "de")[1]
    assert main([*command, "--output-dir", str(tmp_path / "german")]) == 2
    assert "language" in capsys.readouterr().err
    assert main([*command, "--output-dir", str(tmp_path / "x"), "--language", "german"]) == 2
    assert "--language german is not a code" in capsys.readouterr().err
