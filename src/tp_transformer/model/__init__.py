"""The models, and what they compute.

- config, binding, attention, masks, layers, transformer: the Transformer and the TP-Transformer.
- add_roles: TP-attention in other models.
- recurrent: the LSTM. base: the class from which both derive.
- loss, decoding, cache, bare, solver, stream: the loss; search; answers to questions in text.
- trace: recording and editing of tensors by name.
- family, folder, bundled, identity, weightless: building, loading, saving and describing models.
- fused, fused_training: cells by C kernels, for inference and for training.
- flops: the operations of a training step.
"""
