"""Studies, plans, checks, curves, pages: they stand on `bert_jax`, which imports none of them."""
