"""The papers, one package each: constructions and bounds that run, studies, results, errata and their tests.

`python -m papers` lists the commands. Nothing here is in the wheel, and `based_jax` imports none of it.
"""
