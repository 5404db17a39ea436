"""What Megatron-LM with Transformer Engine holds on one GPU: model states, kept activations, logits, buffers.

All results are bytes. Symbols: β bytes per parameter; phi_divided, phi_replicated
and phi_expert a stage's parameters that tensor parallelism divides, that each of
its GPUs holds whole, and those of routed experts; e bytes per element, all
tensors of one kind together; D_sp the GPUs that split the sequence between
matrix products; D_ep and D_etp the GPUs that share experts and split each of
them. Activations are for ``n_held`` layers held at once.
"""

from __future__ import annotations

__all__ = [
    "dummy_gradients",
    "edges",
    "embedding_mask",
    "embedding_norm",
    "gathered_input",
    "held",
    "held_with_experts",
    "hidden",
    "inner",
    "keys_values",
    "log_sum_exp",
    "logits",
    "low_rank",
    "queries",
    "routed",
    "routed_inner",
    "router",
    "scores",
    "shared_inner",
    "sharded",
    "sharded_with_experts",
    "table_gradient",
    "unit",
    "workspace",
]


def held(beta, phi_divided, phi_replicated, D_tp):
    """Weights, main gradients or optimizer states, all of a stage's: β·(Φ_divided/D_tp + Φ_replicated).

    In BF16: weights 2, main gradients in FP32 4, master weights 4, Adam's moments 8: 18 bytes a parameter.

    References
    ----------
    .. [1] Megatron-LM, ``docs/api-guide/dist_optimizer.md``: theoretical memory, 18 bytes without sharding
    .. [2] Megatron-LM, ``megatron/core/tensor_parallel/layers.py``: matrices divided, norms and router replicated
    """
    return beta * (phi_divided / D_tp + phi_replicated)


def held_with_experts(beta, phi_divided, phi_replicated, phi_expert, D_tp, D_ep, D_etp):
    """The same with routed experts, which are divided otherwise: + β·Φ_expert/(D_ep·D_etp).

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/transformer/moe/README.md``: expert parallelism and expert tensor parallelism
    """
    return beta * (phi_divided / D_tp + phi_replicated + phi_expert / (D_ep * D_etp))


def sharded(beta, phi_divided, phi_replicated, D_tp, N_shard):
    """The distributed optimizer divides them among the data- and context-parallel GPUs: 6 + 12/N bytes in BF16.

    References
    ----------
    .. [1] Megatron-LM, ``docs/api-guide/dist_optimizer.md``: 6 + 12/d bytes, in FP16 4 + 16/d
    """
    return beta * (phi_divided / D_tp + phi_replicated) / N_shard


def sharded_with_experts(beta, phi_divided, phi_replicated, phi_expert, D_tp, D_ep, D_etp, N_shard, N_expert):
    """The same with routed experts, whose states are divided among the GPUs that hold the same experts.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/parallel_state.py``: get_expert_data_parallel_group
    """
    return beta * ((phi_divided / D_tp + phi_replicated) / N_shard + phi_expert / (D_ep * D_etp * N_expert))


def unit(beta, phi_unit, D_tp):
    """Units that Megatron-FSDP has gathered, or their gradients before they are reduced: β·Φ_unit/D_tp.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/distributed/fsdp``: parameters and gradients of units in flight
    """
    return beta * phi_unit / D_tp


def hidden(e, n_held, b, s, d_hidden, D_sp, D_cp):
    """Tensors as wide as the residual stream: norms' inputs and outputs, dropout masks.

    References
    ----------
    .. [1] Transformer Engine, ``pytorch/module/layernorm_linear.py``: keeps the norm's input and its output
    .. [2] Korthikanti et al., arXiv:2205.05198, sections 4.1 and 4.2
    """
    return e * n_held * b * s * d_hidden / (D_sp * D_cp)


def queries(e, n_held, b, s, n_head, d_head, D_tp, D_cp):
    """Tensors of all heads: queries, attention's result.

    References
    ----------
    .. [1] Transformer Engine, ``pytorch/attention``: FusedAttention keeps Q, K, V and the result
    .. [2] Korthikanti et al., arXiv:2205.05198, section 4.1
    """
    return e * n_held * b * s * n_head * d_head / (D_tp * D_cp)


def keys_values(e, n_held, b, s, n_kv_gpu, d_head, D_cp):
    """Keys and values, of the KV heads on this GPU.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/transformer/attention.py``: num_query_groups_per_partition
    """
    return e * n_held * b * s * n_kv_gpu * d_head / D_cp


def scores(e, n_held, b, s, n_head, D_tp, D_cp):
    """Attention's scores where they are kept: softmax 2, dropout mask 1, dropped 2: 5·b·s²·n_head.

    References
    ----------
    .. [1] Korthikanti et al., arXiv:2205.05198, section 4.1
    """
    return e * n_held * b * s**2 * n_head / (D_tp * D_cp)


def log_sum_exp(e, n_held, b, s, n_head, D_tp, D_cp):
    """FlashAttention's FP32 log-sum-exp, one for each token and head.

    References
    ----------
    .. [1] Dao, FlashAttention-2, arXiv:2307.08691, section 3.1
    """
    return e * n_held * b * s * n_head / (D_tp * D_cp)


