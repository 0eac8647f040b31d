"""Rules: names become specs, and what cannot be meant is refused."""

import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar.errors import SettingError
from jaxpar.mesh import make_mesh
from jaxpar.sharding import TENSOR_RULES, Rules, param_shardings


def test_names_become_axes():
    assert TENSOR_RULES.spec(("width", "mlp_width")) == P(None, "tensor")
    assert TENSOR_RULES.spec(("vocab", "width")) == P("tensor")
    assert TENSOR_RULES.spec(("width", None, "head_dim")) == P()
    assert TENSOR_RULES.spec(()) == P()
    assert TENSOR_RULES.specs({"a": ("vocab", "width"), "b": {"c": ("width",)}}) == {"a": P("tensor"), "b": {"c": P()}}


def test_two_dims_on_one_axis_are_refused():
    with pytest.raises(SettingError, match=r"'vocab' and 'mlp_width' of one array both go to mesh axis 'tensor'"):
        TENSOR_RULES.spec(("vocab", "mlp_width"))
    rules = TENSOR_RULES.replace(width=("data", "tensor"))
    with pytest.raises(SettingError, match="collide"):
        rules.spec(("width", "mlp_width"))


def test_an_unknown_axis_is_refused_when_the_rule_is_made():
    with pytest.raises(SettingError, match=r"rule mlp='tensr' names no axis.*Did you mean 'tensor'\?"):
        Rules.of({"mlp": "tensr"})
    with pytest.raises(SettingError, match="unknown"):
        TENSOR_RULES.replace(vocab=("pipe", "model"))
    with pytest.raises(SettingError, match="twice"):
        Rules.of({"mlp": ("tensor", "tensor")})


def test_a_dim_without_a_rule_is_refused():
    with pytest.raises(SettingError, match=r"dim 'mlp_widht' has no rule.*Did you mean 'mlp_width'\?"):
        TENSOR_RULES.spec(("width", "mlp_widht"))


def test_sizes_that_do_not_divide_list_the_axis_sizes_that_do():
    mesh = {"data": 1, "pipe": 2, "tensor": 4}
    TENSOR_RULES.check_sizes({"num_kv_heads": 8, "width": 7}, mesh)
    with pytest.raises(SettingError) as error:
        TENSOR_RULES.check_sizes({"num_kv_heads": 6}, mesh)
    assert "model.num_kv_heads=6 does not divide by mesh.tensor=4" in str(error.value)
    assert "multiple of 4, or mesh.tensor of 1, 2, 3, 6." in str(error.value)


def test_packed_parameters_split_over_pipe_and_tables_as_the_vocabulary_says():
    mesh = make_mesh(2, 2, 2)
    specs = {"embed": {"table": P("tensor")}, "layers": {"w": P(None, "tensor")}, "head": {"norm": P(), "table": P()}}
    ends = param_shardings(mesh, specs, "ends")
    assert ends["layers"]["w"] == NamedSharding(mesh, P("pipe", None, "tensor"))
    assert ends["embed"]["table"] == NamedSharding(mesh, P("tensor"))
    pipe = param_shardings(mesh, specs, "pipe")
    assert pipe["embed"]["table"] == NamedSharding(mesh, P(("pipe", "tensor")))
    assert pipe["head"]["table"] == NamedSharding(mesh, P(("pipe",)))
    assert pipe["head"]["norm"] == NamedSharding(mesh, P())
