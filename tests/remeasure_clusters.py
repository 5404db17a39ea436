"""Measures again what PyTorch's accounting claims of many GPUs, on CPU tensors: a maintainer's script, not a test.

    python tests/remeasure_clusters.py            one of several tensor-parallel GPUs, in one process
    python tests/remeasure_clusters.py --pipeline stages of a pipeline with FSDP, in six processes

Needs torch and transformers, which the product does not; written for torch
2.13, transformers 5.24. Collectives of the first do nothing, so that one
process is enough; the second runs on gloo.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.distributed as dist
import torch.multiprocessing
import transformers
import transformers.models.llama.modeling_llama as llama
from remeasure import LiveBytes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from vram import Scenario, estimate, shape_from_config


class LocalBytes(LiveBytes):
    """Bytes of what this process holds itself: distributed tensors' own parts, and no shapes without data."""

    def add(self, tensor):
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        tensor = getattr(tensor, "elem", tensor)
        if type(tensor).__name__ != "FakeTensor" and tensor.device.type != "meta":
            super().add(tensor)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        return super().__torch_dispatch__(operation, types, args, kwargs)


def plan(layers):
    """Tensor and sequence parallelism as torchtitan has it, for transformers' Llama."""
    found = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    whole, parts = {"hidden_states": Replicate()}, {"hidden_states": Shard(1)}
    for layer in range(layers):
        inside = {
            "input_layernorm": SequenceParallel(),
            "post_attention_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(input_kwarg_layouts=parts, desired_input_kwarg_layouts=whole),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            **{f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
            "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
        }
        found |= {f"model.layers.{layer}.{name}": style for name, style in inside.items()}
    return found


def tensor_parallel():
    """Peaks of forward and backward of one of several tensor-parallel GPUs, beside the estimate."""
    # The mask would be one more tensor of s × s; FlashAttention needs none.
    llama.create_causal_mask = lambda *_args, **_kwargs: None
    print(
        f"{'tp':>2} {'d_FFN':>6} {'vocab':>6} {'recompute':<10}{'forward':>12} {'off':>8} {'backward':>12} {'off':>8}"
    )
    for tp in (2, 4):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
        mesh = init_device_mesh("cpu", (tp,))
        for ffn, vocab in ((1536, 1024), (4096, 1024), (1536, 64000)):
            for recompute in ("none", "full"):
                row = one_of(mesh, {"intermediate_size": ffn, "vocab_size": vocab}, recompute)
                sizes = "".join(f"{real:>12,} {guess / real - 1:>+8.3%} " for real, guess in row)
                print(f"{tp:>2} {ffn:>6} {vocab:>6} {recompute:<10}{sizes}")
        dist.destroy_process_group()


def one_of(mesh, size, recompute, seq=1024):
    """Measured and estimated peak of forward, and of backward."""
    config = {"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8,
              "hidden_size": 512, "tie_word_embeddings": False, **size}  # fmt: skip
    known = transformers.AutoConfig.for_model(**config, attn_implementation="sdpa")
    model = transformers.AutoModelForCausalLM.from_config(known, dtype=torch.bfloat16).train()
    parallelize_module(model, mesh, plan(3))
    if recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids, positions = torch.randint(0, 1000, (1, seq)), torch.arange(seq)[None]
    live = LocalBytes()
    with live, loss_parallel():
        for parameter in model.parameters():
            live.add(parameter)
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
        del logits
        forward, live.peak = live.peak, live.now
        loss.backward()
    tp = mesh.size()
    link = f"model=custom&precision=bf16&seq={seq}&recompute={recompute}&gpus={tp}&tp={tp}&sp=1"
    found = estimate(Scenario.from_link(link, shape=shape_from_config(config))).worst
    states = sum(t.bytes for t in found.moments[0].terms if t.group == "optimizer")
    return [(real, found.phases[phase] - states) for real, phase in ((forward, "forward"), (live.peak, "backward"))]


STAGES, REPLICAS, MICRO_BATCHES = 3, 2, 5
TOKENS, HIDDEN, LAYERS = 256, 512, 6


class Block(torch.nn.Module):
    """A layer of two matrices."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = torch.nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x))


class Part(torch.nn.Module):
    """A stage's layers, each recomputed."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def stage_process(rank, store):
    """One process: a step of one-forward-one-backward with FSDP, and what is alive behind it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=STAGES * REPLICAS)
    mesh = init_device_mesh("cpu", (STAGES, REPLICAS), mesh_dim_names=("pp", "dp"))
    part, stage = Part(), rank // REPLICAS
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for unit in (*part.layers, part):
        fully_shard(unit, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    piped = PipelineStage(part, stage, STAGES, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(piped, MICRO_BATCHES, loss_fn=lambda output, _target: output.float().pow(2).mean())
    batch = torch.randn(MICRO_BATCHES, TOKENS, HIDDEN, dtype=torch.bfloat16)
    sums = Counter()

    def count():
        """Sums of whole gradients, before the last micro-batch's backward."""
        for layer in part.layers:
            for each in layer._get_fsdp_state()._fsdp_param_group.fsdp_params:
                if each.unsharded_accumulated_grad is not None:
                    sums[stage] = max(sums[stage], 0) + each.unsharded_accumulated_grad_data.nbytes

    backward = piped.backward_one_chunk

    def watched(chunk, *args, **kwargs):
        if chunk == MICRO_BATCHES - 1:
            count()
        return backward(chunk, *args, **kwargs)

    piped.backward_one_chunk = watched
    if stage == 0:
        schedule.step(batch)
    elif stage == STAGES - 1:
        schedule.step(target=batch, losses=[])
    else:
        schedule.step()
    infos = [info for table in (piped.args_recv_info, piped.grad_recv_info) for row in table.values() for info in row]
    buffers = sum(info.buffer.nbytes for info in infos if getattr(info, "buffer", None) is not None)
    if rank % REPLICAS == 0:
        handed = 2 * TOKENS * HIDDEN
        whole = 4 * LAYERS * 8 * HIDDEN**2
        received = f"{buffers / handed:g} buffers to receive in for {MICRO_BATCHES} micro-batches"
        print(f"stage {stage + 1} of {STAGES}: {received}; FP32 sums of {sums[stage] / whole:.0%} of its gradients")
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipeline", action="store_true", help="a pipeline with FSDP, in six processes")
    if parser.parse_args().pipeline:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(stage_process, (f"{folder}/store",), nprocs=STAGES * REPLICAS)
    else:
        tensor_parallel()


if __name__ == "__main__":
    main()
