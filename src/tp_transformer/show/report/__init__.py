"""The report: one HTML page from runs, results and analyses.

`inputs` finds the files; `scores`, `runs`, `analyses` and `bench` make sections of them; `markup`
and `charts` make HTML and SVG; `report` puts the page together. To show another kind of file, write
a function from `Inputs` to sections and add it to `SECTIONS` in `report`.
"""
