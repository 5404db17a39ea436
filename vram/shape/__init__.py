"""What a language model is made of, how many parameters that is, and how to spell it in a link."""

from .counting import COMPONENTS, LayerKind, ParameterCount, Tensor, count_parameters, layer_kinds, tensors
from .link import decode_shape, encode_shape
from .model import FFNS, MIXERS, Shape, attention_kind, nearest_divisors
from .parts import Compressed, FullAttention, Latent, Recurrence

__all__ = [
    "COMPONENTS",
    "FFNS",
    "MIXERS",
    "Compressed",
    "FullAttention",
    "Latent",
    "LayerKind",
    "ParameterCount",
    "Recurrence",
    "Shape",
    "Tensor",
    "attention_kind",
    "count_parameters",
    "decode_shape",
    "encode_shape",
    "layer_kinds",
    "nearest_divisors",
    "tensors",
]
