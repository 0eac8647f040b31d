"""Generation: greedy tokens are those of the plain model, one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.models.model import init_params
from jaxpar.sample import generate, printable


@pytest.fixture(scope="module")
def tiny():
    sizes = {"num_layers": 2, "width": 16, "num_heads": 2, "num_kv_heads": 1, "mlp_width": 32, "vocab_size": 300}
    # Untied: a tied model's likeliest token is at first the one just read, whatever came before.
    model = decoder(DecoderConfig(**sizes, tie_embeddings=False), vocab_multiple=64)
    return model, init_params(model, jax.random.key(0))


def plain_logits(model, params, tokens):
    x = model.embed(params["embed"], jnp.asarray(tokens)[None])
    for index in range(model.num_layers):
        x = model.layer(jax.tree.map(lambda leaf, i=index: leaf[i], params["layers"]), x, {}, None)
    head = model.head(params)
    return np.asarray(model.loss.logits(head["table"], model.loss.features(head, x))[0, -1])


def test_greedy_tokens_are_the_likeliest_after_at_most_a_window(tiny):
    model, params = tiny
    tokens = list(generate(model, params, [5, 6, 7], 12, window=8, temperature=0.0, key=jax.random.key(0)))
    assert tokens[:3] == [5, 6, 7] and len(tokens) == 15 and len(set(tokens)) > 5
    for place in range(3, 15):
        logits = plain_logits(model, params, tokens[max(place - 8, 0) : place])
        assert logits[tokens[place]] >= logits.max() - 1e-5


def test_sampling_depends_on_the_key_alone_and_never_gives_padding(tiny):
    model, params = tiny
    draw = [generate(model, params, [5], 200, 4, 5.0, jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(draw[0], draw[1])
    assert not np.array_equal(draw[0], draw[2])
    assert max(map(np.max, draw)) < 300


def test_text_shows_what_cannot_be_shown():
    assert printable("a\tb\nc\x1b[31mé") == "a\tb\nc\N{REPLACEMENT CHARACTER}[31mé"
