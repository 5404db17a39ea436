"""Tensors that autograd keeps for backward in PyTorch with transformers: one formula for each kind of size.

All results are bytes, for ``n_held`` layers held at once. Symbols: e bytes per
element, all tensors of one kind together (two BF16 tensors: 4); b micro-batch;
s sequence length; d_hidden, d_ffn, n_head, n_kv, d_head as usual; D_tp
tensor-parallel degree; D_sp the GPUs that split the sequence between matrix
products; D_cp the GPUs that share a sequence.

Which layer keeps which of them, in which format, stands as data in
:mod:`vram.accounting.blocks`. "Measured" means: every saved tensor of the
reference implementation (transformers 5.24, torch 2.13) was recorded with
``torch.autograd.graph.saved_tensors_hooks`` on fake CUDA tensors.
"""

from __future__ import annotations

__all__ = [
    "between_stages",
    "final_gathered",
    "final_hidden",
    "final_per_token",
    "final_scale",
    "gathered_hidden",
    "head_scale",
    "hidden",
    "inner",
    "inputs",
    "keys_values",
    "keys_values_replicated",
    "log_sum_exp",
    "log_sum_exp_padded",
    "mask",
    "own_rotary",
    "per_head",
    "per_key_head",
    "per_token",
    "projected",
    "queries",
    "random_state",
    "rotary",
    "scale",
    "scores",
]


def hidden(e, n_held, b, s, d_hidden, D_sp, D_cp):
    """Tensors as wide as the residual stream: e·n·b·s·d_hidden.

    References
    ----------
    .. [1] transformers 5.24, ``models/llama/modeling_llama.py``: ``LlamaRMSNorm``, ``LlamaDecoderLayer``; measured
    .. [2] PyTorch, ``tools/autograd/derivatives.yaml``: mul, rsqrt, mm keep their inputs
    """
    return e * n_held * b * s * d_hidden / (D_sp * D_cp)


def gathered_hidden(e, n_held, b, s, d_hidden, D_cp):
    """Inputs of matrix products that tensor-parallel GPUs divide by columns: whole on each of them, e·n·b·s·d_hidden.

    With sequence parallelism each GPU has a part of the tokens; the products
    need all, and autograd keeps what was gathered.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/tensor/parallel/style.py``: PrepareModuleInput, Shard(1) to Replicate
    .. [2] torchtitan, ``models/llama3/infra/parallelize.py``: apply_tp
    """
    return e * n_held * b * s * d_hidden / D_cp


def per_token(e, n_held, b, s, D_sp, D_cp):
    """One number for each token and norm (1/RMS; mean and 1/σ): e·n·b·s.

    References
    ----------
    .. [1] PyTorch, ``tools/autograd/derivatives.yaml``: rsqrt, native_layer_norm; measured
    """
    return e * n_held * b * s / (D_sp * D_cp)


def scale(e, n_held, d_hidden):
    """1 + weight of Gemma's norms: e·n·d_hidden.

    References
    ----------
    .. [1] transformers 5.24, ``models/gemma2/modeling_gemma2.py``: ``Gemma2RMSNorm``; measured
    """
    return e * n_held * d_hidden


def head_scale(e, n_held, d_head):
    """1 + weight of Gemma's norms of queries and keys: e·n·d_head.

    References
    ----------
    .. [1] transformers 5.24, ``models/gemma3/modeling_gemma3.py``: ``Gemma3RMSNorm``; measured on CPU
    """
    return e * n_held * d_head


def queries(e, n_held, b, s, n_head, d_head, D_tp, D_cp):
    """Tensors as wide as all heads together (queries, attention's output): e·n·b·s·n_head·d_head.

    References
    ----------
    .. [1] transformers 5.24, ``models/llama/modeling_llama.py``: ``LlamaAttention``; measured
    .. [2] PyTorch, ``tools/autograd/derivatives.yaml``: _scaled_dot_product_flash_attention
    """
    return e * n_held * b * s * n_head * d_head / (D_tp * D_cp)


def projected(e, n_held, b, s, n_head, n_kv, d_head, D_tp, D_cp):
    """Queries, keys and values as one matrix makes them: e·n·b·s·(n_head + 2·n_kv)·d_head.

    References
    ----------
    .. [1] transformers 5.24, ``models/phi3/modeling_phi3.py``: ``Phi3Attention.qkv_proj``; measured on CPU
    """
    return e * n_held * b * s * (n_head + 2 * n_kv) * d_head / (D_tp * D_cp)


def keys_values(e, n_held, b, s, n_kv, d_head, D_tp, D_cp):
    """Keys, or values, of the KV heads: e·n·b·s·n_kv·d_head.

    References
    ----------
    .. [1] transformers 5.24, ``integrations/sdpa_attention.py``: GQA heads are not repeated; measured
    """
    return e * n_held * b * s * n_kv * d_head / (D_tp * D_cp)


def keys_values_replicated(e, n_held, b, s, n_kv_gpu, d_head, D_cp):
    """Keys, or values, where tensor-parallel GPUs cannot share the KV heads evenly: e·n·b·s·n_kv^GPU·d_head.

    References
    ----------
    .. [1] transformers 5.24, ``integrations/sdpa_attention.py``; measured on one GPU
    """
    return e * n_held * b * s * n_kv_gpu * d_head / D_cp


def inner(e, n_held, b, s, d_ffn, D_tp, D_cp):
    """Tensors as wide as the feed-forward network: e·n·b·s·d_FFN.

    References
    ----------
    .. [1] transformers 5.24, ``models/llama/modeling_llama.py``: ``LlamaMLP``; ``activations.py``; measured
    """
    return e * n_held * b * s * d_ffn / (D_tp * D_cp)


