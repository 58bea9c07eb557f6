"""Everything that is compiled: C kernels for x86 CPUs, and what calls them.

Each computes what plain PyTorch computes, faster, and PyTorch takes its place where the kernels are
not compiled or `TPT_OPS` is 0.

- native: the C sources, compiled by `hatch_build.py` during installation. library: loading and
  calling them.
- functions, cells, int8: functions of tensors, as custom operators of PyTorch: attention within
  packed rows and the iterations of the optimizer Muon; a stack of cells in training; products in
  int8.
- engine, weights: inference with a whole Transformer, and the weights as the kernels read them.
"""
