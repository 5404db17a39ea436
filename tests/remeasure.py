"""Measures again what PyTorch's accounting claims, beside the estimate: a maintainer's script, not a test.

    python tests/remeasure.py          on CPU: saved bytes of small models, to the byte, and peaks of backward
    python tests/remeasure.py --families [--json]   the same for all families of blocks.ON_CPU, as CUDA would
    python tests/remeasure.py --cuda   on a CUDA machine: whole steps of two real shapes with random weights

Needs torch and transformers (and peft for adapters), which the product does
not; estimates were written from torch 2.13, transformers 5.24, peft 0.21.
On CPU only eager attention in families without LayerNorm or dropout equals the
CUDA path; ``--families`` casts and drops as CUDA does, and what still differs
stands in the data that it prints (tests/data/pytorch_saved_cpu.json.gz). Append
what ``--cuda --json`` prints, with its versions, to a file in tests/data to keep
it.
"""

import argparse
import contextlib
import gc
import json
import sys
import weakref
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vram import Scenario, estimate, presets, shape_from_config

SMALL = {
    "llama": {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2},
    "qwen2": {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 6},
    "qwen3": {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
              "head_dim": 64},
}  # fmt: skip
COMMON = {"intermediate_size": 640, "vocab_size": 1000, "tie_word_embeddings": False}
FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32, "bf16-mixed": torch.float32}


def build(config, precision, attention, device):
    """A model with random weights."""
    config = transformers.AutoConfig.for_model(**config, attn_implementation=attention)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=FORMATS[precision]).train()


def forward(model, ids, precision):
    """The loss of one forward pass, under autocast where the precision means that."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
        return model(input_ids=ids, labels=ids, use_cache=False).loss


def saved_bytes(model, ids, precision):
    """Bytes of all distinct storages that autograd keeps, but for parameters and copies of them."""
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in model.parameters() if p.dim() >= 2}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        cast = precision == "bf16-mixed" and tensor.dtype == torch.bfloat16 and (
            tuple(tensor.shape) in shapes or (*tensor.shape[:-2], *tensor.shape[:-3:-1]) in shapes
        )  # fmt: skip
        if storage.data_ptr() not in owned and not cast:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward(model, ids, precision)
    total = sum(size for size, _ in kept.values())
    del loss
    return total


def on_cpu():
    """Small models on CPU, eager attention: measured and estimated bytes saved for backward."""
    print(f"{'family':<8} {'precision':<10} {'b':>2} {'s':>5} {'measured':>12} {'estimated':>12} {'residual':>9}")
    for family, own in SMALL.items():
        config = {"model_type": family, **COMMON, **own}
        for precision in FORMATS:
            model = build(config, precision, "eager", "cpu")
            for batch, seq in ((1, 128), (2, 112), (3, 160)):
                ids = torch.randint(0, COMMON["vocab_size"], (batch, seq))
                measured = saved_bytes(model, ids, precision)
                link = f"model=custom&precision={precision}&attention=eager&batch={batch}&seq={seq}"
                found = estimate(Scenario.from_link(link, shape=shape_from_config(config))).worst.saved
                sizes = f"{measured:>12,} {found:>12,} {found - measured:>9,}"
                print(f"{family:<8} {precision:<10} {batch:>2} {seq:>5} {sizes}")


GATED = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
         "intermediate_size": 640}  # fmt: skip
BLOOM = {"hidden_size": 256, "n_head": 8, "n_layer": 2}
ROUTED = GATED | {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 192}
DROPLESS = {"attention_dropout": 0.0, "residual_dropout": 0.0}
FAMILIES = [
    *({"model_type": family, **GATED} for family in (
        "gemma", "gemma3_text", "granite", "smollm3", "ministral", "ernie4_5", "exaone4", "hunyuan_v1_dense", "phi3",
        "glm", "glm4", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "stablelm", "phi", "nemotron", "starcoder2")),
    {"model_type": "seed_oss", **GATED, **DROPLESS},
    {"model_type": "seed_oss", **GATED, "attention_dropout": 0.1, "residual_dropout": 0.1},
    {"model_type": "opt", "hidden_size": 256, "word_embed_proj_dim": 256, "num_attention_heads": 8, "ffn_dim": 640,
     "dropout": 0.0},
    {"model_type": "opt", "hidden_size": 256, "word_embed_proj_dim": 256, "num_attention_heads": 8, "ffn_dim": 640,
     "dropout": 0.1},
    {"model_type": "bloom", **BLOOM},
    {"model_type": "mpt", "d_model": 256, "n_heads": 8, "n_layers": 2},
    {"model_type": "mixtral", **GATED, "num_local_experts": 8, "num_experts_per_tok": 3},
    {"model_type": "qwen3_moe", **ROUTED, "norm_topk_prob": True},
    {"model_type": "qwen2_moe", **ROUTED, "shared_expert_intermediate_size": 448},
    {"model_type": "olmoe", **ROUTED},
    {"model_type": "glm4_moe", **ROUTED, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 0},
    {"model_type": "glm4_moe", **ROUTED, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
     "use_qk_norm": True},
    {"model_type": "deepseek_v3", "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8,
     "intermediate_size": 640, "moe_intermediate_size": 192, "n_routed_experts": 8, "num_experts_per_tok": 4,
     "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 96,
     "kv_lora_rank": 88, "qk_rope_head_dim": 32, "qk_nope_head_dim": 48, "v_head_dim": 40},
    {"model_type": "gpt_oss", **GATED, "num_local_experts": 8, "num_experts_per_tok": 4,
     "layer_types": ["full_attention"] * 2},
]  # fmt: skip
TOKENS = {"vocab_size": 1000, "tie_word_embeddings": False, "num_hidden_layers": 2, "bos_token_id": 1,
          "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip


class AsOnCuda(TorchFunctionMode):
    """CUDA's autocast and dropout on CPU: operations that autocast computes in FP32 there, and Boolean masks."""

    WHOLE = {"exp", "log", "pow", "rsqrt", "reciprocal", "softplus", "layer_norm", "norm", "prod", "softmax",
             "log_softmax", "cumsum", "sum", "__pow__", "__rpow__"}  # fmt: skip

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.nn.functional.dropout:
            p, training = kwargs.get("p", 0.5), kwargs.get("training", True)
            return torch.native_dropout(args[0], p, True)[0] if training and p else args[0]
        if function.__name__ in self.WHOLE and torch.is_autocast_enabled("cpu"):
            args = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
        return function(*args, **kwargs)


