"""The codes of languages: which are known, and what a user means who writes another one."""

import difflib
import functools
import unicodedata

from bert_jax.errors import UsageError

# Whose rules sentences are cut by where no other is given; no manifest names it.
DEFAULT = "en"

# Those that people ask for first, by name: code -> English name.
NAMES = {
    "am": "Amharic", "ar": "Arabic", "be": "Belarusian", "bg": "Bulgarian", "bn": "Bengali",
    "bo": "Tibetan", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish",
    "fr": "French", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian",
    "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "kn": "Kannada", "ko": "Korean", "lo": "Lao",
    "lt": "Lithuanian", "lv": "Latvian", "ml": "Malayalam", "mr": "Marathi", "ms": "Malay",
    "my": "Burmese", "ne": "Nepali", "nl": "Dutch", "no": "Norwegian", "pa": "Punjabi",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "si": "Sinhala",
    "sk": "Slovak", "sl": "Slovenian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili",
    "ta": "Tamil", "te": "Telugu", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu",
    "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
# ISO 639-1, and the longer codes that the segmenter cuts by the rules of a relative: the keys of
# `LANGUAGE_FALLBACKS` in src/languages/fallbacks.rs of wikimedia/sentencex, forms of writing left
# out.
_CODES = """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da
    de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz
    ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln
    lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi
    pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th
    ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    aae abs ace acm ady aeb aln als alt ami anp apc arn arq ary arz ast atj avk awa azb ban bar bbc
    bcc bci bdr bew bgn bho bjn blk bpy bqi btm bug bxr cbk-zam ckb crh csb dsb dtp dty dua egl eml
    ext fit fon frc frp frr fur gag gan gcf gcr gld glk gom gor gsw guc hak hif hke hrx hsb hsn hyw
    iba inh jut kaa kab kbd kbp kea kge khw kiu kjh kjp koi krc krl ksh ksw kum lad lbe lez lij liv
    ljp lki lld lmo lrc ltg lua luz lzh lzz mad mag mai mdf mhr min mnw mrj mui mwl myv mzn nah nap
    nds nia nrm nyo olo pcd pdc pdt pfl pms pnt pwn qug rgn rmy rsk rue rup ruq rut sah scn sdc sdh
    ses sgs shi shn shy sjd skr sli sma smn srn sro stq sty szl szy tay tcy tet trv ttj tyv udm vec
    vep vls vmf vmw vot vro wls wuu xal xmf yue
"""
# Other codes that people have for these: of countries, of ISO 639-2, and old ones.
_MEANT = {
    "alb": "sq", "ara": "ar", "arm": "hy", "ben": "bn", "br": "pt", "bul": "bg", "chi": "zh",
    "cmn": "zh", "cn": "zh", "cz": "cs", "cze": "cs", "dan": "da", "deu": "de", "dk": "da",
    "dut": "nl", "eng": "en", "farsi": "fa", "fin": "fi", "fra": "fr", "fre": "fr", "ger": "de",
    "gr": "el", "gre": "el", "heb": "he", "hin": "hi", "hun": "hu", "in": "id", "ind": "id",
    "ita": "it", "iw": "he", "jp": "ja", "jpn": "ja", "khm": "km", "kor": "ko", "lao": "lo",
    "mandarin": "zh", "mya": "my", "bur": "my", "nld": "nl", "nor": "no", "per": "fa", "fas": "fa",
    "pol": "pl", "por": "pt", "ron": "ro", "rum": "ro", "rus": "ru", "spa": "es", "swe": "sv",
    "tam": "ta", "tel": "te", "tha": "th", "tur": "tr", "ua": "uk", "ukr": "uk", "urd": "ur",
    "vie": "vi", "vn": "vi", "zho": "zh",
}  # fmt: skip
# Other names of languages, their own first; a mark on a letter may be missing.
_OTHER_NAMES = {
    "ar": "العربية, arabisch", "cs": "čeština, český, česky, tschechisch", "da": "dansk, dänisch",
    "de": "deutsch", "el": "ελληνικά, griechisch", "en": "englisch", "es": "español, spanisch",
    "fa": "فارسی, persisch", "fi": "suomi, finnisch", "fr": "français, französisch",
    "he": "עברית, hebräisch", "hi": "हिन्दी", "hu": "magyar, ungarisch", "id": "bahasa indonesia",
    "it": "italiano, italienisch", "ja": "日本語, nihongo, japanisch", "ko": "한국어, koreanisch",
    "nl": "nederlands, niederländisch", "no": "norsk, norwegisch", "pl": "polski, polnisch",
    "pt": "português, portugiesisch", "ro": "română, rumänisch", "ru": "русский, russisch",
    "sv": "svenska, schwedisch", "th": "ไทย, ภาษาไทย", "tr": "türkçe, türkisch",
    "uk": "українська, ukrainisch", "vi": "tiếng việt, vietnamesisch",
    "zh": "中文, 汉语, 漢語, 普通话, chinesisch",
}  # fmt: skip


def canonical(code: str) -> str:
    """Returns the code of a language without country or script: `de` of `de-AT`, `zh` of `zh_TW`.

    Raises UsageError, with the code that was perhaps meant, for one that is not known.
    """
    lowered = code.strip().lower().replace("_", "-").partition(".")[0]
    for found in (lowered, lowered.partition("-")[0]):
        if found in _known():
            return found
    raise UsageError(f"`language` {code}: no such code of a language{_hint(lowered)}")


def describe(code: str) -> str:
    """Returns a code with its name, where that is known: `German (de)`."""
    return f"{NAMES[code]} ({code})" if code in NAMES else code


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(_CODES.split())


def _hint(given: str) -> str:
    by_name = {name.lower(): code for code, name in NAMES.items()}
    others = ((name, code) for code, names in _OTHER_NAMES.items() for name in names.split(", "))
    meant = {**_MEANT, **by_name, **{_unmarked(name): code for name, code in others}}
    near = difflib.get_close_matches(_unmarked(given), [*meant, *_known()], n=1)
    if not near:
        return "; it is ISO 639-1's, such as de, ja or th"
    code = meant.get(near[0], near[0])
    return f"; did you mean {describe(code)}?"


def _unmarked(name: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", name) if unicodedata.category(c) != "Mn")
