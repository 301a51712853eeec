"""Days and money of a training, from the prices per hour that a user enters in `prices.yaml`."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workbook.hardware.profile import Profile
from workbook.words import label


def prices(profile: Profile, devices: Sequence[str]) -> pd.DataFrame:
    """Return the price per hour of each kind of device (`cpu`, `cuda`): `processor`, `per_hour`, `currency`, `source`.

    A processor without a price in `prices.yaml` is left out.
    """
    priced = [(label("device", device), price) for device in devices if (price := profile.price_of(device)) is not None]
    currency = currency_of([profile])
    rows = [(processor, price.value, currency, price.source) for processor, price in priced]
    return pd.DataFrame(rows, columns=["processor", "per_hour", "currency", "source"])


def currency_of(profiles: Sequence[Profile]) -> str:
    """Return the currency of the prices; an empty text without prices."""
    return next((profile.cost.currency for profile in profiles if profile.cost), "")


def days_and_cost(profiles: Sequence[Profile]) -> dict[str, str]:
    """Return the columns of a table of trainings: days of 90 epochs, and their cost where a profile has a price."""
    currency = currency_of([profile for profile in profiles if profile.price_of(profile.device.kind)])
    costs = {"per million images": "cost_per_million_images", "for 90 epochs": "cost_of_90_epochs"}
    return {"90 epochs, days": "training_90_epochs_s"} | {
        f"{currency} {unit}": metric for unit, metric in costs.items() if currency
    }
