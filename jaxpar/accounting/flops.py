"""Model FLOPs: what the mathematics asks for, whatever the mesh, the schedule or recomputation make of it.

Source: Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B.
"""

FLOPS_PER_MULTIPLY_ADD = 2
BACKWARD_RATIO = 2  # a matrix product has two in its backward pass


def forward_flops_per_token(config, seq_len):
    """FLOPs of one token's forward pass: matrix products only.

    Counts projections, attention over the full row (no discount for causality), the MLP and the head at the true
    vocabulary size; not the embedding's lookup, norms or elementwise work.

    Args:
      config: sizes: num_layers, width, num_heads, num_kv_heads, mlp_width, vocab_size (DecoderConfig or ModelConfig).
      seq_len: tokens a row.
    """
    width, head_dim = config.width, config.width // config.num_heads
    projections = width * head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    attention = 2 * seq_len * config.num_heads * head_dim
    mlp = 3 * width * config.mlp_width
    head = width * config.vocab_size
    return FLOPS_PER_MULTIPLY_ADD * (config.num_layers * (projections + attention + mlp) + head)


def train_flops_per_token(config, seq_len):
    """FLOPs of one token's forward and backward pass: three times the forward's."""
    return (1 + BACKWARD_RATIO) * forward_flops_per_token(config, seq_len)


# Dense bfloat16 peak FLOP/s of one device, by JAX's `device_kind`, as the vendors' data sheets state them.
_PEAK = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def model_flops_utilization(flops_per_second, device_kind, num_devices):
    """Share of the devices' peak, or None for a device whose peak is not known (never a guess)."""
    peak = _PEAK.get(device_kind)
    return None if peak is None else flops_per_second / (peak * num_devices)
