"""A prediction as lines of text, for `make predict`."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.errors import UserError, one_of
from workbook.hardware.profile import load_profile, profile_names
from workbook.prediction.device import predict
from workbook.results import load
from workbook.results.columns import WHAT_RAN
from workbook.trials.trial import trial_from_dict
from workbook.words import configuration_name, number


def lines_of(hw: str, source: str, study: str) -> Iterator[str]:
    """Yield a line per configuration of a study: measured on `source`, and predicted for `hw`, or why not.

    Raise UserError without `hw`, and for a profile or a study without records.
    """
    if not hw:
        raise UserError("say for which device, for example `make predict HW=l40s FROM=h200`.")
    one_of("FROM", source, profile_names())
    target, results = load_profile(hw), load(source, study)
    made = predict(results, to=hw)
    trials = [
        trial_from_dict({name: row[name] for name in WHAT_RAN if name != "mode"}) for row in made.to_dict("records")
    ]
    yield f"Seconds of a step's kernels on {target.title}, from records of {load_profile(source).title}:"
    for trial, row in zip(trials, made.itertuples(), strict=True):
        name = configuration_name(trial, beside=trials)
        if row.reason:
            yield f"{name}: {row.reason}"
            continue
        low, high, value, here = (number(1e3 * part) for part in (row.low_s, row.high_s, row.device_s, row.busy_s))
        yield f"{name}: {value} ms [{low}, {high}], measured {here} ms ({row.basis})"
