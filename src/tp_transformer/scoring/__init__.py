"""Exact-match scores of models.

- options, questions: the options and the questions of an evaluation, without those held out.
- verdict: whether each answer is correct, by one forward pass.
- evaluate, journal: an evaluation of all modules, and its state while it runs.
- diagnose: the kinds of wrong answers.
- results, compare: results.json; comparison of results with each other and with the paper.
- seeds: results of runs that differ only in the seed: mean, spread, tests over seeds.
"""
