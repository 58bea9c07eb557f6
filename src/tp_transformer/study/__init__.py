"""Commands that combine several runs or models.

- demo: the bundled models answer and are scored; live_demo: two tiny models are trained.
- parts: what the demos and the reproduction share; watch: training of several runs side by side.
- bench: bindings compared at one budget; reproduce: rows of Table 1 at several scales.
- bundle: a trained model becomes the one that the package contains; retrain: its recorded runs are
  trained again, from the generation of their questions.
"""
