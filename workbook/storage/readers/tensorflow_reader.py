"""Reader of tf.data, as TensorFlow's ImageNet training builds it: decode only the rows of the crop, flip, resize.

TensorFlow resizes without antialiasing in training. The centre crop uses it, as PyTorch does. TensorFlow gets no GPU.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from labkit.errors import LabkitError
from workbook.storage.readers.reader import Part, Reader, Wanted

BUFFER = 2000  # records in the shuffle buffer, which is no whole epoch
FILES_AT_ONCE = 16  # files that the records of a batch come from


class TensorFlowReader(Reader):
    """A tf.data pipeline. `workers` are the threads of its pool; 0 leaves the number to TensorFlow."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else TensorFlow logs each epoch's end
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        if not any(True for _ in _prepared(tf, _samples(tf, replace(wanted, shuffled=False)), wanted).take(1)):
            # TensorFlow skips the errors of an endless pipeline without end.
            raise LabkitError(f"the reader tf_data can read none of the images in {wanted.stored.folder}.")
        self._delivered = 0
        self._parts = iter(_batches(tf, wanted))
        self._to_dlpack = tf.experimental.dlpack.to_dlpack

    def _next_part(self) -> Part:
        numbers, images, labels = next(self._parts)
        self._delivered += self.batch
        # Samples have consecutive numbers before they are decoded, so the gaps are the samples that were skipped.
        skipped = int(numbers[-1]) + 1 - self._delivered - self.skipped
        # Without a copy: torch takes over TensorFlow's memory, in which the channels of a pixel are neighbours.
        pixels, classes = (torch.utils.dlpack.from_dlpack(self._to_dlpack(values)) for values in (images, labels))
        return Part(pixels.permute(0, 3, 1, 2), classes, skipped)


def _batches(tf: Any, wanted: Wanted) -> Any:
    """Return the data set of batches: numbers (B,), images (B, px, px, 3) and labels (B,)."""
    samples = _prepared(tf, _samples(tf, wanted).repeat(), wanted)
    batches = samples.batch(wanted.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    if wanted.workers:
        options.threading.private_threadpool_size = wanted.workers
    return batches.with_options(options)


def _samples(tf: Any, wanted: Wanted) -> Any:
    """Return the samples of an epoch, not yet decoded."""
    return _files(tf, wanted) if wanted.stored.form == "jpeg" else _records(tf, wanted)


def _prepared(tf: Any, samples: Any, wanted: Wanted) -> Any:
    """Return the decoded samples with their numbers."""

    def prepare(number: Any, sample: Any) -> tuple[Any, Any, Any]:
        data, label = sample
        if wanted.stored.form == "jpeg":
            data = tf.io.read_file(data)
        return number, _image(tf, data, wanted), label

    prepared = samples.enumerate().map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return prepared.ignore_errors()


def _files(tf: Any, wanted: Wanted) -> Any:
    """Return the paths and labels of an epoch."""
    stored = wanted.stored
    paths = np.array([os.fsencode(stored.folder / name) for name, _, _ in stored.samples])
    labels = np.array([label for _, label, _ in stored.samples], dtype=np.int64)
    files = tf.data.Dataset.from_tensor_slices((paths, labels))
    return files.shuffle(len(labels), seed=wanted.seed) if wanted.shuffled else files


def _records(tf: Any, wanted: Wanted) -> Any:
    """Return the encoded images and labels of an epoch."""
    described = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def records_of(file: Any) -> Any:
        return tf.data.TFRecordDataset(file).ignore_errors()

    def parse(record: Any) -> tuple[Any, Any]:
        values = tf.io.parse_single_example(record, described)
        return values["image/encoded"], values["image/class/label"]

    files = tf.data.Dataset.from_tensor_slices([str(file) for file in wanted.stored.files if file.is_file()])
    if not wanted.shuffled:
        return files.flat_map(records_of).map(parse)
    at_once = min(FILES_AT_ONCE, len(wanted.stored.files))
    files = files.shuffle(len(wanted.stored.files), seed=wanted.seed)
    records = files.interleave(records_of, cycle_length=at_once, num_parallel_calls=tf.data.AUTOTUNE)
    return records.shuffle(BUFFER, seed=wanted.seed).map(parse)


def _image(tf: Any, data: Any, wanted: Wanted) -> Any:
    """Return the image as uint8 (px, px, 3)."""
    px = wanted.image_px
    if not wanted.train:
        image = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
        edges = tf.shape(image)[:2]
        size = edges * (px * 256 // 224) // tf.reduce_min(edges)
        corner = tf.cast(tf.round((size - px) / 2), tf.int32)  # rounded as torchvision's CenterCrop does
        image = tf.image.resize(image, size, antialias=True)
        image = tf.image.crop_to_bounding_box(image, corner[0], corner[1], px, px)
    else:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data),
            bounding_boxes=tf.zeros((1, 0, 4)),
            seed=wanted.seed,
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.io.decode_and_crop_jpeg(data, tf.concat([begin[:2], size[:2]], 0), channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (px, px)), seed=wanted.seed)
    return tf.cast(image, tf.uint8)  # truncated, as hand-written pipelines do
