"""Faults put into real processes. `BERT_JAX_CHAOS=long` runs them as often as docs/reliability.md
says; without it, a sample of each."""

import os

IS_LONG = os.environ.get("BERT_JAX_CHAOS") == "long"
