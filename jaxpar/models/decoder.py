"""A decoder-only transformer, written as for one device: no mesh, no collective.

RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) before each branch, rotary positions (Su et al. 2021,
arXiv:2104.09864), grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245), SwiGLU (Shazeer 2020,
arXiv:2002.05202). The logical names of every parameter's dims stand beside it.

Shape legend: B rows, T tokens, D width, N heads, K key-value heads, G query heads a key-value head, H head size,
M MLP width, V vocabulary (padded); in the MLP G groups of S columns.

Values with names, for recomputation that keeps them (`pipeline.remat=names:...`): qkv, attended (before the output
matrix), gate_up.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxpar.errors import SettingError
from jaxpar.models.functions import attention_inputs, drop, rotate
from jaxpar.models.model import Model, embed_key, head_key, layer_key
from jaxpar.pipeline.vocabulary import VocabularyEmbedding, VocabularyLoss

_MASKED = -1e30  # finite, so that no inf - inf can arise
_MOST_GROUPS = 192  # any tensor axis of 1, 2, 3, 4, 6, 8, ... that divides the MLP's width divides the groups
_LEAST_GROUPS, _LANES = 16, 128
_ATTENTION_SITE, _MLP_SITE = 0, 1  # folded into a layer's key


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the decoder.

    Attributes:
      num_layers, width, num_heads, num_kv_heads, mlp_width, vocab_size: sizes.
      tie_embeddings: the head uses the embedding's table.
      dtype: "float32" or "bfloat16", what is computed in.
      param_dtype: the same for parameters; initial values are made in float32 and rounded.
      dropout: share of each branch's output that is dropped where there is a random key.
      rope_base: base of the rotary frequencies.
      norm_epsilon: added to the mean square.
    """

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    vocab_size: int
    tie_embeddings: bool = True
    dtype: str = "float32"
    param_dtype: str = "float32"
    dropout: float = 0.0
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6

    def __post_init__(self):
        for name in ("dtype", "param_dtype"):
            if (value := getattr(self, name)) not in ("float32", "bfloat16"):
                raise SettingError(f"model.{name}={value} is not a type of the decoder: use float32 or bfloat16.")
        if not 0 <= self.dropout < 1:
            raise SettingError(
                f"model.dropout={self.dropout} is not in 0 .. 1: it is the share that is dropped. Use 0."
            )
        for name, by in (("width", "num_heads"), ("num_heads", "num_kv_heads")):
            size, parts = getattr(self, name), getattr(self, by)
            if size % parts:
                low = size // parts * parts
                raise SettingError(
                    f"model.{name}={size} is not a multiple of model.{by}={parts}: heads are equal shares. "
                    f"Use {f'{low} or ' if low else ''}{low + parts}."
                )
        if self.head_dim % 2:
            raise SettingError(
                f"model.width={self.width} gives heads of odd size {self.head_dim}: rotary positions turn pairs. "
                f"Use {self.num_heads * (self.head_dim + 1)}."
            )

    @property
    def head_dim(self):
        """Size of one head."""
        return self.width // self.num_heads

    def sizes(self):
        """Logical dim -> size, for `Rules.check_sizes`; a split of `num_heads` follows from that of `num_kv_heads`."""
        return {"num_kv_heads": self.num_kv_heads, "mlp_width": self.mlp_width}


