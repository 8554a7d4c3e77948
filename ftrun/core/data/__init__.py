"""The choice of each replica's samples, so that every sample counts once per epoch. Pure.

``spans.py`` is arithmetic on positions; ``plan.py`` decides. Not here: the order of the samples, a
permutation of positions, and loaders (training/elastic_sampler.py).
"""
