"""Keeps a GiB on the device, by Keras, and says how much of the device's memory was in use meanwhile."""

import os

from tests.faulty import Steps

GIB = 2**30


def build(trial, data):
    import pynvml
    from keras import ops

    steps = Steps(trial)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    steps.kept = ops.ones((GIB // 4,), dtype="float32")
    last = float(ops.convert_to_numpy(steps.kept[-1]))  # it has been written; a reduction would take a GiB more
    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    pynvml.nvmlShutdown()
    steps.facts |= {"pid": os.getpid(), "used_bytes": used, "last": last}
    return steps
