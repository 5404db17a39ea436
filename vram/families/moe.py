"""Architectures with mixtures of experts and softmax attention; written like those in ``dense.py``.

References
----------
.. [1] Hugging Face transformers 5.24, ``models/*/configuration_*.py`` and ``modeling_*.py``
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import Message, ScenarioError
from ..shape import Compressed, FullAttention, Latent
from .dense import biased, odd_heads, rounded_heads
from .patterns import by_rotation, chosen, sliding, typed, windowed
from .source import Source, flag, needed, when, whole, window

__all__ = [
    "EXPERTS",
    "MOE",
    "TOP_K",
    "dense_first",
    "each_layer",
    "latent",
    "qwen_ffns",
    "routed",
    "shared_width",
    "typed_ffns",
]

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")


def routed(
    experts: int | None,
    top_k: int | None,
    width: int | None = None,
    key: str = "moe_intermediate_size",
    shared: str | tuple[str, ...] = (),
    shared_default: int = 0,
    name: str = "num_local_experts",
) -> dict[str, object]:
    """Experts of the width under ``key``, and the number of shared ones of that width under ``shared``.

    ``name`` is what the architecture calls the number of experts. The numbers
    are what it assumes in a nested config.
    """
    found: dict[str, object] = {
        "experts": needed(name, *EXPERTS, default=experts),
        "top_k": needed(*TOP_K, default=top_k),
        "moe_ffn": needed(key, default=width),
    }
    if shared:
        found["shared_experts"] = whole(*((shared,) if isinstance(shared, str) else shared), default=shared_default)
    return found


def dense_first(default: int, key: str | None = "first_k_dense_replace") -> Callable[[int, Source], str]:
    """Experts behind the first few layers: so many as the config says under ``key``."""
    return lambda layer, source: "d" if layer < (source.whole(key, default=default) if key else default) else "e"


def each_layer(letter: Callable[[int, Source], str]) -> Callable[[Source], str]:
    """A letter for every layer."""
    return lambda source: "".join(letter(layer, source) for layer in range(source.layers))


def typed_ffns(otherwise: Callable[[int, Source], str]) -> Callable[[Source], str]:
    """As ``mlp_layer_types`` lists them, or as ``otherwise`` says."""
    return typed(otherwise, "mlp_layer_types", letters={"dense": "d", "sparse": "e", "moe": "e", "hash_moe": "e"})


def qwen_ffns(source: Source) -> str:
    """Qwen: experts in every ``decoder_sparse_step``-th layer but those in ``mlp_only_layers``."""
    step, plain = source.whole("decoder_sparse_step", default=1), set(source.wholes("mlp_only_layers") or ())
    any_experts = bool(source.whole(*EXPERTS, default=1))
    if not step:
        message = Message("{key} in the config must be above 0.", key="decoder_sparse_step")
        raise ScenarioError("model", step, message)
    layers = range(source.layers)
    return "".join("e" if any_experts and layer not in plain and (layer + 1) % step == 0 else "d" for layer in layers)


def latent(q_rank: int | None, kv_rank: int, rope: int, nope: int, value: int, index: tuple[int, int] | None = None):
    """Latent attention's sizes, and the defaults of a nested config."""

    def read(source: Source) -> Latent:
        rank = source.whole("q_lora_rank", default=None if "q_lora_rank" in source.config else q_rank)
        heads = dims = 0
        if index:
            heads, dims = (
                source.whole("index_n_heads", default=index[0]),
                source.whole("index_head_dim", default=index[1]),
            )
        return Latent(
            q_rank=rank or None,
            kv_rank=source.needed("kv_lora_rank", default=kv_rank),
            rope=source.whole("qk_rope_head_dim", default=rope),
            nope=source.needed("qk_nope_head_dim", default=nope),
            value=source.needed("v_head_dim", default=value),
            index_heads=heads,
            index_dim=dims,
        )

    def channels(source: Source) -> int:
        return source.whole("qk_rope_head_dim", default=rope) + source.needed("qk_nope_head_dim", default=nope)

    return {"latent": read, "head_dim": channels, **biased()}


def shared_width(key: str, default: int) -> dict[str, object]:
    """One shared expert of a width of its own; none where that is 0."""
    return {
        "shared_experts": lambda source: 1 if source.whole(key, default=default) else 0,
        "shared_ffn": lambda source: source.whole(key, default=default) or None,
    }


