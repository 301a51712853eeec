"""What workers import and what never changes while a report runs: PyTorch, torchvision and a compiler for GPUs.

The parent of forked workers imports this module. It imports nothing of the suite, whose code may be edited meanwhile,
and calls nothing that starts CUDA: a fork of a process with CUDA has none. An import that fails is the workers' to
tell, who try it again.
"""

from contextlib import redirect_stderr, suppress
from io import StringIO

with suppress(Exception), redirect_stderr(StringIO()):
    from labkit.torchvision_import import import_torchvision

    import_torchvision()  # which imports PyTorch and its tracing compiler
