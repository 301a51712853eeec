"""Names of kernels: without their arguments, and short enough for a table."""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST = 240  # characters of a shortened name: names that differ in their ends are other kernels
# What stands around the function that an element-wise kernel or a reduction of PyTorch is made for.
_AROUND = re.compile(
    r"^(A|B)?(Unary|Binary)Functor$|^gpu_kernel_impl(_nocast)?$|^func_wrapper_t$|^ReduceOp$|^OpaqueType$|^Array$|^detail$"
    r"|^memory$|^(Trivial)?OffsetCalculator$|^TensorIterator(Base)?$|^Load\w*|^Store\w*|^BinaryFunctor$|^templates$"
    r"|^TensorListMetadata$|^FusedOptimizerTensorListMetadata$|^binary_internal$|^cuda$|^CUDAGeneratorImpl$"
)
_WORDS = re.compile(r"at::native::(?:\w+::)*(\w+)")
_MADE_FOR = re.compile(r"elementwise|reduce_kernel|multi_tensor_apply|index_elementwise|distribution")
_ANONYMOUS = ("(anonymous namespace)::", "<unnamed>::", "_GLOBAL__N_")
_TAIL = re.compile(r"_execute_(\w+_)?kernel_\w*$")  # which library a kernel of xmma was compiled into
_CASTS = re.compile(r"\((?:int|bool|unsigned int|[\w:]+_t)\)")


@lru_cache(maxsize=4096)
def without_arguments(name: str) -> str:
    """A demangled name without its result, its list of arguments and what is anonymous; any other as it is."""
    for anonymous in _ANONYMOUS:
        name = name.replace(anonymous, "")
    name = name.removeprefix("void ").replace("operator()()", "operator_call")
    return _before(name, "(")


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """A name as a table shows it: of templates only what tells their kernels apart."""
    bare = without_arguments(name)
    head, opened, arguments = bare.partition("<")
    head = head.removeprefix("at::native::").removeprefix("at::cuda::")
    if not opened:
        return _cut(_TAIL.sub("", head))
    first = _before(arguments, ",>")
    if head.endswith("::Kernel") and re.fullmatch(r"\w+", first):  # CUTLASS: all is in the name of its one argument
        return _cut(first)
    if _MADE_FOR.search(head):
        words = [word for word in _WORDS.findall(arguments) if not _AROUND.match(word)]
        return _cut(f"{head}<{words[0]}>" if words else head)
    return _cut(f"{head}<{_CASTS.sub('', arguments).replace('at::native::', '')}")


def _before(text: str, stops: str) -> str:
    """The text before the first of these characters that is in no template's brackets."""
    depth = 0
    for at, character in enumerate(text):
        if at and depth == 0 and character in stops:
            return text[:at].strip()
        depth += (character == "<") - (character == ">")
    return text.strip()


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