def low_rank(e, n_held, b, s, d_low, D_sp, D_cp):
    """Low-rank queries, keys and values of latent attention, and the inputs of their norms.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/transformer/multi_latent_attention.py``
    """
    return e * n_held * b * s * d_low / (D_sp * D_cp)


def inner(e, n_held, b, s, d_ffn, D_tp, D_cp):
    """Tensors as wide as the FFN: with SwiGLU the first product (4) and the second one's input (2).

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/fusions/fused_bias_swiglu.py``: only the first product is kept
    .. [2] Korthikanti et al., arXiv:2205.05198, section 4.1
    """
    return e * n_held * b * s * d_ffn / (D_tp * D_cp)


def routed(e, n_held, b, s, n_top, gamma, d_hidden, D_tp, D_etp, D_cp):
    """Tokens as the experts on this GPU receive them: e·n·b·s·n_top·γ·d_hidden, on average (γ = 1) not divided by D_ep.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/transformer/moe/token_dispatcher.py``: all-to-all, then all-gather over D_etp
    """
    return e * n_held * b * s * n_top * gamma * d_hidden * D_etp / (D_tp * D_cp)


def routed_inner(e, n_held, b, s, n_top, gamma, d_expert, D_tp, D_cp):
    """Tensors as wide as an expert, of the tokens that it computes.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/transformer/moe/experts.py``: TEGroupedMLP; only SwiGLU is one kernel with the
       product with the routing weights
    """
    return e * n_held * b * s * n_top * gamma * d_expert / (D_tp * D_cp)


def shared_inner(e, n_held, b, s, n_shared, d_shared, D_tp, D_cp):
    """Tensors as wide as the shared experts together.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/transformer/moe/shared_experts.py``: SharedExpertMLP
    """
    return e * n_held * b * s * n_shared * d_shared / (D_tp * D_cp)


def router(e, n_held, b, s, n_expert, D_tp, D_cp):
    """The router's FP32 scores, one for each token and expert.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/transformer/moe/router.py``: TopKRouter
    """
    return e * n_held * b * s * n_expert / (D_tp * D_cp)


def embedding_mask(e, n_flight, b, s, d_hidden, D_sp, D_cp):
    """The dropout mask behind the embedding, of each micro-batch in flight.

    References
    ----------
    .. [1] Korthikanti et al., arXiv:2205.05198, section 4.3
    """
    return e * n_flight * b * s * d_hidden / (D_sp * D_cp)


def embedding_norm(e, n_flight, b, s, d_hidden, D_sp, D_cp):
    """The input of a norm behind the embedding, of each micro-batch in flight.

    References
    ----------
    .. [1] Megatron-DeepSpeed, ``megatron/model/language_model.py``: Embedding with embed_layernorm
    """
    return e * n_flight * b * s * d_hidden / (D_sp * D_cp)


def edges(e, b, s, d_hidden, D_sp, D_cp):
    """Behind the last layer: the last norm's input and the output head's.

    References
    ----------
    .. [1] Korthikanti et al., arXiv:2205.05198, section 4.3
    """
    return e * b * s * d_hidden / (D_sp * D_cp)


def gathered_input(e, b, s, d_hidden, D_cp):
    """With sequence parallelism: a matrix product's input gathered from all GPUs, in one buffer that stays.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/tensor_parallel/layers.py``: get_global_memory_buffer, "mpu"
    """
    return e * b * s * d_hidden / D_cp


def logits(e, b, s, n_padded, D_tp, D_cp):
    """Logits of this GPU's share of the vocabulary: 16-bit logits and their FP32 softmax, made in place: 6 bytes.

    Transformer Engine's fused loss keeps 4.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/tensor_parallel/cross_entropy.py``: FP32 copy, softmax and gradient in place
    .. [2] Transformer Engine, ``pytorch/cross_entropy.py``; measured runs of SimuMax in ``presets/evidence.jsonl``
    """
    return e * b * s * n_padded / (D_tp * D_cp)


def table_gradient(e, n_padded, d_hidden, D_tp):
    """The gradient of embedding or head as it is made, in the format of the weights.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/core/distributed/distributed_data_parallel.py``: the hook adds grad to main_grad
    .. [2] Megatron-LM, ``megatron/core/tensor_parallel/layers.py``: grad_weight, a placeholder where it is fused
    """
    return e * n_padded * d_hidden / D_tp


def dummy_gradients(beta, phi_shapes):
    """Placeholders that stand for the gradients of fused products: one for each shape of a weight on this GPU.

    References
    ----------
    .. [1] Transformer Engine, ``pytorch/module/base.py``: get_dummy_wgrad keeps them by shape
    """
    return beta * phi_shapes


def workspace(M_workspace):
    """Workspaces of matrix products: cuBLAS in the forward and in the backward thread, and Transformer Engine's own.

    References
    ----------
    .. [1] PyTorch, ``aten/src/ATen/cuda/CublasHandlePool.cpp``: handles belong to a thread, workspaces to a handle
    .. [2] Transformer Engine, ``pytorch/module/base.py``: get_workspace, get_multi_stream_cublas_workspace
    """
    return M_workspace
