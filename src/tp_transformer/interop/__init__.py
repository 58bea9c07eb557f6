"""Models for other libraries, and from others.

- hf: Hugging Face transformers and the Hub. onnx: graphs for ONNX runtimes.
- exported: what both exports share.
- authors, pickles: the checkpoints published by the authors of the paper.
"""
