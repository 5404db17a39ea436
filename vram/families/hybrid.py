"""Architectures with state-space layers, linear attention or convolutions; written like those in ``dense.py``.

References
----------
.. [1] Hugging Face transformers 5.24, ``models/*/configuration_*.py`` and ``modeling_*.py``
"""

from __future__ import annotations

from ..shape import Recurrence
from .dense import biased
from .moe import EXPERTS, TOP_K, dense_first, each_layer, latent, qwen_ffns, routed, shared_width, typed_ffns
from .patterns import chosen, typed
from .source import Source, flag, present, whole

__all__ = ["HYBRID", "bamba", "delta"]


def _mamba(source: Source, hidden: int, prefix: str = "") -> Recurrence:
    """Mamba's mixer: every channel has a state of its own."""
    state, conv, bias = (
        ("mamba_d_state", "mamba_d_conv", "mamba_proj_bias") if prefix else ("state_size", "conv_kernel", "use_bias")
    )
    rank = "mamba_dt_rank" if prefix else "time_step_rank"
    expanded = source.whole(prefix + "expand", default=2) * hidden
    inner = expanded if prefix else source.whole("intermediate_size", default=expanded)
    automatic = source.find(rank) in (None, "auto")
    return Recurrence(
        kind="mamba",
        heads=inner,
        key_dim=source.whole(state, default=16),
        conv=source.whole(conv, default=4),
        rank=-(-hidden // 16) if automatic else source.whole(rank),
        norm=bool(prefix),
        bias=source.flag(bias),
        conv_bias=source.flag("mamba_conv_bias" if prefix else "use_conv_bias", True),
    )


def _pure_mamba(source: Source) -> Recurrence:
    return _mamba(source, source.size("hidden") or 0)


def _jamba(source: Source) -> Recurrence:
    return _mamba(source, source.size("hidden") or 0, "mamba_")


def _nemotron(source: Source) -> Recurrence:
    return Recurrence(
        kind="mamba2",
        heads=source.whole("mamba_num_heads", default=128),
        head_dim=source.whole("mamba_head_dim", default=64),
        key_heads=source.whole("mamba_n_groups", "n_groups", default=8),
        key_dim=source.whole("ssm_state_size", default=128),
        conv=source.whole("mamba_d_conv", "conv_kernel", default=4),
        norm=True,
        bias=source.flag("use_bias"),
        conv_bias=source.flag("mamba_conv_bias", source.flag("use_conv_bias", True)),
    )


def _mamba2(source: Source) -> Recurrence:
    return Recurrence(
        kind="mamba2",
        heads=source.whole("num_heads", default=128),
        head_dim=source.whole("head_dim", default=64),
        key_heads=source.whole("n_groups", default=8),
        key_dim=source.whole("state_size", default=128),
        conv=source.whole("conv_kernel", default=4),
        norm=True,
        bias=source.flag("use_bias"),
        conv_bias=source.flag("use_conv_bias", True),
    )


def bamba(source: Source, inner: int | None = None, norm: bool = True) -> Recurrence:
    """The keys that Bamba, Granite 4 and Falcon-H1 share."""
    heads = source.whole("mamba_n_heads", default=128)
    inner = inner or source.whole("mamba_expand", default=2) * (source.size("hidden") or 0)
    automatic = source.find("mamba_d_head") in (None, "auto")
    return Recurrence(
        kind="mamba2",
        heads=heads,
        head_dim=inner // max(heads, 1) if automatic else source.whole("mamba_d_head"),
        key_heads=source.whole("mamba_n_groups", default=1),
        key_dim=source.whole("mamba_d_state", default=256),
        conv=source.whole("mamba_d_conv", default=4),
        norm=norm,
        bias=source.flag("mamba_proj_bias"),
        conv_bias=source.flag("mamba_conv_bias", True),
    )


def _bamba_mixers(source: Source) -> str:
    full = set(source.wholes("attn_layer_indices") or ())
    return "".join("a" if layer in full else "r" for layer in range(source.layers))


def _falcon_h1(source: Source) -> Recurrence:
    inner = source.whole("mamba_d_ssm", default=None if "mamba_d_ssm" in source.config else 1024)
    return bamba(source, inner, source.flag("mamba_rms_norm"))


def delta(source: Source) -> Recurrence:
    return Recurrence(
        kind="delta",
        heads=source.whole("linear_num_value_heads", default=32),
        head_dim=source.whole("linear_value_head_dim", default=128),
        key_heads=source.whole("linear_num_key_heads", default=16),
        key_dim=source.whole("linear_key_head_dim", default=128),
        conv=source.whole("linear_conv_kernel_dim", default=4),
    )


def _kda(source: Source) -> Recurrence:
    sizes = source.part("linear_attn_config")
    dim = sizes.whole("head_dim", default=source.whole("linear_head_dim", default=128))
    heads = sizes.whole("num_heads", default=source.whole("linear_num_heads", default=32))
    conv = sizes.whole("short_conv_kernel_size", default=source.whole("linear_conv_kernel_dim", default=4))
    return Recurrence(kind="kda", heads=heads, head_dim=dim, key_heads=heads, key_dim=dim, rank=dim, conv=conv)


def _kimi_mixers(source: Source) -> str:
    listed = source.part("linear_attn_config").wholes("full_attn_layers")
    if listed is not None:
        full = set(listed)
        return typed(chosen("a", "r", lambda layer, _: layer + 1 in full))(source)
    return typed(chosen("a", "r", lambda layer, _: bool(layer and layer % 4 == 0)))(source)


def _lightning(source: Source) -> Recurrence:
    heads = source.size("heads") or 0
    dim = source.size("head_dim") or (source.size("hidden") or 0) // max(heads, 1)
    return Recurrence(kind="lightning", heads=heads, head_dim=dim, key_heads=heads, key_dim=dim)


def _short_conv(source: Source) -> Recurrence:
    bias = source.flag("conv_bias")
    return Recurrence(
        kind="conv",
        heads=source.size("hidden") or 0,
        conv=source.whole("conv_L_cache", default=3),
        bias=bias,
        conv_bias=bias,
    )


def _lfm_width(source: Source) -> int | None:
    width = source.whole("block_ff_dim", default=source.size("ffn"))
    if width is None or not source.flag("block_auto_adjust_ff_dim", True):
        return width
    width = 2 * width // 3
    scale = source.config.get("block_ffn_dim_multiplier", 1.0)
    if isinstance(scale, int | float) and not isinstance(scale, bool) and 0 < scale < 1000:
        multiple = source.whole("block_multiple_of", default=256) or 1
        width = -(-int(scale * width) // multiple) * multiple
    return width


def _lfm_mixers(source: Source) -> str:
    listed = source.wholes("full_attn_idxs")
    full = set(range(source.layers) if listed is None else listed)
    return typed(chosen("a", "r", lambda layer, _: layer in full))(source)


def _pattern(letters: dict[str, str]):
    """Nemotron-H's pattern of one letter per layer, or list of names, in the letters of one of ours."""
    names = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}

    def read(source: Source) -> str:
        word = source.word("hybrid_override_pattern")
        if not word or source.find("layers_block_type", "layer_types") is not None:
            listed = "layers_block_type" if source.config.get("layers_block_type") is not None else "layer_types"
            word = typed(None, listed, letters=names)(source)
        return "".join(letters.get(letter, letters["?"]) for letter in word[: source.layers])

    return read


def _nemotron_layers(source: Source) -> int | None:
    """As many as the pattern has letters, whatever ``num_hidden_layers`` says."""
    for name in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        value = source.find(name)
        if isinstance(value, list | str) and 0 < len(value) <= 10_000:
            return len(value)
    raise source.lacks("hybrid_override_pattern")


def _jamba_ffns(source: Source) -> str:
    """Experts in every so many layers; a single expert is an FFN like any other."""
    several = source.whole(*EXPERTS, default=16) > 1
    return _jamba_every("expert", 2, 1, "e" if several else "d", "d")(source)


def _jamba_every(kind: str, period: int, offset: int, yes: str, no: str):
    def holds(layer: int, source: Source) -> bool:
        every = source.whole(f"{kind}_layer_period", default=period) or 1
        return layer % every == source.whole(f"{kind}_layer_offset", default=offset)

    return lambda source: "".join(chosen(yes, no, holds)(layer, source) for layer in range(source.layers))


_NEMOTRON_FFNS = {"M": "n", "*": "n", "-": "d", "E": "e", "?": "d"}


def _nemotron_experts(default: int, *names: str):
    """A size of the experts, which only patterns with an E need."""

    def read(source: Source) -> int:
        return source.needed(*names, default=default) if "e" in _pattern(_NEMOTRON_FFNS)(source) else 0

    return read


def _granite_experts(source: Source) -> int:
    return source.whole(*EXPERTS, default=8)


_QWEN_NEXT = {
    **biased(),
    "qk_norm": "head",
    "query_gate": True,
    "recurrence": delta,
    "mixers": typed(
        chosen(
            "r",
            "a",
            lambda layer, source: bool((layer + 1) % (source.whole("full_attention_interval", default=4) or 1)),
        )
    ),
}
_QWEN_SHARED = {**shared_width("shared_expert_intermediate_size", 512), "shared_gate": True}
_NO_HEADS = {"heads": 1, "kv_heads": 1}
_PURE = {
    **_NO_HEADS,
    "head_dim": None,
    "norms": 1,
    "mixers": "r",
    "ffns": "n",
    "ffn": lambda source: source.size("ffn") or source.whole("expand", default=2) * (source.size("hidden") or 0),
}
_LFM = {"qk_norm": "head", "recurrence": _short_conv}

HYBRID: dict[str, dict[str, object]] = {
    "qwen3_next": {**_QWEN_NEXT, **routed(512, 10, 512, name="num_experts"), **_QWEN_SHARED, "ffns": qwen_ffns},
    "qwen3_5_text": _QWEN_NEXT,
    "qwen3_5_moe_text": {
        **_QWEN_NEXT,
        **routed(256, 8, 512, name="num_experts"),
        **_QWEN_SHARED,
        "ffn": whole("moe_intermediate_size", default=512),
    },
    "kimi_linear": {
        "tied": False,
        **latent(None, 512, 64, 128, 128),
        **routed(256, 8, 1024, shared=("num_shared_experts", "n_shared_experts"), shared_default=1, name="num_experts"),
        "moe_hidden": whole("routed_expert_hidden_size"),
        "approximate": present("routed_expert_hidden_size", "attn_res_block_size"),  # Kimi K3 holds more
        "ffns": typed_ffns(dense_first(1)),
        "mixers": _kimi_mixers,
        "recurrence": _kda,
    },
    "minimax": {
        **routed(8, 2, 14336, key="intermediate_size"),
        "mixers": typed(chosen("r", "a", lambda layer, _: layer % 2 == 1)),
        "recurrence": _lightning,
    },
    "nemotron_h": {
        "tied": False,
        "layers": _nemotron_layers,
        "mlp_bias": flag("mlp_bias"),
        "gated": False,
        "norms": 1,
        "experts": _nemotron_experts(8, *EXPERTS),
        "top_k": _nemotron_experts(2, *TOP_K),
        "moe_ffn": _nemotron_experts(7688, "moe_intermediate_size"),
        "moe_hidden": whole("moe_latent_size"),
        **shared_width("moe_shared_expert_intermediate_size", 7688),
        "mixers": _pattern({"M": "r", "*": "a", "-": "n", "E": "n", "?": "n"}),
        "ffns": _pattern(_NEMOTRON_FFNS),
        "recurrence": _nemotron,
    },
    "jamba": {
        **routed(16, 2, 14336, key="intermediate_size", name="num_experts"),
        "mixers": _jamba_every("attn", 8, 4, "a", "r"),
        "ffns": _jamba_ffns,
        "recurrence": _jamba,
    },
    "bamba": {
        **biased(mlp="mlp_bias"),
        "mixers": _bamba_mixers,
        "recurrence": bamba,
    },
    "granitemoehybrid": {
        **biased(),
        "mixers": typed(lambda layer, _: "r", "layer_types", "layers_block_type"),
        "recurrence": bamba,
        "experts": _granite_experts,
        "top_k": lambda source: source.whole(*TOP_K, default=2) if _granite_experts(source) else 0,
        "moe_ffn": lambda source: source.size("ffn") if _granite_experts(source) else 0,
        "ffn": whole("shared_intermediate_size", default=1024),
        **shared_width("shared_intermediate_size", 1024),
    },
    "falcon_h1": {
        **biased(mlp="mlp_bias"),
        "mixers": "b",
        "recurrence": _falcon_h1,
        "approximate": lambda source: source.flag("projectors_bias") != source.flag("mamba_proj_bias"),
    },
    "lfm2": {**_LFM, "ffn": _lfm_width, "mixers": _lfm_mixers},
    "lfm2_moe": {
        **_LFM,
        **routed(32, 4, 1792, name="num_experts"),
        "ffns": each_layer(dense_first(2, "num_dense_layers")),
        "mixers": typed(None),
    },
    "mamba": {**_PURE, "recurrence": _pure_mamba},
    "falcon_mamba": {**_PURE, "recurrence": _pure_mamba},
    "mamba2": {**_PURE, "recurrence": _mamba2},
}
"""Hybrid and pure state-space architectures by ``model_type``."""
