"""Whether this CPU computes in BF16. Without that arithmetic, a BF16 training step takes a hundred times as long."""

from __future__ import annotations

import pytest
import torch

needed = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no BF16 on this CPU (it needs AVX-512)"
)
