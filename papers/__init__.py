"""The papers, one package each: constructions and bounds that run, studies, results, errata and their tests.

Nothing here is in the wheel, and `based_jax` imports none of it.
"""
