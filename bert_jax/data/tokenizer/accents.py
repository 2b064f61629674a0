"""Decides whether a vocabulary that is trained strips accents: BERT's uncased ones do, for
English.
"""

from collections.abc import Sequence

from bert_jax.data.language import marks
from bert_jax.progress import note

# Words that may lose a mark: in English those of other languages, well below this.
_FEW = 0.01


def decide(lines: Sequence[str]) -> bool:
    """Returns whether a vocabulary that lower-cases these lines strips their accents, too; where it
    does not, a note says so.
    """
    found = marks.words(lines)
    if found.losing <= _FEW * found.total:
        return True
    note(
        f"{found.losing / found.total:.1%} of the words have marks that lower-casing would strip "
        f"({', '.join(found.examples)}): they are kept; `strip_accents` yes strips them, as BERT's "
        "uncased vocabularies do"
    )
    return False
