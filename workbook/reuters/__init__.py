"""Documents of a small network that trains beside another, as in the NYU paper: Keras's reuters.npz, or drawn ones."""

from __future__ import annotations

from labkit.data import check_counts
from labkit.data.cache import cached
from labkit.data.dataset import DataSet
from workbook.reuters import newswires, synthetic


def open_documents(
    file: str | None = None,
    *,
    train_documents: int = synthetic.TRAIN_DOCUMENTS,
    val_documents: int = synthetic.VAL_DOCUMENTS,
) -> DataSet:
    """Return documents as bags of words from the cache. The first call writes the cache entry.

    `file` is Keras's reuters.npz, of which all documents are used. Without a file, `train_documents` and
    `val_documents` documents are drawn in the shape of reuters.npz. Raise the errors of `labkit.open_data`.
    """
    if file:
        return cached(newswires.source(file))
    check_counts("documents", train_documents, val_documents)
    return cached(synthetic.source(train_documents=train_documents, val_documents=val_documents, seed=0))