class Attention(nnx.Module):
    """Causal grouped-query attention; also within segments where rows are packed.

    Queries, keys and values come from one matrix, grouped by key-value head: split over heads, the backward pass then
    reduces one input gradient, not three. Kernels are matrices: XLA transposes one of more dims for every product.
    """

    dims = {"qkv": {"kernel": ("width", "num_kv_heads")}, "out": {"kernel": ("num_kv_heads", "width")}}

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        width, heads = config.width, config.num_heads + 2 * config.num_kv_heads
        self.qkv = _linear(width, heads * config.head_dim, config, width, rngs)
        self.out = _linear(width, width, config, width * 2 * config.num_layers, rngs)

    def __call__(self, x_BTD, positions_BT, mask_BTT):
        rows, kv, size = x_BTD.shape[:2], self.config.num_kv_heads, self.config.head_dim
        qkv_BTKCH = checkpoint_name(self.qkv(x_BTD), "qkv").reshape(*rows, kv, -1, size)
        q_BTKGH, k_BTKH, v_BTKH = qkv_BTKCH[..., :-2, :], qkv_BTKCH[..., -2, :], qkv_BTKCH[..., -1, :]
        q_BTKGH = rotate(q_BTKGH, positions_BT[..., None, None], self.config.rope_base)
        k_BTKH = rotate(k_BTKH, positions_BT[..., None], self.config.rope_base)
        scores_BKGTS = jnp.einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k_BTKH, preferred_element_type=jnp.float32)
        scores_BKGTS = scores_BKGTS.astype(jnp.float32) / math.sqrt(self.config.head_dim)
        scores_BKGTS = jnp.where(mask_BTT[:, None, None], scores_BKGTS, _MASKED)
        weights_BKGTS = jax.nn.softmax(scores_BKGTS, axis=-1).astype(v_BTKH.dtype)
        attended_BTD = jnp.einsum("BKGTS,BSKH->BTKGH", weights_BKGTS, v_BTKH).reshape(*rows, -1)
        return self.out(checkpoint_name(attended_BTD, "attended"))


class SwiGLU(nnx.Module):
    """out(silu(gate(x)) * up(x)), gate and up in one matrix (one input gradient to reduce, not two).

    Its columns come in groups, each with its part of the gate and its part of up, so that a split over `tensor` falls
    between groups and leaves every device both halves of its share.
    """

    dims = {"gate_up": {"kernel": ("width", "mlp_width")}, "out": {"kernel": ("mlp_width", "width")}}

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        width, mlp_width = config.width, config.mlp_width
        self.num_groups = num_groups(mlp_width)
        self.gate_up = _linear(width, 2 * mlp_width, config, width, rngs)
        self.out = _linear(mlp_width, width, config, mlp_width * 2 * config.num_layers, rngs)

    def __call__(self, x_BTD):
        gate_up = checkpoint_name(self.gate_up(x_BTD), "gate_up")
        gate_up_BTGCS = gate_up.reshape(*x_BTD.shape[:2], self.num_groups, 2, -1)
        hidden_BTGS = jax.nn.silu(gate_up_BTGCS[..., 0, :]) * gate_up_BTGCS[..., 1, :]
        return self.out(hidden_BTGS.reshape(*x_BTD.shape[:2], -1))


