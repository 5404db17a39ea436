"""A config.json as a file: its text as a dictionary, its precision, and how its weights are quantized."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .errors import Message, ScenarioError, quoted
from .families.vision import TEXT_PARTS

__all__ = ["LARGEST", "Quantization", "read_config", "read_dtype", "read_quantization"]

LARGEST = 1_000_000
"""Bytes that a config may have; real ones have a few thousand."""

_DEEPEST = 32
_LONGEST_NUMBER = 30


def read_config(text: str | bytes) -> dict:
    """Turn the text of a config.json into a dictionary.

    ``NaN`` and ``Infinity``, which are not JSON but occur in such files, are
    read as null.

    Raises
    ------
    ScenarioError
        One sentence: the file is too large, not JSON (with line and column), nested too deeply, or not an object.
    """
    if not isinstance(text, str | bytes | bytearray):
        raise _wrong(Message("The config is neither text nor bytes."))
    size = len(text) if not isinstance(text, str) else len(text.encode("utf-8", "surrogatepass"))
    if size > LARGEST:
        raise _wrong(
            Message(
                "The file has {size} bytes; a model's config has at most {most}.", size=f"{size:,}", most=f"{LARGEST:,}"
            )
        )
    if not isinstance(text, str):
        try:
            text = bytes(text).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _wrong(
                Message("The file is not text in UTF-8: byte {place} is none.", place=error.start + 1)
            ) from None
    try:
        found = json.loads(
            text.removeprefix("\ufeff"), parse_constant=lambda name: None, parse_float=_finite, parse_int=_short
        )
    except json.JSONDecodeError as error:
        raise _wrong(
            Message("The file is not JSON: line {line}, column {column}.", line=error.lineno, column=error.colno)
        ) from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(found, dict):
        raise _wrong(Message("A model's config is a group of keys and values in curly brackets."))
    if _deeper(found, _DEEPEST):
        raise _too_deep()
    return found


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _short(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise _wrong(Message("A number in the file has more than {longest} digits.", longest=_LONGEST_NUMBER))
    return int(text)


def _deeper(value: object, levels: int) -> bool:
    """Whether a value is nested more deeply than so many levels, found level by level."""
    level = [value]
    for _ in range(levels):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from (inner for inner in value.values() if isinstance(inner, dict | list))
    elif isinstance(value, list):
        yield from (inner for inner in value if isinstance(inner, dict | list))


def _wrong(message: Message) -> ScenarioError:
    return ScenarioError("model", None, message)


def _too_deep() -> ScenarioError:
    return _wrong(Message("The file is nested more than {deepest} levels deep.", deepest=_DEEPEST))


def _parts(config: object) -> Iterator[dict]:
    """A config and the language model's config in it."""
    if isinstance(config, dict):
        yield config
        yield from (config[name] for name in TEXT_PARTS if isinstance(config.get(name), dict))


