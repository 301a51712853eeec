"""Names of kernels without their arguments, and shortened for a table."""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST = 240  # characters of a shortened name: names of different kernels may differ only at their ends
# Names of wrappers around the function that a PyTorch element-wise kernel or reduction is made for.
_AROUND = re.compile(
    r"^(A|B)?(Unary|Binary)Functor$|^gpu_kernel_impl(_nocast)?$|^func_wrapper_t$|^ReduceOp$|^OpaqueType$|^Array$|^detail$"
    r"|^memory$|^(Trivial)?OffsetCalculator$|^TensorIterator(Base)?$|^Load\w*|^Store\w*|^BinaryFunctor$|^templates$"
    r"|^TensorListMetadata$|^FusedOptimizerTensorListMetadata$|^binary_internal$|^cuda$|^CUDAGeneratorImpl$"
)
_WORDS = re.compile(r"at::native::(?:\w+::)*(\w+)")
_MADE_FOR = re.compile(r"elementwise|reduce_kernel|multi_tensor_apply|index_elementwise|distribution")
_ANONYMOUS = ("(anonymous namespace)::", "<unnamed>::", "_GLOBAL__N_")
_TAIL = re.compile(r"_execute_(\w+_)?kernel_\w*$")  # names the library that an xmma kernel was compiled into
_CASTS = re.compile(r"\((?:int|bool|unsigned int|[\w:]+_t)\)")


@lru_cache(maxsize=4096)
def without_arguments(name: str) -> str:
    """Return a demangled name without result type, arguments and anonymous namespaces, any other name unchanged."""
    for anonymous in _ANONYMOUS:
        name = name.replace(anonymous, "")
    name = name.removeprefix("void ").replace("operator()()", "operator_call")
    return _before(name, "(")


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """Return a name as a table shows it, with only those template arguments that tell kernels apart."""
    bare = without_arguments(name)
    head, opened, arguments = bare.partition("<")
    head = head.removeprefix("at::native::").removeprefix("at::cuda::")
    if not opened:
        return _cut(_TAIL.sub("", head))
    first = _before(arguments, ",>")
    if head.endswith("::Kernel") and re.fullmatch(r"\w+", first):  # CUTLASS: the only argument's name says all
        return _cut(first)
    if _MADE_FOR.search(head):
        words = [word for word in _WORDS.findall(arguments) if not _AROUND.match(word)]
        return _cut(f"{head}<{words[0]}>" if words else head)
    return _cut(f"{head}<{_CASTS.sub('', arguments).replace('at::native::', '')}")


def _before(text: str, stops: str) -> str:
    """Return the text before the first of the characters `stops` outside template brackets."""
    depth = 0
    for at, character in enumerate(text):
        if at and depth == 0 and character in stops:
            return text[:at].strip()
        depth += (character == "<") - (character == ">")
    return text.strip()


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
