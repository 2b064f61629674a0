"""Faults in real processes: a sample of each, or with `BERT_JAX_CHAOS=long` all cases."""

import os

import pytest

IS_LONG = os.environ.get("BERT_JAX_CHAOS") == "long"
long_form = pytest.mark.skipif(not IS_LONG, reason="long form: set BERT_JAX_CHAOS=long")
