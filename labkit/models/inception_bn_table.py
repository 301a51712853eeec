"""The table of Inception-BN from its paper: Ioffe & Szegedy 2015, arXiv:1502.03167, figure 5.

Filters are as printed. In rows 4c and 4d they add up to 608 channels, but the table's output size is 576. Row 4e thus
gives 1,056 channels, but the table says 1,024. MXNet's Inception-BN, which the Dell paper measured, follows the filters
too. The first convolution is an ordinary one, as in MXNet; the paper's was separable with depth multiplier 8
(appendix). The parameters therefore follow from these rows, and not from the 13.6 million of section 4.2.
Convolutions have no bias, because batch norm cancels it (section 3.2). There is no dropout (4.2.1).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One Inception module: the filters of its branches, which are concatenated in this order.

    `one` is a 1x1 convolution (0: none). `reduce` and `three` are a 1x1 convolution and the 3x3 convolution after it.
    `double_reduce` and `double` are a 1x1 convolution and the two 3x3 convolutions after it. `pool` is a 3x3 pooling,
    followed by a 1x1 convolution with `project` filters. A `stride` of 2 is on the last 3x3 layer of each branch; the
    maximum then has no convolution after it (`project` 0).
    """

    name: str
    one: int
    reduce: int
    three: int
    double_reduce: int
    double: int
    pool: str  # average or maximum
    project: int
    stride: int = 1

    def channels(self, given: int) -> int:
        """Return the number of output channels for `given` input channels."""
        return self.one + self.three + self.double + (self.project or given)


STEM = (64, 64, 192)  # filters of the 7x7 convolution with stride 2, the 1x1 and the 3x3 convolution
ROWS = (
    Row("3a", 64, 64, 64, 64, 96, "average", 32),
    Row("3b", 64, 64, 96, 64, 96, "average", 64),
    Row("3c", 0, 128, 160, 64, 96, "maximum", 0, stride=2),
    Row("4a", 224, 64, 96, 96, 128, "average", 128),
    Row("4b", 192, 96, 128, 96, 128, "average", 128),
    Row("4c", 160, 128, 160, 128, 160, "average", 128),
    Row("4d", 96, 128, 192, 160, 192, "average", 128),
    Row("4e", 0, 128, 192, 192, 256, "maximum", 0, stride=2),
    Row("5a", 352, 192, 320, 160, 224, "average", 128),
    Row("5b", 352, 192, 320, 192, 224, "maximum", 128),
)
