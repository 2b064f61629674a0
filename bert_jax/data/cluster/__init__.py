"""Makes one corpus on many machines: the stages of `prepare` as a graph for Apache Beam."""
