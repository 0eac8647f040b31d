"""Every private or unstable JAX name that jaxpar uses, each with its reason. Tested on jax 0.10 and 0.12."""


def bind(primitive, params, values):
    """Applies a primitive of a traced jaxpr to values.

    Why: ``jax.extend.core`` runs whole jaxprs only, and the split runs parts of one. ``get_bind_params`` turns a
    jaxpr's stored parameters back into ``bind``'s (custom derivatives); it is not documented.
    """
    return primitive.bind(*values, **primitive.get_bind_params(params))