def differs(model, config, precision, attention):
    """Bytes that CUDA keeps beyond CPU: a number, and one for each token.

    Random states of FlashAttention, 24 bytes a layer, less the one number that
    scales Gemma's embedding; for each token LayerNorm's statistics, which on CUDA
    are FP32 also for 16-bit inputs.
    """
    cast = precision == "bf16" or (precision == "bf16-mixed" and config["model_type"] == "nemotron")
    norms = sum(isinstance(m, torch.nn.LayerNorm) for m in model.modules()) if cast else 0
    layers = model.config.num_hidden_layers
    flash = 24 * layers if attention == "sdpa" and precision != "fp32" else 0
    scale = (2 if precision == "bf16" else 4) if config["model_type"].startswith("gemma") else 0
    return flash - scale, 4 * norms


def families_on_cpu(as_json):
    """Saved bytes of all families of ``blocks.ON_CPU`` on CPU tensors, attention and casts as CUDA's."""
    torch.set_num_threads(1)
    enabled = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: enabled(*device) if device else enabled("cpu")  # asked by Nemotron
    torch.get_autocast_gpu_dtype = lambda: torch.bfloat16
    rows, known = [], FAMILIES + [one for c in FAMILIES if (one := grouped_alike(c))]
    for number, own in enumerate(known):
        config = {**TOKENS, **own}
        for attention in ("eager", "sdpa"):
            dropping = config.get("dropout") or config.get("attention_dropout")
            for precision in FORMATS:
                # In FP32 PyTorch has only plain products for grouped heads; the other kernels are CUDA's own.
                heads = config.get("num_key_value_heads", 8), config.get("num_attention_heads", 8)
                math = attention == "sdpa" and precision == "fp32"
                # CPU's kernels lack dropout, and values of another size than the queries.
                lacking = attention == "sdpa" and (dropping or "q_lora_rank" in config)
                if (math and heads[0] == heads[1]) or lacking:
                    continue
                try:
                    model = build(config, precision, attention, "cpu")
                except ValueError:  # eager attention only
                    continue
                for batch, seq in ((1, 72), (2, 56)):
                    ids = torch.randint(0, TOKENS["vocab_size"], (batch, seq))
                    with AsOnCuda(), sdpa_kernel(SDPBackend.MATH) if math else contextlib.nullcontext():
                        measured = saved_bytes(model, ids, precision)
                    more, per_token = differs(model, config, precision, attention)
                    rows.append([number, attention, precision, batch, seq, measured, more, per_token])
                    kernel = "eager" if attention == "eager" else "flash"
                    link = (f"model=custom&precision={precision}&attention={kernel}&batch={batch}&seq={seq}"
                            f"&dropout={int(bool(dropping))}")  # fmt: skip
                    found = estimate(Scenario.from_link(link, shape=shape_from_config(config))).worst.saved
                    if not as_json:
                        off = found - measured - more - per_token * batch * seq
                        print(f"{own['model_type']:<17} {attention:<6} {precision:<10} {batch} {seq:>4} "
                              f"{measured:>11,} {found:>11,} {off:>9,}", flush=True)  # fmt: skip
    if as_json:
        source = (
            f"torch {torch.__version__}, transformers {transformers.__version__}; every saved tensor of forward and"
            " loss recorded with saved_tensors_hooks on CPU tensors by tests/remeasure.py --families --json, which"
            " casts and drops as CUDA does. CUDA keeps besides: more (24 bytes a layer of FlashAttention's random"
            " state, less the one number that scales Gemma's embedding) + per_token (4 bytes for each LayerNorm whose"
            " statistics are FP32 on CUDA and 16-bit on CPU) · batch · seq"
        )
        columns = ["config", "attention", "precision", "batch", "seq", "saved", "more", "per_token"]
        print(json.dumps({"source": source, "columns": columns, "configs": [TOKENS | c for c in known], "rows": rows}))


