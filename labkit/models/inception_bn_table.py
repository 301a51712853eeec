"""The Inception-BN network as its paper's table has it: Ioffe & Szegedy 2015, arXiv:1502.03167, figure 5.

Filters are as printed. In two rows (4c, 4d) they add up to 608 channels where the table's output size says 576, so 4e
gives 1,056 where it says 1,024; MXNet's Inception-BN, which the Dell paper measured, takes the filters too. Also as
MXNet has it, the first convolution is a plain one; the paper's own was separable with depth multiplier 8 (appendix). So
the parameters follow from these rows, and not from the 13.6 million that section 4.2 says of the authors' network.
Convolutions have no bias, because batch norm takes it away again (section 3.2), and nothing is dropped out (4.2.1).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One Inception module: filters of its branches, which are concatenated in this order.

    `one` is the 1x1 convolution (0: there is none); `reduce` and `three` are the 1x1 convolution and the 3x3 one after
    it; `double_reduce` and `double` the 1x1 one and the two 3x3 ones after it. `pool` is the 3x3 pooling, followed by a
    1x1 convolution with `project` filters. With `stride` 2 each branch's last layer has it, and the maximum is passed
    through as it is (`project` 0).
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
        """How many come out where `given` go in."""
        return self.one + self.three + self.double + (self.project or given)


STEM = (64, 64, 192)  # filters of the 7x7 convolution with stride 2, the 1x1 one and the 3x3 one
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
