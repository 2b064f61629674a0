"""Faults put into real processes. `BERT_JAX_CHAOS=long` runs them as often as docs/reliability.md
says; without it, a sample of each."""

import os

import pytest

IS_LONG = os.environ.get("BERT_JAX_CHAOS") == "long"
long_form = pytest.mark.skipif(not IS_LONG, reason="of the long form: BERT_JAX_CHAOS=long")