def num_groups(mlp_width):
    """How many groups the MLP's columns come in: a tensor axis that divides it splits between groups.

    As many as 192 where the width allows; but groups of whole vector registers (128 lanes of a TPU), where that still
    leaves 16 of them: splitting gate from up then moves nothing inside a register.
    """
    most = math.gcd(mlp_width, _MOST_GROUPS)
    aligned = [n for n in range(_LEAST_GROUPS, most + 1) if most % n == 0 and mlp_width // n % _LANES == 0]
    return max(aligned, default=most)


class DecoderLayer(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); dropout at the end of both branches."""

    dims = {
        "attention": Attention.dims,
        "attention_norm": {"scale": ("width",)},
        "mlp": SwiGLU.dims,
        "mlp_norm": {"scale": ("width",)},
    }

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.dropout = config.dropout
        self.attention_norm = _norm(config, rngs)
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = _norm(config, rngs)
        self.mlp = SwiGLU(config, rngs=rngs)

    def __call__(self, x_BTD, side, keys_B=None):
        positions_BT, mask_BTT = attention_inputs(side, x_BTD.shape[:2])
        attended_BTD = self.attention(self.attention_norm(x_BTD), positions_BT, mask_BTT)
        x_BTD = x_BTD + drop(attended_BTD, self.dropout, keys_B, _ATTENTION_SITE)
        return x_BTD + drop(self.mlp(self.mlp_norm(x_BTD)), self.dropout, keys_B, _MLP_SITE)


def decoder(config, vocab_multiple=1):
    """The decoder as a `Model`.

    Args:
      config: DecoderConfig.
      vocab_multiple: table rows are padded to a multiple of this, so that they split over mesh axes. Padding is zero,
        gets no probability and no gradient, and leaves the other rows' initial values as they are.
    """
    rows = -(-config.vocab_size // vocab_multiple) * vocab_multiple
    graph = nnx.graphdef(nnx.eval_shape(lambda: DecoderLayer(config, rngs=nnx.Rngs(0))))

    def layer(p, x_BTD, side, rng=None):
        return nnx.merge(graph, p)(x_BTD, side, rng)

    def init_layer(key, index):
        module = DecoderLayer(config, rngs=nnx.Rngs(params=layer_key(key, index)))
        return _rounded(config, nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def init_embed(key):
        return _rounded(config, {"table": _table(config, rows, embed_key(key))})

    def init_head(key):
        head = {"norm": jnp.ones((config.width,), jnp.float32)}
        table = {} if config.tie_embeddings else {"table": _table(config, rows, head_key(key))}
        return _rounded(config, {**head, **table})

    table = {"table": ("vocab", "width")}
    return Model(
        num_layers=config.num_layers,
        layer=layer,
        embed=VocabularyEmbedding(finish=_Finish(config)),
        loss=VocabularyLoss(features=_Features(config), vocab_size=config.vocab_size),
        init_layer=init_layer,
        init_embed=init_embed,
        init_head=init_head,
        dims={
            "embed": table,
            "layers": DecoderLayer.dims,
            "head": {"norm": ("width",), **({} if config.tie_embeddings else table)},
        },
        tied=("table",) if config.tie_embeddings else (),
    )


@dataclasses.dataclass(frozen=True)
class _Finish:
    """Rows in the compute type. A value, so that equal models are equal.

    No scale: a tied table with rows of unit variance would make the model predict its own input at first.
    """

    config: DecoderConfig

    def __call__(self, p_embed, rows_BTD):
        return rows_BTD.astype(self.config.dtype)


@dataclasses.dataclass(frozen=True)
class _Features:
    """The final norm."""

    config: DecoderConfig

    def __call__(self, p_head, y_BTD):
        y_BTD = y_BTD.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(y_BTD), axis=-1, keepdims=True) + self.config.norm_epsilon)
        return (y_BTD * scale * p_head["norm"]).astype(self.config.dtype)


def _table(config, rows, key):
    """[rows, width]; each row has its own key, so that padding changes no other row."""

    def row(index):
        values = jax.random.normal(jax.random.fold_in(key, index), (config.width,), jnp.float32)
        return jnp.where(index < config.vocab_size, values * config.width**-0.5, 0.0)

    return jax.vmap(row)(jnp.arange(rows))


def _rounded(config, params):
    """Made in float32 whatever they are kept in, so that one seed gives one model."""
    return jax.tree.map(lambda leaf: leaf.astype(config.param_dtype), params)


def _linear(size_in, size_out, config, fan_in, rngs):
    """A matrix with normal initial values of variance 1 / fan_in (branch outputs count the branches into it)."""
    init = nnx.initializers.normal(fan_in**-0.5)
    return nnx.Linear(
        size_in, size_out, use_bias=False, dtype=config.dtype, param_dtype=jnp.float32, kernel_init=init, rngs=rngs
    )


def _norm(config, rngs):
    return nnx.RMSNorm(
        config.width, epsilon=config.norm_epsilon, dtype=config.dtype, param_dtype=jnp.float32, rngs=rngs
    )
