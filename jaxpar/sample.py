"""Text from a trained model, on one device, layer after layer.

Every new token runs the whole window again: no cache, one program, quick enough for a sample of a small model.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def generate(model, params, prompt, num_tokens, window, temperature, key):
    """Continues a prompt.

    Args:
      model: Model whose loss is a VocabularyLoss.
      params: {"embed", "layers", "head"}, layers stacked by global index; computed where they lie.
      prompt: sequence of int, at least one token.
      num_tokens: how many to add.
      window: the longest context, in tokens: the row length that the model was trained on.
      temperature: divides the logits; 0 takes the likeliest token.
      key: PRNG key.

    Returns:
      int32 [len(prompt) + num_tokens].
    """
    size = max(len(prompt) + num_tokens, window)
    tokens = np.zeros(size, np.int32)
    tokens[: len(prompt)] = prompt
    fill = jax.jit(functools.partial(_fill, model, window, temperature))
    out = fill(params, jnp.asarray(tokens), len(prompt), len(prompt) + num_tokens, key)
    return np.asarray(out)[: len(prompt) + num_tokens]


def _fill(model, window, temperature, params, tokens, first, last, key):
    def step(place, tokens):
        start = jnp.maximum(place - window, 0)
        context = jax.lax.dynamic_slice_in_dim(tokens, start, window)
        logits = _next_logits(model, params, context, place - start - 1)
        if temperature:
            token = jax.random.categorical(jax.random.fold_in(key, place), logits / temperature)
        else:
            token = jnp.argmax(logits)
        return tokens.at[place].set(token.astype(tokens.dtype))

    return jax.lax.fori_loop(first, last, step, tokens)


def _next_logits(model, params, context_T, place):
    """Float32 logits [V] of the token after context_T[place]; what comes later is not seen (attention is causal)."""
    x_BTD = model.embed(params["embed"], context_T[None])

    def layer(x_BTD, p):
        out = model.layer(p, x_BTD, {}, None)
        return (out[0] if isinstance(out, tuple) else out), None

    y_BTD, _ = jax.lax.scan(layer, x_BTD, params["layers"])
    head = model.head(params)
    y_BTD = jax.lax.dynamic_slice_in_dim(y_BTD, place, 1, axis=1)
    return model.loss.logits(head[model.loss.table], model.loss.features(head, y_BTD))[0, 0]


def printable(text):
    """The text with every character that a terminal might take for a command shown as unknown."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
