"""Whether oneDNN computes in BF16 on this CPU. Without it, a test that trains in BF16 takes nine times as long."""

from __future__ import annotations

import pytest
import torch

needed = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no BF16 on this CPU (it needs AVX-512)"
)
