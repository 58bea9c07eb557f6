"""Commands that combine several runs or models.

- engine: several runs trained side by side, resumed and scored; bench, reproduce and demo use it.
- bench: bindings compared at one budget; bench_table: its table, documents and figure.
- reproduce: rows of Table 1 at the scales of scales; reproduction_plan: what a scale would take.
- demo: the bundled models answer and are scored, or two tiny models are trained.
- bundle: a trained model becomes one that the package contains.
"""
