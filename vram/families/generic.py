"""Estimates for architectures that are not known exactly, read like a Llama's from the usual keys."""

from __future__ import annotations

from ..shape import Latent, Recurrence
from .dense import four_times
from .hybrid import bamba, delta
from .moe import EXPERTS, TOP_K
from .patterns import LETTERS, chosen
from .source import Source, flag, whole, window

__all__ = ["ESTIMATED", "GENERIC"]

_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size")
_PLAIN_ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "relu", "relu2", "gelu_pytorch_tanh", "quick_gelu")


def _any(*names: str):
    return lambda source: any(source.config.get(name) is True and bool(source.find(name)) for name in names)


def _any_biases(source: Source) -> bool:
    return _any("attention_bias", "qkv_bias", "add_qkv_bias", "use_qkv_bias", "use_bias", "bias", "add_bias_linear")(
        source
    )


def _experts(source: Source) -> int:
    return source.whole(*EXPERTS, default=0)


def _expert_width(source: Source) -> int | None:
    return source.whole(*_WIDTH, default=source.size("ffn")) if _experts(source) else 0


def _ffns(source: Source) -> str:
    """Experts as ``moe_layer_freq`` says, a step or a list of 0 and 1, behind ``first_k_dense_replace`` layers."""
    if not _experts(source):
        return ""
    first = source.whole("first_k_dense_replace", "num_dense_layers", default=0)
    listed = source.config.get("moe_layer_freq")
    marks = source.wholes("moe_layer_freq") if isinstance(listed, list) else None
    step = 1 if marks else source.whole("moe_layer_freq", "decoder_sparse_step", default=1) or 1

    def dense(layer: int, _: Source) -> bool:
        return layer < first or (not marks[layer] if marks and layer < len(marks) else (layer % step) != 0)

    return "".join(chosen("d", "e", dense)(layer, source) for layer in range(source.layers))


def _latent(source: Source) -> Latent | None:
    names = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    if not all(source.whole(name) for name in names):
        return None
    return Latent(
        q_rank=source.whole("q_lora_rank") or None,
        kv_rank=source.whole("kv_lora_rank"),
        nope=source.whole("qk_nope_head_dim"),
        rope=source.whole("qk_rope_head_dim", default=0),
        value=source.whole("v_head_dim"),
    )


