"""Studies, plans, checks, curves and reports, built on `bert_jax`, which imports none of them."""
