"""The reproduction of Table 1 at several scales, each by one command.

- scale: the rows, the questions and the budget of each scale.
- run: data, runs, scores, analyses and the report; resumes what was interrupted.
- bands, bands.json: what was measured at a scale on a named machine, and the comparison with it.
- plan, describe: the time, memory and disk space of a scale, without starting it.
"""
