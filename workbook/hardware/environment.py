"""Environment variables that change a measurement: those that worker processes do not inherit, and those recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

# Patterns of variables that change what is timed, by effect. A trial names threads, precision and engine itself.
CHANGERS = {
    "the number or place of threads": (
        *("OMP_*", "GOMP_*", "KMP_[ABDHLT]*", "MKL_NUM_THREADS", "MKL_DYNAMIC", "MKL_DOMAIN_*", "BLIS_NUM_THREADS"),
        *("OPENBLAS_NUM_THREADS", "NUMEXPR_*THREADS", "VECLIB_MAXIMUM_THREADS", "TF_NUM_*_THREADS", "TF_GPU_THREAD_*"),
    ),
    "the precision or the instructions": (
        *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "*DNN*_DEFAULT_FPMATH_MODE", "*DNN*_MAX_CPU_ISA"),
        *("TF_ENABLE_ONEDNN_OPTS", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "JAX_ENABLE_X64"),
        *("JAX_DEFAULT_MATMUL_PRECISION", "TF_*DETERMINISTIC*", "CUBLAS_WORKSPACE_CONFIG", "CUDNN_CONV_*"),
    ),
    "whether or how code is compiled": (
        *("TORCH_COMPILE_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "PYTORCH_JIT*", "PYTORCH_NVFUSER*"),
        *("TRITON_INTERPRET", "JAX_DISABLE_JIT", "XLA_FLAGS", "TF_XLA_FLAGS", "TF_CUDNN_USE_AUTOTUNE"),
    ),
    "the order of the device's work": (
        *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_*BLOCKING_WAIT", "TORCH_*DESYNC_DEBUG"),
        *("PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_DISTRIBUTED_DEBUG"),
    ),
    "the work of the interpreter or a library beside the step": (
        *("PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONMALLOC", "PYTHONASYNCIODEBUG", "TORCH_LOGS", "TORCH_TRACE"),
        *("*DNN*_VERBOSE", "MKL_VERBOSE", "CUDNN_LOG*", "CUBLAS_LOG*", "CUBLASLT_LOG*", "CUDA_ENABLE_COREDUMP*"),
    ),
}
# Variables that fit a pattern of CHANGERS and change no timed step.
_KEPT = ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "KMP_DUPLICATE_LIB_OK")
# Beginnings of further variables that frameworks read. A machine may need them, so they are kept and recorded.
_READ = (
    *("TORCH", "PYTORCH", "CUDA", "CUDNN", "CUBLAS", "NCCL", "GLOO", "NVIDIA", "MKL", "DNNL", "ONEDNN", "OPENBLAS"),
    *("TF", "XLA", "JAX", "KERAS", "TRITON", "OV", "OPENVINO", "MALLOC", "GLIBC_TUNABLES", "LD_PRELOAD", "UCX", "FI"),
)
# Variables that describe a container or choose devices and folders: they change no step of a trial.
_DESCRIBING = (
    *("CUDA_HOME", "CUDA_PATH", "TORCH_HOME", "*_VERSION", "*_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST", "TF_CLI_*"),
    *("NVIDIA_REQUIRE_*", "NVIDIA_PRODUCT_NAME", "NVIDIA_DRIVER_CAPABILITIES", "*_CACHE_DIR", "*_CACHE_PATH"),
)
_SECRET = re.compile(r"TOKEN|SECRET|PASS|CRED|AUTH|KEY|ADDR|HOST|URL|PROXY|CONFIG$|PORT", re.IGNORECASE)
_CHARACTERS = 200  # of a value in a record


def changers_of(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that would change a measurement, with their effect.

    >>> changers_of({"OMP_NUM_THREADS": "1", "HOME": "/root", "TORCHINDUCTOR_CACHE_DIR": "/scratch"})
    {'OMP_NUM_THREADS': 'the number or place of threads'}
    """
    return {
        name: effect
        for name in sorted(given)
        for effect, patterns in CHANGERS.items()
        if name not in _KEPT and any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def for_workers(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a worker process: the given one without the variables of `changers_of`."""
    changers = changers_of(given)
    return {name: value for name, value in given.items() if name not in changers}


def read_at_start(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a worker's interpreter, linker and frameworks read as they start.

    >>> read_at_start({"LD_PRELOAD": "libjemalloc.so", "PYTHONHASHSEED": "0", "HOME": "/home/me"})
    {'LD_PRELOAD': 'libjemalloc.so', 'PYTHONHASHSEED': '0'}
    """
    beginnings = (*_READ, "PYTHON", "LD_")
    return {name: value for name, value in sorted(for_workers(given).items()) if name.startswith(beginnings)}


def recorded_variables(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that frameworks read and workers inherit, as a record may publish them.

    Values with a folder are replaced, and variables that may name a machine or hold a secret are left out.

    >>> recorded_variables({"NCCL_P2P_LEVEL": "NVL", "CUDA_CACHE_PATH": "/home/me", "HOME": "/home/me"})
    {'CUDA_CACHE_PATH': '(a path)', 'NCCL_P2P_LEVEL': 'NVL'}
    """
    read = {name: value for name, value in for_workers(given).items() if name.split("_")[0] in _READ or name in _READ}
    return {
        name: "(a path)" if "/" in value else value[:_CHARACTERS]
        for name, value in sorted(read.items())
        if value and not _SECRET.search(name)
    }


def settings_of(environments: Iterable[Mapping[str, str]]) -> str:
    """Return the variables of records that may change a measurement, as text; empty without any.

    `environments` are from `recorded_variables`.

    >>> settings_of([{"NCCL_NVLS_ENABLE": "0", "CUDA_VERSION": "13.0.2"}, {"NCCL_NVLS_ENABLE": "0"}])
    'NCCL_NVLS_ENABLE=0'
    """
    pairs = sorted({pair for variables in environments for pair in variables.items()})
    settings = [pair for pair in pairs if not any(fnmatchcase(pair[0], pattern) for pattern in _DESCRIBING)]
    return "; ".join(f"{name}={value}" for name, value in settings)


def line_of_changers(given: Mapping[str, str] = os.environ) -> str:
    """Return what workers do not inherit, as a sentence; empty if there is nothing."""
    changers = changers_of(given)
    if not changers:
        return ""
    names = ", ".join(f"{name}={given[name][:40]}" for name in changers)
    effects = "; ".join(dict.fromkeys(changers.values()))
    return f"Not passed on to the processes that measure: {names}. Such variables change {effects}."
