"""What each architecture assumes where its config is silent, and which architectures are another's under a new name.

References
----------
.. [1] Hugging Face transformers 5.24, the classes in ``models/*/configuration_*.py``
"""

from __future__ import annotations

from .source import Defaults

__all__ = ["ALIASES", "DEFAULTS"]

ALIASES = {
    "kimi_k2": "deepseek_v3",
    "qwen3_vl_text": "qwen3",
}
"""Architectures that hold what another does, though their defaults may differ."""

# layers, hidden size, heads, KV heads, head dimension, FFN, vocabulary, tied
DEFAULTS: dict[str, Defaults] = {
    "llama": Defaults(32, 4096, 32, None, None, 11008, 32000),
    "mistral": Defaults(32, 4096, 32, 8, None, 14336, 32000),
    "ministral": Defaults(32, 4096, 32, 8, None, 14336, 32000),
    "ministral3": Defaults(34, 4096, 32, 8, 128, 14336, 131072),
    "qwen2": Defaults(32, 4096, 32, 32, None, 22016, 151936),
    "qwen3": Defaults(32, 4096, 32, 32, 128, 22016, 151936),
    "gemma": Defaults(28, 3072, 16, 16, 256, 24576, 256000, True),
    "gemma2": Defaults(26, 2304, 8, 4, 256, 9216, 256000, True),
    "gemma3_text": Defaults(26, 2304, 8, 4, 256, 9216, 262208, True),
    "gemma4_text": Defaults(30, 2304, 8, 4, 256, 9216, 262144, True),
    "phi3": Defaults(32, 3072, 32, None, None, 8192, 32064),
    "phi": Defaults(24, 2048, 32, None, None, 8192, 51200),
    "persimmon": Defaults(36, 4096, 64, None, None, 16384, 262144),
    "olmo": Defaults(32, 4096, 32, None, None, 11008, 50304),
    "olmo2": Defaults(32, 4096, 32, None, None, 11008, 50304),
    "olmo3": Defaults(32, 4096, 32, None, None, 11008, 50304),
    "glm": Defaults(40, 4096, 32, 2, 128, 13696, 151552),
    "glm4": Defaults(40, 4096, 32, 2, 128, 13696, 151552),
    "cohere": Defaults(40, 8192, 64, None, None, 22528, 256000, True),
    "cohere2": Defaults(40, 8192, 64, None, None, 22528, 256000, True),
    "granite": Defaults(32, 4096, 32, None, None, 11008, 32000),
    "stablelm": Defaults(32, 2560, 32, 32, None, 6912, 50304),
    "smollm3": Defaults(36, 2048, 16, 4, None, 11008, 128256, True),
    "internlm3": Defaults(48, 4096, 32, 2, 128, 10240, 128512),
    "exaone": Defaults(32, 4096, 32, 8, None, 14336, 102400),
    "exaone4": Defaults(32, 4096, 32, 32, None, 16384, 102400),
    "ernie4_5": Defaults(18, 1024, 16, 2, 128, 3072, 103424, True),
    "seed_oss": Defaults(64, 4096, 80, 8, 128, 27648, 155136),
    "hunyuan_v1_dense": Defaults(32, 4096, 32, None, None, 11008, 290943),
    "nemotron": Defaults(32, 6144, 48, None, None, 24576, 256000),
    "arcee": Defaults(32, 2560, 32, None, None, 18432, 32000),
    "gpt2": Defaults(12, 768, 12, None, None, None, 50257, True),
    "gpt_neo": Defaults(24, 2048, 16, None, None, None, 50257, True),
    "gpt_neox": Defaults(44, 6144, 64, None, None, 24576, 50432),
    "gptj": Defaults(28, 4096, 16, None, None, None, 50400),
    "codegen": Defaults(28, 4096, 16, None, None, None, 50400),
    "gpt_bigcode": Defaults(12, 768, 12, None, None, None, 50257, True),
    "opt": Defaults(12, 768, 12, None, None, 3072, 50272, True),
    "bloom": Defaults(2, 64, 8, None, None, None, 250880, True),
    "mpt": Defaults(24, 2048, 16, None, None, None, 50368, True),
    "falcon": Defaults(32, 4544, 71, None, None, None, 65024, True),
    "starcoder2": Defaults(30, 3072, 24, 2, None, 12288, 49152, True),
    "bert": Defaults(12, 768, 12, None, None, 3072, 30522, True),
    "mixtral": Defaults(32, 4096, 32, 8, None, 14336, 32000),
    "qwen2_moe": Defaults(24, 2048, 16, 16, None, 5632, 151936),
    "qwen3_moe": Defaults(24, 2048, 32, 4, None, 6144, 151936),
    "olmoe": Defaults(16, 2048, 16, None, None, 2048, 50304),
    "phimoe": Defaults(32, 4096, 32, 8, None, 6400, 32064),
    "deepseek_v2": Defaults(32, 4096, 32, None, None, 11008, 102400),
    "deepseek_v3": Defaults(61, 7168, 128, 128, None, 18432, 129280),
    "deepseek_v32": Defaults(61, 7168, 128, 128, 64, 18432, 129280),
    "deepseek_v4": Defaults(43, 4096, 64, 1, 512, 2048, 129280),
    "glm4_moe": Defaults(46, 4096, 96, 8, None, 10944, 151552),
    "glm4_moe_lite": Defaults(47, 2048, 20, 20, 64, 10240, 154880),
    "glm_moe_dsa": Defaults(78, 6144, 64, 64, 64, 12288, 154880),
    "dots1": Defaults(62, 4608, 32, 32, None, 10944, 152064),
    "exaone_moe": Defaults(32, 4096, 32, 32, None, 16384, 102400),
    "gpt_oss": Defaults(36, 2880, 64, 8, 64, 2880, 201088),
    "llama4_text": Defaults(48, 5120, 40, 8, 128, 8192, 202048),
    "minimax": Defaults(32, 4096, 32, 8, None, 14336, 32000),
    "minimax_m2": Defaults(62, 3072, 48, 8, 128, 1536, 200064),
    "dbrx": Defaults(24, 2048, 16, None, None, None, 32000),
    "granitemoe": Defaults(32, 4096, 32, None, None, 11008, 32000),
    "granitemoeshared": Defaults(32, 4096, 32, None, None, 11008, 32000),
    "granitemoehybrid": Defaults(32, 4096, 32, None, None, 11008, 32000),
    "ernie4_5_moe": Defaults(28, 2560, 20, 4, None, 12288, 103424, True),
    "hunyuan_v1_moe": Defaults(32, 4096, 32, None, None, 11008, 290943),
    "qwen3_next": Defaults(48, 2048, 16, 2, 256, 5632, 151936),
    "qwen3_5_text": Defaults(32, 4096, 16, 4, 256, 12288, 248320),
    "qwen3_5_moe_text": Defaults(40, 2048, 16, 2, 256, None, 248320),
    "kimi_linear": Defaults(27, 2304, 32, 32, None, 9216, 163840),
    "nemotron_h": Defaults(None, 4096, 32, 8, 128, 21504, 131072),
    "jamba": Defaults(32, 4096, 32, 8, None, 14336, 65536),
    "bamba": Defaults(32, 4096, 32, 8, None, 14336, 128000),
    "falcon_h1": Defaults(32, 4096, 32, 8, None, 14336, 128000),
    "lfm2": Defaults(32, 2560, 32, 8, None, 12288, 65536, True),
    "lfm2_moe": Defaults(32, 2048, 32, 8, None, 7168, 65536, True),
    "mamba": Defaults(32, 768, None, None, None, None, 50280, True),
    "mamba2": Defaults(64, 4096, None, None, 64, None, 32768),
    "falcon_mamba": Defaults(32, 768, None, None, None, None, 50280, True),
    "glm4v_text": Defaults(40, 4096, 32, 2, None, 13696, 151552),
    "glm4v_moe_text": Defaults(46, 4096, 96, 8, None, 10944, 151424),
    "qwen2_vl_text": Defaults(80, 8192, 64, 8, None, 29568, 152064),
    "qwen2_5_vl_text": Defaults(80, 8192, 64, 8, None, 29568, 152064),
    "qwen3_vl_text": Defaults(32, 4096, 32, 32, 128, 22016, 151936),
    "qwen3_vl_moe_text": Defaults(24, 2048, 16, 16, None, 5632, 151936, True),
}
"""By ``model_type``; None where the architecture assumes nothing, or derives it from another size."""
