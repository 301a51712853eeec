"""Schema of a paper's story: a paragraph written by hand, the verdicts that it rests on, and its figure."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from workbook.claims.schema import FieldName, Group, Value


class _Part(BaseModel, extra="forbid", frozen=True):
    """A part of a story, immutable after reading. Unknown keys are errors."""


class Sentence(_Part):
    """A sentence, and where each claim that it rests on is counted when the records of all devices judge it.

    `{then}` in the text stands for the printed values of the story's figure.
    """

    text: Annotated[str, Field(min_length=1)]
    rests_on: dict[str, Group] = {}


class StoryFigure(_Part):
    """The figure: the printed magnitudes of one test of a claim, beside what the records give.

    `{now}` in the title stands for the measured values of `title_of`.
    """

    claim: str
    test: int = Field(0, ge=0)  # its place among the claim's tests
    # Of the records that the test selects; without a model, those that a printed value is about.
    select: dict[FieldName, Value | list[Value]] = {}
    title_of: dict[FieldName, Value] = {}
    title: Annotated[str, Field(min_length=1)]
    caption: Annotated[str, Field(min_length=1)]


class Story(_Part):
    """What a paper found, what still holds, and what changed since and why."""

    sentences: Annotated[list[Sentence], Field(min_length=1)]
    figure: StoryFigure

    @property
    def outcomes(self) -> dict[str, Group]:
        """The outcome of each claim that the story rests on."""
        return {claim: group for sentence in self.sentences for claim, group in sentence.rests_on.items()}
