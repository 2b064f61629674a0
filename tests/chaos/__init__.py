"""What happens when things go wrong, on purpose and from a seed.

The short form is part of the suite; `BERT_JAX_CHAOS=long` makes every test as long as the figures
that docs/ give.
"""

import os

IS_LONG = os.environ.get("BERT_JAX_CHAOS") == "long"