def _channels(source: Source) -> int | None:
    found = _latent(source)
    if found:
        return found.nope + found.rope
    heads, hidden, given = source.size("heads"), source.size("hidden"), source.size("head_dim")
    return given or (None if not heads or not hidden or hidden % heads == 0 else max(1, hidden // heads))


def _mixers(source: Source) -> str:
    """As ``layer_types`` says; attention where that is unheard of."""
    listed = source.items("layer_types") or source.items("layers_block_type") or []
    names = [name if isinstance(name, str) else "" for name in listed[: source.layers]]
    return "".join({"c": "a", "h": "a"}.get(letter, letter) for letter in (LETTERS.get(name, "a") for name in names))


def _recurrence(source: Source) -> Recurrence | None:
    """The mixer of layers that are not attention, by the keys there are; else linear attention of the same heads."""
    if "r" not in _mixers(source):
        return None
    if source.whole("linear_num_value_heads"):
        return delta(source)
    if source.whole("mamba_n_heads"):
        return bamba(source)
    heads, dim = source.size("heads"), _channels(source) or (source.size("hidden") or 0) // (source.size("heads") or 1)
    return Recurrence(kind="lightning", heads=heads, head_dim=dim, key_heads=heads, key_dim=dim)


def _kv_heads(source: Source) -> int | None:
    return 1 if source.flag("multi_query") else source.size("kv_heads")


GENERIC: dict[str, object] = {
    "approximate": True,
    "kv_heads": _kv_heads,
    "head_dim": _channels,
    "ffn": four_times,
    "gated": lambda source: (
        source.config.get("hidden_act", source.config.get("activation_function")) not in _PLAIN_ACTIVATIONS
    ),
    "qkv_bias": _any_biases,
    "out_bias": _any("attention_out_bias", "attention_bias", "use_bias", "bias", "add_bias_linear"),
    "mlp_bias": _any("mlp_bias", "use_bias", "bias", "add_bias_linear"),
    "qk_norm": lambda source: (
        "head" if _any("use_qk_norm", "qk_layernorm", "qk_norm", "use_qk_layernorm")(source) else "none"
    ),
    "query_gate": _any("attn_output_gate", "attention_output_gate"),
    "latent": _latent,
    "mixers": _mixers,
    "recurrence": _recurrence,
    "window": window(),
    "experts": _experts,
    "top_k": lambda source: max(1, source.whole(*TOP_K, default=1)) if _experts(source) else 0,
    "moe_ffn": _expert_width,
    "moe_hidden": whole("routed_expert_hidden_size", "moe_latent_size"),
    "shared_experts": lambda source: source.whole(*_SHARED, default=0) if _experts(source) else 0,
    "shared_ffn": whole("shared_expert_intermediate_size", "shared_intermediate_size"),
    "ffns": _ffns,
}
"""The reading of an unknown architecture."""


def _dense_width(source: Source) -> int | None:
    return source.whole("dense_intermediate_size", "intermediate_size_mlp", default=source.size("ffn"))


def _blocks(source: Source) -> list[tuple[dict, dict]]:
    """Nemotron-NAS's blocks: what attention and FFN of each layer are."""
    found = []
    for block in source.items("block_configs") or []:
        parts = [block.get(name) if isinstance(block, dict) else None for name in ("attention", "ffn")]
        found.append(tuple(part if isinstance(part, dict) else {} for part in parts))
    return found[: source.layers]


def _nas_mixers(source: Source) -> str:
    return "".join("n" if a.get("no_op") or a.get("replace_with_linear") else "a" for a, _ in _blocks(source)) or "a"


def _nas_ffns(source: Source) -> str:
    return "".join("n" if f.get("no_op") or f.get("replace_with_linear") else "d" for _, f in _blocks(source)) or "d"


def _nas_ffn(source: Source) -> int | None:
    """The mean width of the FFNs that are there."""
    widths = []
    for _, ffn in _blocks(source):
        scale = ffn.get("ffn_mult")
        if isinstance(scale, int | float) and not isinstance(scale, bool) and 0 < scale < 1000 and not ffn.get("no_op"):
            widths.append(-(-int(2 * scale * (source.size("hidden") or 0) / 3) // 256) * 256)
    return round(sum(widths) / len(widths)) if widths else source.size("ffn")


def _nas_kv(source: Source) -> int | None:
    groups = [a.get("n_heads_in_group") for a, _ in _blocks(source)]
    sizes = [group for group in groups if type(group) is int and group > 0]
    heads = source.size("heads") or 0
    return heads // max(set(sizes), key=sizes.count) if sizes and heads else source.size("kv_heads")


def _t5_layers(source: Source) -> tuple[int, int]:
    encoder = source.whole("num_layers", "encoder_layers", default=0)
    return encoder, source.whole("num_decoder_layers", "decoder_layers", default=encoder)


_ENCODER_DECODER = {
    **GENERIC,
    "layers": lambda source: sum(_t5_layers(source)) or source.size("layers"),
    "mixers": lambda source: "a" * _t5_layers(source)[0] + "x" * _t5_layers(source)[1] or "x",
    "gated": lambda source: str(source.config.get("feed_forward_proj")).startswith("gated"),
    "tied": flag("tie_word_embeddings", True),
}

ESTIMATED: dict[str, dict[str, object]] = {
    "mimo": {**GENERIC, "out_bias": False},
    "chatglm": {**GENERIC, "out_bias": flag("add_bias_linear"), "gated": True},
    "baichuan": GENERIC,
    "internlm2": GENERIC,
    "minimax_m3": {**GENERIC, "ffn": _dense_width},
    "nemotron-nas": {
        **GENERIC,
        "mixers": _nas_mixers,
        "ffns": _nas_ffns,
        "ffn": _nas_ffn,
        "kv_heads": _nas_kv,
        "gated": True,
    },
    "t5": _ENCODER_DECODER,
    "mt5": _ENCODER_DECODER,
    "encoder-decoder": _ENCODER_DECODER,
}
"""Architectures that the reference does not count as a causal language model, read better than by the usual keys."""