def _interleaved(source: Source) -> str:
    chosen_layers = source.wholes("moe_layers")
    if chosen_layers is None:
        step = source.whole("interleave_moe_layer_step", default=1)
        chosen_layers = range(step - 1, source.layers, step) if step else ()
    chosen_layers = set(chosen_layers)
    return "".join("e" if layer in chosen_layers else "d" for layer in range(source.layers))


def _chunked(rotary: bool, source: Source) -> bool:
    return rotary and source.config.get("attention_chunk_size", 8192) is not None


def _ernie_ffns(source: Source) -> str:
    first = source.whole("moe_layer_start_index", default=1)
    end = source.find("moe_layer_end_index")
    last = source.layers - 1 if end in (None, -1) else source.whole("moe_layer_end_index")
    step = source.whole("moe_layer_interval", default=1) or 1
    layers = range(source.layers)
    return "".join("e" if first <= layer <= last and (layer + 1) % step == 0 else "d" for layer in layers)


def _glm_indexers(source: Source) -> str:
    pattern = source.config.get("index_topk_pattern")
    if isinstance(pattern, str) and source.find("indexer_types") is None:
        return "".join("i" if letter == "S" else "a" for letter in pattern[: source.layers]) or "a"
    every = source.whole("index_topk_freq", default=1) or 1
    offset = source.whole("index_skip_topk_offset", default=2)
    return typed(
        chosen("a", "i", lambda layer, _: max(layer - offset + 1, 0) % every == 0),
        "indexer_types",
        letters={"full": "a", "shared": "i"},
    )(source)


def _one_of(*names: str) -> Callable[[Source], int]:
    """A whole number, also where a list repeats it for every layer."""

    def read(source: Source) -> int:
        for name in names:
            value = source.config.get(name)
            if isinstance(value, list) and value and all(item == value[0] for item in value):
                return Source({name: value[0]}, prefix=source.prefix).needed(name)
        return source.needed(*names, default=1)

    return read


def _compress_letters(source: Source) -> str:
    rates = source.wholes("compress_ratios")
    if rates is not None and source.find("layer_types") is None:
        if len(rates) < source.layers or set(rates) - {0, 4, 128}:
            message = Message(
                "The list {key} in the config does not name a known kind for each layer.", key="compress_ratios"
            )
            raise ScenarioError("model", "compress_ratios", message)
        return "".join({0: "w", 4: "c", 128: "h"}[rate] for rate in rates[: source.layers])
    return typed(chosen("c", "h", lambda layer, _: layer >= 2 and layer % 2 == 1))(source)


def _compressed(source: Source) -> Compressed:
    rates = source.part("compress_rates")
    mild = rates.whole("compressed_sparse_attention", default=4)
    strong = rates.whole("heavily_compressed_attention", default=128)
    return Compressed(
        q_rank=source.whole("q_lora_rank", default=1024),
        out_rank=source.whole("o_lora_rank", default=1024),
        out_groups=source.whole("o_groups", default=8),
        index_heads=source.whole("index_n_heads", default=64),
        index_dim=source.whole("index_head_dim", default=128),
        mild=source.whole("compress_rate_csa", default=mild),
        strong=source.whole("compress_rate_hca", default=strong),
        streams=source.whole("hc_mult", default=4),
    )


def _gemma4_mixers(source: Source) -> str:
    word = typed(chosen("w", "a", lambda layer, _: bool((layer + 1) % 6)))(source)[:-1] + "a"
    shared = min(source.whole("num_kv_shared_layers", default=0), len(word))
    return word[: len(word) - shared] + word[len(word) - shared :].upper()


def _gemma4_ffns(source: Source) -> str:
    if source.flag("enable_moe_block"):
        return "b" * source.layers
    wide = source.whole("num_kv_shared_layers", default=0) if source.flag("use_double_wide_mlp") else 0
    wide = min(wide, source.layers)
    return "d" * (source.layers - wide) + "D" * wide