def inputs(e, n_held, b, s, d_in, D_tp, D_cp):
    """Inputs of adapters, d_in channels all together: e·n·b·s·d_in.

    References
    ----------
    .. [1] peft 0.21, ``tuners/lora/layer.py``: ``Linear.forward``; measured
    """
    return e * n_held * b * s * d_in / (D_tp * D_cp)


def log_sum_exp(e, n_held, b, s, n_head, D_tp, D_cp):
    """FlashAttention's log-sum-exp, one for each token and head: e·n·b·s·n_head.

    References
    ----------
    .. [1] Dao et al., FlashAttention, arXiv:2205.14135, algorithm 1
    .. [2] PyTorch, ``aten/src/ATen/native/transformers/cuda/attention.cu``; measured
    """
    return e * n_held * b * s * n_head / (D_tp * D_cp)


def log_sum_exp_padded(e, n_held, b, s_padded, n_head, D_tp, D_cp):
    """The same of the memory-efficient kernel, whose rows are padded to a multiple of 32 tokens: e·n·b·s_padded·n_head.

    References
    ----------
    .. [1] PyTorch, ``aten/src/ATen/native/transformers/cuda/attention.cu``: kAlignLSE; measured
    """
    return e * n_held * b * s_padded * n_head / (D_tp * D_cp)


def scores(e, n_held, b, s, n_head, D_tp, D_cp):
    """Tensors of the s × s scores: e·n·b·n_head·s².

    References
    ----------
    .. [1] transformers 5.24, ``models/llama/modeling_llama.py``: ``eager_attention_forward``, FP32 softmax; measured
    """
    return e * n_held * b * s**2 * n_head / (D_tp * D_cp)


def per_head(e, n_held, b, s, n_head, D_tp, D_cp):
    """One number for each token and head (1/RMS of a query): e·n·b·s·n_head.

    References
    ----------
    .. [1] transformers 5.24, ``models/qwen3/modeling_qwen3.py``: ``q_norm``; measured
    """
    return e * n_held * b * s * n_head / (D_tp * D_cp)


def per_key_head(e, n_held, b, s, n_kv, D_tp, D_cp):
    """One number for each token and KV head (1/RMS of a key): e·n·b·s·n_kv.

    References
    ----------
    .. [1] transformers 5.24, ``models/qwen3/modeling_qwen3.py``: ``k_norm``; measured
    """
    return e * n_held * b * s * n_kv / (D_tp * D_cp)


def mask(e, b, s, D_cp):
    """The causal mask, kept once as an argument of recomputed layers: e·b·s².

    References
    ----------
    .. [1] transformers 5.24, ``models/gpt2/modeling_gpt2.py``: the mask is a positional argument; measured
    """
    return e * b * s**2 / D_cp


def random_state(e, n_held):
    """Seed and offset of the kernel's random numbers: e·n.

    References
    ----------
    .. [1] PyTorch, ``tools/autograd/derivatives.yaml``: philox_seed, philox_offset; measured
    """
    return e * n_held


def rotary(e, s, d_rotary, D_cp):
    """Cosines and sines of the rotary positions, once for all layers: e·s·d_rotary.

    References
    ----------
    .. [1] transformers 5.24, ``models/llama/modeling_llama.py``: ``LlamaRotaryEmbedding``; measured
    """
    return e * s * d_rotary / D_cp


def own_rotary(e, n_held, s, d_rotary, D_cp):
    """Cosines and sines of the rotary positions where each layer makes its own: e·n·s·d_rotary.

    References
    ----------
    .. [1] transformers 5.24, ``models/glm4/modeling_glm4.py``: ``apply_rotary_pos_emb``, repeat_interleave; measured
       on CPU
    """
    return e * n_held * s * d_rotary / D_cp


def final_hidden(e, b, s, d_hidden, D_sp, D_cp):
    """Behind (or in front of) all layers, as wide as the residual stream: e·b·s·d_hidden.

    References
    ----------
    .. [1] transformers 5.24, ``models/llama/modeling_llama.py``: ``LlamaModel.norm``, ``lm_head``; measured
    """
    return e * b * s * d_hidden / (D_sp * D_cp)


def final_gathered(e, b, s, d_hidden, D_cp):
    """The output head's input where tensor-parallel GPUs divide the vocabulary: whole on each of them, e·b·s·d_hidden.

    References
    ----------
    .. [1] torchtitan, ``models/llama3/infra/parallelize.py``: apply_tp, output: ColwiseParallel of Shard(1) inputs
    """
    return e * b * s * d_hidden / D_cp


def between_stages(e, n_held, b, s, d_hidden, D_sp, D_cp):
    """What pipeline stages hand on, for so many micro-batches: e·n·b·s·d_hidden.

    A stage has a buffer to receive in for every micro-batch of the step, for
    activations and for their gradients, and keeps its outputs until their backward.

    References
    ----------
    .. [1] PyTorch, ``torch/distributed/pipelining/stage.py``: args_recv_info, grad_recv_info, fwd_cache
    """
    return e * n_held * b * s * d_hidden / (D_sp * D_cp)


def final_per_token(e, b, s, D_cp):
    """One number for each token, outside the layers: e·b·s.

    References
    ----------
    .. [1] transformers 5.24, ``loss/loss_utils.py``, ``models/llama/modeling_llama.py``: ``LlamaModel``; measured
    """
    return e * b * s / D_cp


def final_scale(e, d_hidden):
    """1 + weight of Gemma's last norm: e·d_hidden.

    References
    ----------
    .. [1] transformers 5.24, ``models/gemma2/modeling_gemma2.py``: ``Gemma2Model.norm``; measured
    """
    return e * d_hidden
