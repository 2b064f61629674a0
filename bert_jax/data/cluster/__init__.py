"""One corpus made by many machines: the stages of `prepare` as a graph that Apache Beam runs."""
