"""Model states and buffers of DeepSpeed's ZeRO on one GPU, and what it puts into CPU memory.

All results are bytes. Symbols: β bytes per parameter; phi_divided, phi_replicated
and phi_expert parameters as in :mod:`vram.formulas.megatron`; N_shard GPUs that
ZeRO divides among; n_bucket elements of a bucket.
"""

from __future__ import annotations

__all__ = [
    "bucket",
    "held",
    "held_with_experts",
    "live",
    "own_blocks",
    "pinned",
    "sharded",
    "sharded_with_experts",
    "sub_group",
]


def held(beta, phi_divided, phi_replicated, D_tp):
    """Weights, gradients or states whole: β·Φ, 16-bit weights and gradients, FP32 master weights and moments.

    References
    ----------
    .. [1] Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3.1: 2 + 2 + 12 bytes
    """
    return beta * (phi_divided / D_tp + phi_replicated)


def held_with_experts(beta, phi_divided, phi_replicated, phi_expert, D_tp, D_ep, D_etp):
    """The same with routed experts, which expert parallelism divides.

    References
    ----------
    .. [1] Rajbhandari et al., DeepSpeed-MoE, arXiv:2201.05596, section 5
    """
    return beta * (phi_divided / D_tp + phi_replicated + phi_expert / (D_ep * D_etp))


def sharded(beta, phi_divided, phi_replicated, D_tp, N_shard):
    """The same divided: optimizer states from stage 1 on, gradients from stage 2, parameters in stage 3: β·Φ/N.

    References
    ----------
    .. [1] Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5
    .. [2] DeepSpeed, ``deepspeed/runtime/zero/stage_1_and_2.py``: a step flattens a 16-bit gradient shard, and casts it
    """
    return beta * (phi_divided / D_tp + phi_replicated) / N_shard


def sharded_with_experts(beta, phi_divided, phi_replicated, phi_expert, D_tp, D_ep, D_etp, N_shard, N_expert):
    """The same with routed experts, divided among the GPUs that hold the same ones.

    References
    ----------
    .. [1] DeepSpeed, ``deepspeed/utils/groups.py``: expert data-parallel groups
    """
    return beta * ((phi_divided / D_tp + phi_replicated) / N_shard + phi_expert / (D_ep * D_etp * N_expert))


def bucket(beta, n_bucket):
    """The bucket that gradients are copied to before they are reduced: reduce_bucket_size, 5·10⁸ elements.

    References
    ----------
    .. [1] DeepSpeed, ``docs/_pages/config-json.md``: reduce_bucket_size 5e8, contiguous_gradients
    """
    return beta * n_bucket


def live(beta, phi_live):
    """Stage 3: parameters that are gathered at once: stage3_max_live_parameters, 10⁹, and what is needed right now.

    References
    ----------
    .. [1] DeepSpeed, ``docs/_pages/config-json.md``: stage3_max_live_parameters and stage3_max_reuse_distance 1e9
    """
    return beta * phi_live


def sub_group(beta, phi_group):
    """Stage 3's step: FP32 gradients of one sub-group of the shard, sub_group_size, 10⁹ elements at most.

    References
    ----------
    .. [1] DeepSpeed, ``deepspeed/runtime/zero/stage3.py``: _prepare_fp32_grad_for_sub_group
    """
    return beta * phi_group


def pinned(p, M_host):
    """Pinned buffers and temporaries in CPU memory, half as much again as what is offloaded.

    References
    ----------
    .. [1] DeepSpeed, ``deepspeed/runtime/zero``: estimate_zero2_model_states_mem_needs, additional_buffer_factor 1.5
    """
    return p * M_host


def own_blocks(M_step, M_before, M_live):
    """Flat tensors of the step are larger than blocks that activations left behind, so they get blocks of their own.

    References
    ----------
    .. [1] PyTorch, ``c10/cuda/CUDACachingAllocator.cpp``: a tensor lies in one segment; segments are not joined
    .. [2] DeepSpeed, ``deepspeed/runtime/zero/stage_1_and_2.py``: step flattens gradients to one tensor a group
    """
    return M_step + M_before - M_live


def stage_outputs(e, n_flight, b, s, d_hidden, D_tp, D_cp):
    """A pipeline stage's outputs, which wait for backward in its buffers, one for each micro-batch in flight.

    Tensor-parallel GPUs keep a part each.

    References
    ----------
    .. [1] DeepSpeed, ``deepspeed/runtime/pipe/engine.py``: pipe_buffers, is_pipe_partitioned
    """
    return e * n_flight * b * s * d_hidden / (D_tp * D_cp)
