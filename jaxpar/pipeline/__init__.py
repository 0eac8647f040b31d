"""The pipeline: one layer function and a schedule in, loss and gradients out."""

from jaxpar.pipeline.executor import Pipeline, value_and_grad
from jaxpar.pipeline.layout import Layout, split_evenly
from jaxpar.pipeline.totals import Output
from jaxpar.pipeline.vocabulary import VocabularyEmbedding, VocabularyLoss, token_loss

__all__ = [
    "Layout",
    "Output",
    "Pipeline",
    "VocabularyEmbedding",
    "VocabularyLoss",
    "split_evenly",
    "token_loss",
    "value_and_grad",
]
