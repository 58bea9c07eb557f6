"""Small tasks that the package generates itself, for studies of binding and composition.

Each is one file with one function, registered in `TASKS`, whose keyword-only parameters are the
options of the task; docs/tasks.md describes what each of them tests.

- `scan`: commands to actions (Lake and Baroni, 2018)
- `recall`: the value of a key of two parts
- `lookup`: composed lookup tables (Liška et al., 2018)
- `quotients`: nested quotients of digits
"""
