"""The models, and what they compute, in plain PyTorch.

- config, binding, attention, layers, transformer: the Transformer and the TP-Transformer.
- batch, layout: batches of token ids, and how their rows are arranged and attend.
- drop_in: TP-attention in other models.
- recurrent: the LSTM. base: the class from which both derive.
- loss, search, solver: the loss; search; answers to questions in text.
- trace: recording and editing of tensors by name.
- checkpoint, folder, bundled: building, loading, saving and describing models.
- flops: the operations of a training step.
"""
