"""Compiles one step for a target that is not here and prints its report as JSON: the subject of test_invariants.

A process of its own: what the compilers read from the environment must be set before JAX starts, and a compiler that
ends its process must not end the tests'.
"""

import json
import sys

from jaxpar.schedule import build
from jaxpar.targets import compile_step, devices, report

PIPE, TENSOR, NUM_MICROBATCHES = 4, 2, 8
NUM_LAYERS = 2 * PIPE
ROWS, SEQ_LEN = 4, 1024  # of a microbatch


def main(target, layers):
    """Report of a decoder of 437 million parameters, two layers a rank, 1F1B, bfloat16."""
    found = devices(target)  # first: sets the environment

    from jaxpar.mesh import make_mesh
    from jaxpar.models.decoder import DecoderConfig, decoder

    config = DecoderConfig(
        num_layers=NUM_LAYERS,
        width=2048,
        num_heads=16,
        num_kv_heads=16,
        mlp_width=8192,
        vocab_size=32_768,
        dtype="bfloat16",
    )
    step = compile_step(
        decoder(config, vocab_multiple=TENSOR),
        build("1f1b", PIPE, NUM_MICROBATCHES),
        make_mesh(len(found) // (PIPE * TENSOR), PIPE, TENSOR, found),
        global_batch=ROWS * NUM_MICROBATCHES,
        seq_len=SEQ_LEN,
        layers=layers,
    )
    print(json.dumps(report(step)))


if __name__ == "__main__":
    main(*sys.argv[1:])
