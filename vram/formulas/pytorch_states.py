"""Model states as PyTorch holds them on one GPU, and what comes and goes with them.

All results are bytes. Symbols: β bytes per parameter; phi_gpu the parameters
that this GPU's stage holds, undivided; D_tp tensor-parallel degree; N_shard
GPUs in one sharding group.
"""

from __future__ import annotations

__all__ = [
    "blockwise",
    "cublas_workspace",
    "gathered",
    "gathering_pool",
    "gptq",
    "held",
    "int8",
    "nf4",
    "nf4_double",
    "overhead",
    "percentage",
    "reduction_pool",
    "sharded",
]


def held(beta, phi_gpu, D_tp):
    """Weights, gradients or optimizer states, all of them: β·Φ.

    Under autocast weights, gradients and states are FP32 (4 + 4 + 8); in pure
    BF16 all four are BF16 (8 bytes a parameter).

    References
    ----------
    .. [1] PyTorch, ``torch/optim/adamw.py``: states are zeros_like of the parameter; measured
    """
    return beta * phi_gpu / D_tp


def sharded(beta, phi_gpu, N_shard, D_tp):
    """The same divided in a sharding group: β·Φ/N.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/fsdp/_fully_shard``: each parameter is cut in dimension 0; measured
    """
    return beta * phi_gpu / (N_shard * D_tp)


def gathered(beta, phi_unit, D_tp):
    """Parameters of a unit that its GPU has gathered from all shards, or their gradients: β·Φ_unit.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``; measured
    """
    return beta * phi_unit / D_tp


def blockwise(phi_large, n_block, phi_small, N_shard, D_tp):
    """One 8-bit state: a byte a value and an FP32 scale a block of 256; tensors below 4,096 values stay FP32.

    References
    ----------
    .. [1] bitsandbytes 0.50, ``optim/optimizer.py``: min_8bit_size 4096, blocks of 256
    .. [2] Dettmers et al., arXiv:2110.02861, section 2
    """
    return (phi_large + 4 * n_block + 4 * phi_small) / (N_shard * D_tp)


def nf4(phi_frozen, n_block, n_matrix, N_shard, D_tp):
    """NF4: two weights a byte, an FP32 scale a block of 64, and 64 bytes of code a matrix.

    References
    ----------
    .. [1] Dettmers et al., QLoRA, arXiv:2305.14314, section 3
    .. [2] bitsandbytes 0.50, ``functional.py``: quantize_4bit, QuantState; measured
    """
    return (phi_frozen / 2 + 4 * n_block + 64 * n_matrix) / (N_shard * D_tp)


def nf4_double(phi_frozen, n_block, n_group, n_matrix, N_shard, D_tp):
    """NF4 with double quantisation: scales in 8 bits, an FP32 scale for 256 of them; 1,092 bytes a matrix.

    A matrix has its code (64), its scales' map of 256 values (1,024) and their offset (4).

    References
    ----------
    .. [1] Dettmers et al., QLoRA, arXiv:2305.14314, section 3
    .. [2] bitsandbytes 0.50, ``functional.py``: quantize_4bit with compress_statistics; measured
    """
    return (phi_frozen / 2 + n_block + 4 * n_group + 1092 * n_matrix) / (N_shard * D_tp)


def int8(phi_frozen, n_row, N_shard, D_tp):
    """LLM.int8(): a byte a weight and an FP32 scale a row.

    References
    ----------
    .. [1] Dettmers et al., LLM.int8(), arXiv:2208.07339, section 2.1
    .. [2] bitsandbytes 0.50, ``nn/modules.py``: Int8Params, SCB
    """
    return (phi_frozen + 4 * n_row) / (N_shard * D_tp)


def gptq(phi_frozen, n_group, N_shard, D_tp):
    """4-bit integers: two weights a byte; for a group of 128 a 16-bit scale and a 4-bit zero.

    References
    ----------
    .. [1] Frantar et al., GPTQ, arXiv:2210.17323, section 4 (group size 128)
    """
    return (phi_frozen / 2 + 5 * n_group / 2) / (N_shard * D_tp)


def cublas_workspace(M_workspace):
    """The workspace that a cuBLAS handle and stream get from PyTorch's allocator.

    References
    ----------
    .. [1] PyTorch, ``aten/src/ATen/cuda/CublasHandlePool.cpp``: 32 MiB on Hopper, else 2 × 4 MiB + 8 × 16 KiB
    """
    return M_workspace


def gathering_pool(beta, phi_unit, D_tp):
    """What the stream that gathers parameters keeps for itself: the largest unit, before it is copied out.

    The caching allocator gives memory back only to the stream it came from.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``: foreach_all_gather allocates
       its output in all_gather_copy_in_stream, foreach_all_gather_copy_out copies it to the parameters
    .. [2] PyTorch, ``c10/cuda/CUDACachingAllocator.cpp``: blocks belong to a stream
    """
    return beta * phi_unit / D_tp


def reduction_pool(beta, phi_gpu, phi_unit, N_shard, D_tp, M_live):
    """What the stream that reduces gradients keeps for itself: their shards and the largest unit, less what is alive.

    The caching allocator gives memory back only to the stream it came from.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``: foreach_reduce runs in its own stream
    .. [2] PyTorch, ``c10/cuda/CUDACachingAllocator.cpp``: blocks belong to a stream
    """
    return beta * phi_gpu / (N_shard * D_tp) + beta * phi_unit / D_tp - M_live


def overhead(M_overhead):
    """A constant of the driver or of a library, as measured.

    References
    ----------
    .. [1] ``presets/frameworks.json`` names each constant's source
    """
    return M_overhead


def percentage(p, M_live):
    """What the allocator holds besides live tensors, as a part of them: p·M_live.

    References
    ----------
    .. [1] Median over the measured runs of ``presets/evidence.jsonl`` that report both
    """
    return p * M_live
