"""Language codes."""

import functools

from bert_jax.errors import UsageError

# The default language for splitting sentences; manifests omit it.
DEFAULT = "en"

# ISO 639-1 codes, and the longer codes that the segmenter maps to the rules of a related language:
# the keys of `LANGUAGE_FALLBACKS` in src/languages/fallbacks.rs of wikimedia/sentencex, without
# variants of writing.
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


def canonical(code: str) -> str:
    """Returns a language code without country or script: `de` for `de-AT`, `zh` for `zh_TW`.

    Raises UsageError for an unknown code.
    """
    lowered = code.strip().lower().replace("_", "-").partition(".")[0]
    for found in (lowered, lowered.partition("-")[0]):
        if found in _known():
            return found
    raise UsageError(f"`language` {code} is not a code of ISO 639-1, such as de, ja or th")


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(_CODES.split())
