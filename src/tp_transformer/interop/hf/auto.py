"""Registers the model and the tokenizer with the Auto classes of transformers."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from tp_transformer.interop.hf.config import TPTransformerConfig
from tp_transformer.interop.hf.model import TPTransformerForConditionalGeneration
from tp_transformer.interop.hf.tokenizer import TPTransformerTokenizer

AutoConfig.register(TPTransformerConfig.model_type, TPTransformerConfig)
AutoModelForSeq2SeqLM.register(TPTransformerConfig, TPTransformerForConditionalGeneration)
AutoTokenizer.register(TPTransformerConfig, TPTransformerTokenizer)