_DTYPES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def read_dtype(config: dict) -> str | None:
    """The precision that the weights are stored in: bf16, fp16, fp32 or fp64; None where the config does not say."""
    for part in _parts(config):
        for name in ("dtype", "torch_dtype"):
            value = part.get(name)
            if isinstance(value, str) and value.removeprefix("torch.") in _DTYPES:
                return _DTYPES[value.removeprefix("torch.")]
    return None


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint stores the weights that it quantizes.

    Attributes
    ----------
    method : str
        The name of the method, as the config says it.
    format : str
        What one value is: ``fp8``, ``fp4``, ``nf4``, ``int4`` and so on; empty where that is not known.
    bits : int or None
        Bits of one value.
    block : int or None
        Values that share a scale; None for one scale per row or tensor, which is next to nothing.
    scale_bits : float
        Bits of the scale, and of a zero point where there is one.
    experts : str
        Where the routed experts' weights are in a format of their own, which.
    kept : tuple of str
        Modules that the config says are not quantized.
    """

    method: str
    format: str = ""
    bits: int | None = None
    block: int | None = None
    scale_bits: float = 0
    experts: str = ""
    kept: tuple[str, ...] = ()

    @property
    def stored_bits(self) -> float | None:
        """Bits that one quantized weight takes, with its share of the scales."""
        if self.bits is None:
            return None
        return self.bits + (self.scale_bits / self.block if self.block else 0)

    @property
    def description(self) -> Message:
        """In words."""
        if self.experts:
            return Message(
                "{rest}; the experts in {experts}", rest=replace(self, experts="").description, experts=self.experts
            )
        if self.bits is None:
            return Message("quantized by {method}, in a way that is not known here", method=quoted(self.method))
        if not self.block:
            return Message("{format}, {bits} bits per weight", format=self.format, bits=self.bits)
        bits = f"{self.stored_bits:.4g}"
        return Message(
            "{format} with a scale per {block} values, {bits} bits per weight",
            format=self.format,
            block=f"{self.block:,}",
            bits=bits,
        )


_KEPT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")


def read_quantization(config: dict) -> Quantization | None:
    """How the weights of a checkpoint are stored, None where they are not quantized.

    References
    ----------
    .. [1] Hugging Face transformers 5.24, ``utils/quantization_config.py``
    .. [2] QLoRA, arXiv:2305.14314, for NF4 and double quantization; OCP Microscaling Formats 1.0, for MXFP4
    """
    for part in _parts(config):
        for name in ("quantization_config", "compression_config"):
            found = part.get(name)
            if isinstance(found, dict) and found:
                return _quantization(found, found.get("expert_dtype", part.get("expert_dtype")))
    return None


def _quantization(found: dict, experts: object) -> Quantization:
    method = str(found.get("quant_method") or ("bitsandbytes" if "load_in_4bit" in found else "unknown"))[:40].lower()
    names = next((found[name] for name in _KEPT if isinstance(found.get(name), list)), [])
    kept = tuple(name[:200] for name in names[:10_000] if isinstance(name, str))
    known = _METHODS.get(method.replace("_", "-"))
    experts = experts if isinstance(experts, str) and experts in ("fp4", "fp8", "int4", "int8") else ""
    return Quantization(method, *(known(found) if known else ()), experts=experts, kept=kept)


def _count(found: dict, *names: str) -> int | None:
    """A small whole number above 0 under one of the names."""
    values = (found.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 < value < 10**6), None)


def _fp8(found: dict) -> tuple:
    block = found.get("weight_block_size")
    sizes = block if isinstance(block, list) and all(type(size) is int and 0 < size < 10**5 for size in block) else []
    scale = 8 if found.get("scale_fmt") == "ue8m0" else 32
    return ("fp8", 8, math.prod(sizes), scale) if sizes else ("fp8", 8)


def _integers(found: dict) -> tuple:
    """GPTQ and AWQ: a 16-bit scale and a zero point per group."""
    bits = _count(found, "bits", "w_bit", "wbits")
    if bits is None or bits > 16:
        return ()
    group = _count(found, "group_size", "q_group_size")
    return (f"int{bits}", bits, group, 16 + bits) if group else (f"int{bits}", bits)


def _bitsandbytes(found: dict) -> tuple:
    if found.get("load_in_4bit") is True or found.get("_load_in_4bit") is True:
        double = found.get("bnb_4bit_use_double_quant") is True
        kind = "nf4" if found.get("bnb_4bit_quant_type") == "nf4" else "fp4"
        return (kind, 4, 64, 8 + 32 / 256) if double else (kind, 4, 64, 32)
    return ("int8", 8)


def _compressed(found: dict) -> tuple:
    """compressed-tensors: the weights of the first group that says what they are."""
    groups = found.get("config_groups")
    for group in list(groups.values())[:100] if isinstance(groups, dict) else []:
        weights = group.get("weights") if isinstance(group, dict) else None
        bits = _count(weights, "num_bits") if isinstance(weights, dict) else None
        if bits and bits <= 16:
            kind = ("fp" if weights.get("type") == "float" else "int") + str(bits)
            size = _count(weights, "group_size")
            narrow = bits == 4 and kind == "fp4"
            return (kind, bits, size, 8 if narrow else 16) if size else (kind, bits)
    return ()


def _modelopt(found: dict) -> tuple:
    inner = found.get("quantization") if isinstance(found.get("quantization"), dict) else found
    algorithm = str(inner.get("quant_algo", "")).upper()
    if "NVFP4" in algorithm:
        return "fp4", 4, _count(inner, "group_size") or 16, 8
    if "FP8" in algorithm:
        return "fp8", 8
    return _compressed(found)


_METHODS = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "mxfp4": lambda found: ("fp4", 4, 32, 8),
    "gptq": _integers,
    "awq": _integers,
    "auto-round": _integers,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "eetq": lambda found: ("int8", 8),
}
"""What each method stores: format, bits, values per scale, bits of the scale."""
