"""Reader of NVIDIA DALI, as its ImageNet example: the CPU prepares, the GPU decodes the crop, resizes and flips.

DALI has no way to skip an image: the first one that it cannot decode ends the reader with a LabkitError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labkit.data.readers.reader import Part, Reader, Wanted


class DaliReader(Reader):
    """A DALI pipeline, whose batches continue across the end of an epoch."""

    on_device = True

    def __init__(self, wanted: Wanted) -> None:
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        super().__init__(wanted)
        self._parts = DALIGenericIterator([_pipeline(wanted)], ["images", "labels"], size=-1)  # -1: without end

    def _next_part(self) -> Part:
        values = next(self._parts)[0]
        return Part(values["images"], values["labels"].view(-1).long().to(self.wanted.device, non_blocking=True))


def _pipeline(wanted: Wanted) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    samples, px = wanted.stored.samples, wanted.image_px
    # DALI shuffles after each epoch, so the order of the first is drawn here.
    order = np.random.default_rng(wanted.seed).permutation(len(samples)) if wanted.shuffled else range(len(samples))
    files = [str(wanted.stored.folder / samples[n].path) for n in order]
    labels = [samples[n].label for n in order]

    @pipeline_def(
        batch_size=wanted.batch,
        num_threads=max(1, wanted.workers),
        device_id=torch.cuda.current_device(),
        seed=wanted.seed,
    )
    def pipeline() -> tuple[Any, Any]:
        data, label = fn.readers.file(files=files, labels=labels, shuffle_after_epoch=wanted.shuffled)
        if wanted.train:
            images = fn.decoders.image_random_crop(
                data,
                device="mixed",
                output_type=types.RGB,
                random_area=[0.08, 1.0],
                random_aspect_ratio=[3 / 4, 4 / 3],
            )
            images = fn.resize(images, resize_x=px, resize_y=px)
            images = fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5))
        else:
            images = fn.decoders.image(data, device="mixed", output_type=types.RGB)
            images = fn.crop(fn.resize(images, resize_shorter=px * 256 // 224), crop=(px, px))
        return fn.transpose(images, perm=[2, 0, 1]), label

    return pipeline()
