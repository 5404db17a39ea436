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
    "d_head": (r"d_{\mathrm{head}}", "channels of one attention head"),
    "d_rotary": (r"d_{\mathrm{rotary}}", "channels of a head that turn with the position"),
    "d_in": (r"\sum d_{\mathrm{in}}", "input channels of the adapted matrices"),
    "n_vocab": (r"n_{\mathrm{vocab}}", "words in the vocabulary"),
    "n_rows": (r"n_{\mathrm{rows}}", "tokens in one chunk of the fused loss"),
    "n_chunk": (r"n_{\mathrm{chunk}}", "chunks of the loss"),
    "n_pad": (r"n_{\mathrm{pad}}", "tokens of padding"),
    "n_block": (r"n_{\mathrm{block}}", "blocks of a block-wise format"),
    "n_group": (r"n_{\mathrm{group}}", "groups of scales"),
    "n_matrix": (r"n_{\mathrm{matrix}}", "quantised matrices"),
    "n_row": (r"n_{\mathrm{row}}", "rows of the quantised matrices"),
    "p": (r"p", "part that comes on top"),
    "phi": (r"\Phi", "parameters"),
    "phi_gpu": (r"\Phi_{\mathrm{GPU}}", "parameters of this GPU's stage, before they are divided"),
    "phi_unit": (r"\Phi_{\mathrm{unit}}", "parameters of one unit (a layer; or embedding, head and last norm)"),
    "phi_large": (r"\Phi_{\mathrm{large}}", "parameters in tensors of 4,096 and more"),
    "phi_small": (r"\Phi_{\mathrm{small}}", "parameters in smaller tensors"),
    "phi_trained": (r"\Phi_{\mathrm{trained}}", "parameters that are trained"),
    "phi_frozen": (r"\Phi_{\mathrm{frozen}}", "parameters that are frozen"),
    "phi_outside": (r"\Phi_{\mathrm{outside}}", "parameters outside the hidden matrices"),
    "edges": (r"\sum(\mathrm{rows}+\mathrm{columns})", "rows and columns of all matrices"),
    "r": (r"r", "rank of the adapters"),
    "D_dp": (r"D_{\mathrm{dp}}", "data-parallel degree"),
    "D_tp": (r"D_{\mathrm{tp}}", "tensor-parallel degree"),
    "D_pp": (r"D_{\mathrm{pp}}", "pipeline-parallel degree"),
    "D_cp": (r"D_{\mathrm{cp}}", "context-parallel degree"),
    "D_sp": (r"D_{\mathrm{sp}}", "GPUs that split the sequence between matrix products"),
    "N": (r"N", "GPUs"),
    "N_shard": (r"N_{\mathrm{shard}}", "GPUs in one sharding group"),
    "M": (r"M", "bytes of the message"),
    "M_live": (r"M_{\mathrm{live}}", "bytes of live tensors at the peak"),
    "M_workspace": (r"M_{\mathrm{workspace}}", "bytes of the workspace"),
    "M_overhead": (r"M_{\mathrm{overhead}}", "bytes of the overhead"),
}
"""Every symbol: its LaTeX and its meaning, in the order in which a product is written."""
