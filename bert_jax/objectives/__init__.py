"""Objectives, from which a model learns: one file for each objective (registry.OBJECTIVES lists
them).
"""