def _gemma4_overrides(source: Source) -> dict | None:
    """What a saved config says of the layers without a window, which must then all be alike; None for nothing."""
    given = source.find("per_layer_config")
    if not isinstance(given, dict):
        return None
    full = {layer for layer, letter in enumerate(_gemma4_mixers(source)) if letter in "aA"}
    named = {int(key) if isinstance(key, str) and re.fullmatch("[0-9]{1,5}", key) else -1 for key in given}
    found = list(given.values())
    alike = all(isinstance(item, dict) and item == found[0] for item in found)
    return found[0] if found and alike and named == full else {}


def _gemma4_full(source: Source) -> FullAttention:
    same, kv_heads = source.flag("attention_k_eq_v"), source.size("kv_heads")
    saved = _gemma4_overrides(source)
    if saved is None:
        head_dim = source.whole("global_head_dim", default=512)
        kv_heads = source.whole("num_global_key_value_heads", default=kv_heads) if same else kv_heads
    else:
        layer = Source(saved, prefix=f"{source.prefix}per_layer_config.")
        head_dim = layer.whole("head_dim", default=source.size("head_dim"))
        kv_heads = layer.whole("num_key_value_heads", default=kv_heads)
    return FullAttention(head_dim=head_dim, kv_heads=kv_heads, shared_values=same)


def _gemma4_odd(source: Source) -> bool:
    """Settings that no published model has: several kinds of full layers, or wide FFNs next to experts."""
    several = bool(source.config.get("per_layer_config")) and not _gemma4_overrides(source)
    return several or (source.flag("enable_moe_block") and source.flag("use_double_wide_mlp"))


def _gemma4_experts(*names: str) -> Callable[[Source], int]:
    return lambda source: source.needed(*names) if source.flag("enable_moe_block") else 0


_GRANITE = {**biased(), **routed(8, 2, key="intermediate_size")}
_DEEPSEEK3 = {
    **latent(1536, 512, 64, 128, 128),
    **routed(256, 8, 2048, shared="n_shared_experts", shared_default=1, name="n_routed_experts"),
    "expert_groups": whole("n_group", default=8),
    "top_groups": whole("topk_group", default=4),
    "ffns": each_layer(dense_first(3)),
}

