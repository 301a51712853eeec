"""Rules of support of a WGAN: which trials of it cannot be trained here."""

from __future__ import annotations

from workbook.engines.adversarial.iterations import LARGEST_CAPTURED
from workbook.engines.support import CAPTURE, PRECISION, is_gan
from workbook.trials.recipes import ADVERSARIAL
from workbook.trials.rules import Rule

ENGINES = ("eager", "graph")

# fmt: off
RULES = (
    Rule("never", lambda t: not is_gan(t),
        "the gan workload trains a GAN (wgan), and {model} is none"),
    Rule("version", lambda t: t.engine not in ENGINES,
        f"a WGAN is trained in the modes {' and '.join(ENGINES)}, not by {{engine}}"),
    Rule("version", lambda t: t.devices > 1 or t.arrangement != "alone",
        "this version trains a WGAN on one device, one at a time"),
    Rule("version", lambda t: t.optimizer != ADVERSARIAL["optimizer"],
        f"a WGAN is updated by {ADVERSARIAL['optimizer']}, not by '{{optimizer}}'"),
    Rule("never", lambda t: t.epochs, "a WGAN has no validation, so no training run of whole epochs"),
    Rule("version", lambda t: t.precision == "fp16",
        "FP16 needs loss scaling, which is not built for two losses with a common network: use BF16"),
    Rule("never", lambda t: t.augment,
        "a generator would learn the flips and crops of augmented images too: train a WGAN without augment"),
    Rule("never", lambda t: t.batch == 1,
        "batch norm cannot train on a single value a channel, and the generator begins with one pixel of noise"),
    *PRECISION,
    *CAPTURE,
    Rule("version", lambda t: t.engine == "graph" and t.batch > LARGEST_CAPTURED,
        f"a captured iteration takes batches of {LARGEST_CAPTURED:,} images at most"),
)
# fmt: on