def grouped_alike(config):
    """The same family in other sizes, with a KV head for each head."""
    if config["model_type"] in ("opt", "bloom", "mpt", "deepseek_v3"):
        return None
    sizes = {"hidden_size": 192, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 48,
             "intermediate_size": 448, "num_hidden_layers": 3}  # fmt: skip
    types = {"layer_types": ["full_attention"] * 3} if "layer_types" in config else {}
    return config | sizes | types


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations made and nobody has dropped, and their peak."""

    def __init__(self):
        super().__init__()
        self.live, self.now, self.peak = {}, 0, 0

    def add(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.live:
            self.live[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.drop, storage._cdata)

    def drop(self, key):
        self.now -= self.live.pop(key)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        return made


WIDE = {"hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": 1000, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0}  # fmt: skip
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE = {"model_type": "qwen3_moe", "intermediate_size": 1024, "num_experts": 8, "norm_topk_prob": True}
PEAKS = [
    *({"model_type": "llama", "intermediate_size": ffn} for ffn in (1408, 2048, 4096)),
    *({"model_type": family, "intermediate_size": 2048}
      for family in ("qwen2", "qwen3", "phi3", "cohere", "gpt_neox", "starcoder2")),
    *(MIXTRAL | {"intermediate_size": ffn} for ffn in (1024, 1792)),
    QWEN3_MOE | {"moe_intermediate_size": 384, "num_experts_per_tok": 4},
    QWEN3_MOE | {"moe_intermediate_size": 1384, "num_experts_per_tok": 2},
    {"model_type": "olmoe", "intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 4},
]  # fmt: skip


def backward_on_cpu():
    """Peaks of backward on CPU tensors in BF16; an operation's own temporaries are not seen."""
    print(f"{'recompute':<10} {'measured':>12} {'estimated':>12} {'off':>9}  model")
    for own in PEAKS:
        config = WIDE | own
        for recompute in ("none", "full"):
            model, live = build(config, "bf16", "sdpa", "cpu"), LiveBytes()
            if recompute == "full":
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            ids = torch.randint(0, WIDE["vocab_size"], (1, 2048))
            with live:
                for parameter in model.parameters():
                    live.add(parameter)
                loss = forward(model, ids, "bf16")
                live.peak = live.now
                loss.backward()
            link = f"model=custom&precision=bf16&seq=2048&recompute={recompute}"
            found = estimate(Scenario.from_link(link, shape=shape_from_config(config))).worst
            states = sum(t.bytes for t in found.moments[0].terms if t.group == "optimizer")
            estimated = found.phases["backward"] - states
            off = f"{estimated / live.peak - 1:>+9.3%}"
            print(f"{recompute:<10} {live.peak:>12,} {estimated:>12,} {off}  {json.dumps(own)}")


