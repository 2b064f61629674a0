"""Guesses the language of a text by its script and its most frequent words.

The guess is accurate enough for a note, and is not used otherwise.
"""

from collections import Counter

from bert_jax.data.language import codes, scripts
from bert_jax.progress import note

# Scripts with one language, or with one that is far more frequent than the others.
_OF_SCRIPT = {
    "Arabic": "ar", "Armenian": "hy", "Bengali": "bn", "Burmese": "my", "Cyrillic": "ru",
    "Devanagari": "hi", "Ethiopic": "am", "Georgian": "ka", "Greek": "el", "Gujarati": "gu",
    "Gurmukhi": "pa", "Han": "zh", "Hangul": "ko", "Hebrew": "he", "Kannada": "kn", "Khmer": "km",
    "Lao": "lo", "Malayalam": "ml", "Oriya": "or", "Sinhala": "si", "Tamil": "ta", "Telugu": "te",
    "Thai": "th", "Tibetan": "bo", "kana": "ja",
}  # fmt: skip
# Frequent words of languages that share a script.
_WORDS = {
    "ar": "في من على إلى أن التي هذا عن",
    "be": "і ў не на што як гэта яго",
    "bg": "на и да се за от са това като",
    "ca": "els amb una per que les dels és",
    "cs": "se na je že pro jako jsou také",
    "da": "og det af ikke til er blev efter",
    "de": "der die und das nicht ist den mit von auch",
    "en": "the of and to that for was with",
    "es": "el los las y en que por con una del",
    "et": "ja on ei see et oli kui ka",
    "fa": "در به از که این را است با",
    "fi": "ja on ei että oli joka mutta ovat",
    "fr": "le les des et est dans que une pour qui",
    "hi": "है के में की और का से को",
    "hr": "je se na za od su koji nije",
    "hu": "hogy nem az egy és is volt mint",
    "id": "yang dan di dengan untuk ini itu dari tidak",
    "it": "il di che della per una con non sono è",
    "kk": "және бір бұл да үшін мен деп болып",
    "lt": "ir yra kad su iš bet buvo kaip",
    "lv": "un ir ka par kas bija ar uz",
    "mr": "आहे आणि या व ते होते हे नाही",
    "ne": "छ र को मा हो भने गर्न पनि",
    "nl": "het een van dat niet zijn voor met ook op",
    "no": "og det av ikke til er ble etter",
    "pl": "nie się na jest że do to jak",
    "pt": "o que não uma dos para com do em",
    "ro": "și în la din nu este cu pe care",
    "ru": "и в не на что он как это с",
    "sk": "sa na je že pre ako sú aj",
    "sr": "и у је да на се за су",
    "sv": "och att det som är på av för inte",
    "tr": "bir ve bu için ile olarak çok gibi",
    "uk": "і в не на що та це як з",
    "ur": "کے میں کی ہے اور سے کا کو",
    "vi": "và của là các có được không trong",
}
_SHARED = ("Latin", "Cyrillic", "Arabic", "Devanagari")
# A text is in another language if its words are twice as frequent as English words, and at least
# one thirtieth of all words.
_TIMES, _LEAST = 2, 30
# Japanese has a kana for every few ideographs; quotations in Chinese text have far fewer.
_KANA = 0.05
_SIGNS = ".,;:!?()[]\"'«»„“”‘’¿¡…।۔،؟"


def guess(text: str) -> str:
    """Returns the code of the likely language, English if no other language is likely."""
    found = scripts.count(text)
    if not found:
        return codes.DEFAULT
    if found.get("kana", 0) > _KANA * found.get("Han", 0):
        found["kana"] = found.get("kana", 0) + found.pop("Han", 0)
    script = max(found, key=lambda name: found[name])
    if script not in _SHARED:
        return _OF_SCRIPT[script]
    words = Counter(word.strip(_SIGNS) for word in text.lower().split())
    scores = {code: sum(words[w] for w in own.split()) for code, own in _WORDS.items()}
    best = max(scores, key=lambda code: scores[code])
    enough = max(_TIMES * scores[codes.DEFAULT], words.total() / _LEAST)
    if best != codes.DEFAULT and scores[best] > enough:
        return best
    return _OF_SCRIPT.get(script, codes.DEFAULT)


def note_other_language(text: str) -> None:
    """Prints a note with the option to set if a text looks like a language other than English."""
    code = guess(text)
    if code != codes.DEFAULT:
        note(
            f"the text looks like {code}, but its sentences are split by the rules of English; set "
            f"`language` {code} to use its rules, `language` en to confirm English"
        )
