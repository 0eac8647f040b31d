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


# Dense bfloat16 TFLOP/s as the vendors' data sheets state them, by JAX's `device_kind`: of the whole chip, and how many
# JAX devices make one up. Left out is what has no bfloat16 units (V100), and part of a device (MIG), named otherwise.
_PEAK = {
    "TPU v3": (123, 2),
    "TPU v4": (275, 1),
    "TPU v5 lite": (197, 1),
    "TPU v5e": (197, 1),
    "TPU v5": (459, 1),
    "TPU v5p": (459, 1),
    "TPU v6 lite": (918, 1),
    "TPU v6e": (918, 1),
    "TPU7x": (2307, 2),
    "NVIDIA A100-SXM4-40GB": (312, 1),
    "NVIDIA A100-SXM4-80GB": (312, 1),
    "NVIDIA A100 80GB PCIe": (312, 1),
    "NVIDIA H100 80GB HBM3": (989, 1),
    "NVIDIA H100 PCIe": (756, 1),
    "NVIDIA GH200 480GB": (989, 1),
    "NVIDIA H200": (989, 1),
    "NVIDIA B200": (2250, 1),
    "NVIDIA B300 SXM6 AC": (2250, 1),
    "NVIDIA GB200": (2500, 1),
    "NVIDIA GB300": (2500, 1),
    "NVIDIA L40S": (362, 1),
    "NVIDIA RTX A6000": (154.8, 1),
    "NVIDIA GeForce RTX 3090": (71, 1),
    "NVIDIA GeForce RTX 3090 Ti": (80, 1),
    "NVIDIA GeForce RTX 4090": (165.2, 1),
    "AMD Instinct MI300X": (1307, 1),
}


def peak_flops(device_kind):
    """Dense bfloat16 FLOP/s of one JAX device of this `device_kind`; None where it is not known (never a guess)."""
    if device_kind not in _PEAK:
        return None
    tflops, num_devices = _PEAK[device_kind]
    return tflops * 1e12 / num_devices


def model_flops_utilization(flops_per_second, device_kind, num_devices):
    """Share of the devices' peak, or None for a device whose peak is not known."""
    peak = peak_flops(device_kind)
    return None if peak is None else flops_per_second / (peak * num_devices)
