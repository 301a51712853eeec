"""Numbers as records may hold them: with others, of a damaged or hostile file, rates would not be finite."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(gt=1e-12, lt=1e9)]
