"""The published formulas, one function each, of plain arithmetic.

No decisions, no rounding, no state: so the same function gives bytes for
integers, sweeps NumPy arrays, and yields the displayed expression for SymPy
symbols. Parameter names are the symbols; ``SYMBOLS`` spells them in LaTeX and
says what they are.
"""

SYMBOLS = {
    "n_layer": (r"n_{\mathrm{layer}}", "layers"),
    "n_stage": (r"n_{\mathrm{stage}}", "layers of this stage"),
    "n_held": (r"n_{\mathrm{held}}", "layers whose activations are held at once"),
    "n_ckpt": (r"n_{\mathrm{ckpt}}", "checkpoints kept"),
    "beta": (r"\beta", "bytes per parameter"),
    "e": (r"e", "bytes per activation"),
    "m": (r"m", "micro-batches in a step"),
    "b": (r"b", "micro-batch, in sequences"),
    "s": (r"s", "sequence length, in tokens"),
    "d_hidden": (r"d_{\mathrm{hidden}}", "hidden size"),
    "d_ffn": (r"d_{\mathrm{FFN}}", "width of the feed-forward network"),
    "n_head": (r"n_{\mathrm{head}}", "attention heads"),
    "n_kv": (r"n_{\mathrm{kv}}", "KV heads"),
    "n_kv_gpu": (r"n_{\mathrm{kv}}^{\mathrm{GPU}}", "KV heads that one GPU holds"),
    "n_vocab": (r"n_{\mathrm{vocab}}", "words in the vocabulary"),
    "phi": (r"\Phi", "parameters"),
    "phi_layer": (r"\Phi_{\mathrm{layer}}", "parameters of one layer"),
    "n_forward": (r"n_{\mathrm{forward}}", "further forward passes"),
    "r": (r"r", "rank of the adapters"),
    "rows": (r"n_{\mathrm{rows}}", "rows of a matrix"),
    "columns": (r"n_{\mathrm{columns}}", "columns of a matrix"),
    "D_dp": (r"D_{\mathrm{dp}}", "data-parallel degree"),
    "D_tp": (r"D_{\mathrm{tp}}", "tensor-parallel degree"),
    "D_pp": (r"D_{\mathrm{pp}}", "pipeline-parallel degree"),
    "D_cp": (r"D_{\mathrm{cp}}", "context-parallel degree"),
    "D_sp": (r"D_{\mathrm{sp}}", "GPUs that split the sequence between matrix products"),
    "N": (r"N", "GPUs"),
    "N_shard": (r"N_{\mathrm{shard}}", "GPUs in one sharding group"),
    "M": (r"M", "bytes of the message"),
}
"""Every symbol: its LaTeX and its meaning, in the order in which a product is written."""
