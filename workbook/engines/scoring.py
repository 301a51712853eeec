"""Top-1 and top-5 hits of every image, by the predictor and batch size that are timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from labkit.data import Split
from workbook.records.scored import Hits

TOP = 5  # all classes if there are fewer


def score(
    predict: Callable[[torch.Tensor], torch.Tensor], split: Split, *, batch: int, on_share: Callable[[float], None]
) -> tuple[Hits, Hits]:
    """Return whether each image's class ranked first, and whether it ranked in the first five: two bool arrays (N,).

    `predict` takes uint8 images (batch, 3, H, W) on the host and returns logits (batch, classes). A short last batch is
    filled up with the split's first images, whose logits are left out. `on_share` gets the share done, 0 to 1.
    """
    images = len(split)
    top1, top5 = np.zeros(images, np.bool_), np.zeros(images, np.bool_)
    for first in range(0, images, batch):
        chosen = np.arange(first, first + batch)
        logits = predict(torch.from_numpy(split.images[chosen % images]))
        wanted = torch.from_numpy(split.labels[chosen % images].astype(np.int64)).to(logits.device)
        ranked = logits.float().topk(min(TOP, logits.shape[1]), dim=1).indices == wanted[:, None]
        of_split = slice(first, min(first + batch, images))
        count = of_split.stop - first
        top1[of_split] = ranked[:count, 0].cpu().numpy()
        top5[of_split] = ranked[:count].any(dim=1).cpu().numpy()
        on_share(of_split.stop / images)
    return top1, top5
