"""What is held out: whole documents, never blocks of one, so that nothing of them was trained on."""

import numpy as np


def split_documents(docs, fraction):
    """(training, held-out) documents; a document's name decides, so that adding one moves no other.

    Where chance gives one side nothing, it gets the document nearest to the border.

    Args:
      docs: at least two Documents, in the order of their positions.
      fraction: share that is held out.
    """
    cut = sum(document.position < fraction for document in docs)
    cut = min(max(cut, 1), len(docs) - 1)
    return docs[cut:], docs[:cut]


def split_tokens(tokens, fraction):
    """(training, held-out) Tokens, neither copied: the last documents, or the end of a lone one.

    Documents of tokens have no names to choose by; that of the file which starts nearest to the border makes it.

    Args:
      tokens: Tokens.
      fraction: share of the tokens that is held out.
    """
    border = round(len(tokens) * (1 - fraction))
    if len(tokens.starts) > 1:
        after = int(np.clip(np.searchsorted(tokens.starts, border), 1, len(tokens.starts) - 1))
        before = max(after - 1, 1)
        border = int(min((tokens.starts[before], tokens.starts[after]), key=lambda start: abs(start - border)))
    return tokens.part(0, border), tokens.part(border, len(tokens))