MOE: dict[str, dict[str, object]] = {
    "mixtral": {**windowed(), **routed(8, 2, 14336, key="intermediate_size")},
    "qwen2_moe": {
        "qkv_bias": flag("qkv_bias", True),
        **routed(60, 4, 1408, name="num_experts"),
        **shared_width("shared_expert_intermediate_size", 5632),
        "shared_gate": True,
        "ffns": qwen_ffns,
        "window": window(default=4096),
    },
    "qwen3_moe": {**biased(), "qk_norm": "head", **routed(128, 8, 768, name="num_experts"), "ffns": qwen_ffns},
    "qwen3_vl_moe_text": {**biased(), "qk_norm": "head", **routed(60, 4, 1408, name="num_experts"), "ffns": qwen_ffns},
    "olmoe": {
        **biased(),
        "qk_norm": "full",
        "approximate": odd_heads,
        **routed(64, 8, 2048, key="intermediate_size", name="num_experts"),
    },
    "phimoe": {
        **biased(),
        **windowed(),
        "norm": "layer",
        "head_bias": flag("lm_head_bias"),
        **routed(16, 2, 6400, key="intermediate_size"),
    },
    "deepseek_v2": {
        **latent(1536, 512, 64, 128, 128),
        "mlp_bias": flag("mlp_bias"),
        **routed(64, None, 1407, shared="n_shared_experts", shared_default=2, name="n_routed_experts"),
        "ffns": each_layer(dense_first(0)),
    },
    "deepseek_v3": _DEEPSEEK3,
    "deepseek_v32": {**_DEEPSEEK3, **latent(1536, 512, 64, 128, 128, (64, 128)), "ffns": typed_ffns(dense_first(3))},
    "deepseek_v4": {
        "ffn": needed("moe_intermediate_size", "intermediate_size", default=2048),
        **routed(256, 6, 2048, name="n_routed_experts"),
        "shared_experts": 1,
        "mlp_bias": flag("mlp_bias"),
        "compressed": _compressed,
        "mixers": _compress_letters,
        "window": window(default=128),
    },
    "glm4_moe": {
        "head_dim": rounded_heads,
        "qkv_bias": flag("attention_bias"),
        "qk_norm": when("use_qk_norm", "head"),
        **routed(128, 8, 1408, shared="n_shared_experts", shared_default=1, name="n_routed_experts"),
        "ffns": each_layer(dense_first(1)),
    },
    "glm4v_moe_text": {
        "head_dim": rounded_heads,
        "qkv_bias": flag("attention_bias", True),
        **routed(128, 8, 1408, shared="n_shared_experts", shared_default=1, name="n_routed_experts"),
        "ffns": each_layer(dense_first(1)),
    },
    "glm4_moe_lite": {
        **latent(768, 512, 64, 192, 256),
        **routed(64, 4, 1536, shared="n_shared_experts", shared_default=1, name="n_routed_experts"),
        "ffns": typed_ffns(dense_first(1, key=None)),
    },
    "glm_moe_dsa": {
        **latent(2048, 512, 64, 192, 256, (32, 128)),
        **routed(256, 8, 2048, shared="n_shared_experts", shared_default=1, name="n_routed_experts"),
        "ffns": typed_ffns(dense_first(3)),
        "mixers": _glm_indexers,
    },
    "dots1": {
        **biased(),
        "qk_norm": "head",
        **routed(None, None, 1408, shared="n_shared_experts", name="n_routed_experts"),
        "ffns": each_layer(dense_first(0)),
    },
    "exaone_moe": {
        "qk_norm": "head",
        **sliding(4, 4096),
        **routed(64, 8, 1024, shared="num_shared_experts", shared_default=1, name="num_experts"),
        "ffns": typed_ffns(dense_first(1)),
    },
    "gpt_oss": {
        **biased(default=True),
        "sinks": True,
        **routed(128, 4, 2880, key="intermediate_size"),
        "router_bias": True,
        "expert_bias": True,
        **sliding(2, 128, key=None),
    },
    "llama4_text": {
        **biased(),
        **routed(16, 1, 8192, key="intermediate_size"),
        "ffn": whole("intermediate_size_mlp", default=16384),
        "shared_experts": 1,
        "ffns": _interleaved,
        "mixers": by_rotation(_chunked),
        "window": window("attention_chunk_size", default=8192),
    },
    "minimax_m2": {"qk_norm": "full", **routed(256, 8, 1536, key="intermediate_size")},
    "dbrx": {
        "norm": "layer-plain",
        "head_dim": None,
        "kv_heads": lambda source: source.part("attn_config", needed=not source.nested).whole("kv_n_heads", default=1),
        "ffn": lambda source: source.part("ffn_config", needed=not source.nested).whole(
            "ffn_hidden_size", default=3584
        ),
        "experts": lambda source: source.part("ffn_config", needed=not source.nested).whole(
            "moe_num_experts", default=4
        ),
        "top_k": lambda source: source.part("ffn_config", needed=not source.nested).whole("moe_top_k", default=1),
        "moe_ffn": lambda source: source.part("ffn_config", needed=not source.nested).whole(
            "ffn_hidden_size", default=3584
        ),
    },
    "granitemoe": _GRANITE,
    "granitemoeshared": {**_GRANITE, **shared_width("shared_intermediate_size", 0)},
    "ernie4_5_moe": {
        **biased("use_bias", "use_bias"),
        "head_bias": flag("use_bias"),
        **routed(64, 6, 1536, shared="moe_num_shared_experts", shared_default=2),
        "router_bias": True,
        "ffns": _ernie_ffns,
    },
    "hunyuan_v1_moe": {
        **biased(),
        "qk_norm": "head",
        "experts": _one_of(*EXPERTS),
        "top_k": _one_of("moe_topk", "num_experts_per_tok"),
        "moe_ffn": needed("intermediate_size", default=11008),
        "shared_experts": 1,
    },
    "gemma4_text": {
        **biased(),
        "norms": 4,
        "qk_norm": "head",
        "window": window(default=512),
        "mixers": _gemma4_mixers,
        "ffns": _gemma4_ffns,
        "full": _gemma4_full,
        "approximate": _gemma4_odd,
        "layer_embed": whole("hidden_size_per_layer_input", default=256),
        "layer_vocab": whole("vocab_size_per_layer_input", default=262144),
        "experts": _gemma4_experts(*EXPERTS),
        "top_k": _gemma4_experts(*TOP_K),
        "moe_ffn": _gemma4_experts("moe_intermediate_size"),
    },
}
"""Mixture-of-experts architectures by ``model_type``."""