STEPS = [
    f"model={model}&precision={precision}&seq=2048&recompute={recompute}{tuning}"
    for model in ("llama-3.2-1b", "qwen2.5-1.5b")
    for precision in ("bf16", "bf16-mixed")
    for recompute in ("none", "full")
    for tuning in ("", "&tuning=lora&base=bf16&lora_rank=16&lora_targets=all-linear")
]


def step_peaks(scenario):
    """Peaks of the second of two training steps: largest allocated and reserved bytes, and what the device shows."""
    recipe, batch = scenario.recipe, scenario.batch
    config = presets.model(scenario.model.preset).config
    precision = "bf16" if recipe.tuning == "lora" else recipe.precision
    model = build(config, precision, "sdpa", "cuda")
    if recipe.tuning == "lora":
        import peft

        model = peft.get_peft_model(
            model, peft.LoraConfig(r=recipe.lora_rank, target_modules="all-linear", lora_dropout=0.0),
            autocast_adapter_dtype=recipe.precision == "bf16-mixed",
        )  # fmt: skip
    if batch.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=recipe.fused)
    ids = torch.randint(0, scenario.model.shape.vocab, (batch.batch, batch.seq), device="cuda")
    phases = {}
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        loss = forward(model, ids, recipe.precision)
        phases["forward"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss.backward()
        phases["backward"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        phases["optimizer"] = torch.cuda.max_memory_allocated()
        optimizer.zero_grad(set_to_none=True)
        del loss
    free, total = torch.cuda.mem_get_info()
    found = {**phases, "allocated": max(phases.values()), "reserved": torch.cuda.max_memory_reserved(),
             "device": total - free}  # fmt: skip
    del model, optimizer, trained, ids
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return found


def gpu_id():
    """The preset of the card at hand, by its name."""
    name = torch.cuda.get_device_name().lower().replace(" ", "-")
    return next((id for id in presets.gpus() if id.split("-")[0] in name), "a100-80gb")


def on_cuda(as_json):
    """Whole steps on a card: measured bytes beside the estimate, phase by phase."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "cuda": torch.version.cuda,
                "gpu": torch.cuda.get_device_name()}  # fmt: skip
    rows = []
    for link in STEPS:
        scenario = Scenario.from_link(f"framework=pytorch&{link}&gpu={gpu_id()}")
        found = estimate(scenario)
        estimated = {**found.worst.phases, "allocated": found.allocated_bytes, "reserved": found.reserved_bytes,
                     "device": found.device_bytes}  # fmt: skip
        try:
            measured = step_peaks(scenario)
        except torch.cuda.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
            measured = {}
        rows.append({"link": link, "measured": measured, "estimated": estimated})
        if not as_json:
            print(link)
            for name, size in estimated.items():
                there = measured.get(name)
                shown = f"{there / 1e9:9.3f} GB {size / there - 1:+8.2%}" if there else "  out of memory"
                print(f"  {name:<10} {size / 1e9:9.3f} GB estimated {shown}")
    if as_json:
        print(json.dumps({"versions": versions, "rows": rows}, indent=1))
    else:
        print(versions)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", action="store_true", help="whole steps on a CUDA device")
    parser.add_argument("--families", action="store_true", help="saved bytes of many families on CPU")
    parser.add_argument("--json", action="store_true", help="as data, with versions")
    options = parser.parse_args()
    if options.cuda:
        on_cuda(options.json)
    elif options.families:
        families_on_cpu(options.json)
    else:
        on_cpu()
        backward_on_cpu()


if __name__ == "__main__":
    main()
