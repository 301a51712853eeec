"""Read a pickle of plain arrays, lists, numbers and strings, or of one array of lists, and refuse any other pickle.

A pickle is a program: loading a pickle can run any command. The usual defence is a list of allowed NumPy functions.
These functions still receive the archive's arguments, and `dtype` and `scalar` can be made to read foreign memory.
Therefore no NumPy function is reachable here. Each name that NumPy's own pickles use resolves to a stand-in of this
module, which records and checks the arguments. Any other name is refused before anything is called.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Callable
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PLAIN_CODES = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}
_OBJECT_CODES = {"O", "O8"}


class Refused(pickle.UnpicklingError):
    """The pickle holds something other than plain arrays, lists, numbers and strings."""


class _StandIn:
    """Immutable stand-in for a name in the pickle, callable with the arguments that NumPy pickles."""

    __slots__ = ("_function",)
    _function: Callable[..., object]

    def __init__(self, function: Callable[..., object]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise Refused("it alters a function")

    def __setstate__(self, state: object) -> None:
        raise Refused("it alters a function")


class _Dtype:
    """A NumPy dtype of plain numbers or of Python objects. Structured and text types are refused."""

    def __init__(self, code: object, *_flags: object) -> None:
        text = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text not in _PLAIN_CODES | _OBJECT_CODES:
            of = repr(text) if isinstance(text, str) else f"a {type(text).__name__}"
            raise Refused(f"it holds an array of type {of}, not of plain numbers")
        self._code = str(text)
        self.is_of_objects = text in _OBJECT_CODES
        self._order = "<"

    def __setstate__(self, state: Any) -> None:
        _version, order, subarray, names, fields, *_rest = state
        order = order.decode("latin-1") if isinstance(order, bytes) else order
        if order not in ("<", ">", "|") or (subarray, names, fields) != (None, None, None):
            raise Refused("it holds an array that is not of plain numbers")
        self._order = order.replace("|", "<")

    def numpy(self) -> np.dtype[Any]:
        if self.is_of_objects:
            raise Refused("it holds an array of Python's objects, not of plain numbers")
        return np.dtype(self._order + self._code)


class _Array:
    """A NumPy array as described by its pickle.

    `numpy()` returns an array of plain numbers, without copying. `lists()` returns the elements of an array of objects.
    """

    _parts: tuple[object, object, object, object] = (None, None, None, None)  # content, type, shape and order

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, is_fortran, raw = state
        self._parts = (raw, dtype, shape, "F" if is_fortran else "C")

    @classmethod
    def from_buffer(cls, raw: object, dtype: object, shape: object, order: object, axes: object = None) -> _Array:
        if axes is not None:
            raise Refused("it holds an array in an unusual memory order")
        array = cls()
        array._parts = (raw, dtype, shape, order)
        return array

    def numpy(self) -> NDArray[Any]:
        raw, dtype, shape, order = self._parts
        whole = isinstance(shape, tuple) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
        if not (isinstance(raw, bytes | bytearray) and isinstance(dtype, _Dtype) and whole and order in ("C", "F")):
            raise Refused("it holds an array that is not of plain numbers")
        assert isinstance(shape, tuple)
        kind = dtype.numpy()
        if len(raw) != math.prod(shape) * kind.itemsize:
            raise Refused(f"it holds an array of shape {shape} with {len(raw)} bytes")
        return np.frombuffer(raw, dtype=kind).reshape(shape, order="F" if order == "F" else "C")

    def lists(self) -> list[Any]:
        raw, dtype, shape, _order = self._parts
        if not (isinstance(raw, list) and isinstance(dtype, _Dtype) and dtype.is_of_objects):
            raise Refused("it holds no array of lists")
        if shape != (len(raw),):
            raise Refused(f"it holds an array of another shape than its {len(raw)} elements have")
        return raw


def _scalar(dtype: object, raw: object) -> object:
    """Return a NumPy scalar as a Python number."""
    return _Array.from_buffer(raw, dtype, (), "C").numpy().item()


_NAMES: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): lambda *_: _refuse("it calls numpy.ndarray"),
}
for _core in ("numpy.core", "numpy._core"):
    _NAMES[f"{_core}.multiarray", "_reconstruct"] = lambda *_: _Array()
    _NAMES[f"{_core}.multiarray", "scalar"] = _scalar
    _NAMES[f"{_core}.numeric", "_frombuffer"] = _Array.from_buffer


def _refuse(reason: str) -> object:
    raise Refused(reason)


_IN_PYTHON: dict[int, Callable[[Any], None]] = dict(pickle._Unpickler.dispatch)


# The unpickler written in Python, which costs 0.1 s per batch here. The C unpickler allocates room for as many memo
# entries as a pickle claims, so five bytes can take all memory.
class _Unpickler(pickle._Unpickler):
    """An unpickler that takes no more memory than a few times the file, whatever the pickle says."""

    read: Any
    append: Any
    stack: Any
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_IN_PYTHON)

    def __init__(self, file: IO[bytes], *, size: int) -> None:
        def bounded(count: int) -> bytes:
            if not 0 <= count <= size:  # Python would make room for it first
                raise ValueError("a length is beyond its end")
            return file.read(count)

        super().__init__(_Bounded(bounded, file.readline), encoding="bytes")
        self._size = size
        self._encoded = 0

    def _load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))

    dispatch[pickle.BYTEARRAY8[0]] = _load_bytearray8

    # The hash of nested tuples takes time without end: so the only keys are texts, and there are no sets.
    def _load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        _IN_PYTHON[pickle.SETITEM[0]](self)

    def _load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        _IN_PYTHON[pickle.SETITEMS[0]](self)

    def _load_dict(self) -> None:
        self._check_keys(self.stack[::2])
        _IN_PYTHON[pickle.DICT[0]](self)

    def _check_keys(self, keys: list[object]) -> None:
        if not all(isinstance(key, str | bytes | int) for key in keys):
            raise Refused("it holds a dictionary with other keys than text")

    def _load_set(self) -> None:
        raise Refused("it holds a set")

    dispatch |= {pickle.SETITEM[0]: _load_setitem, pickle.SETITEMS[0]: _load_setitems, pickle.DICT[0]: _load_dict}
    dispatch |= dict.fromkeys((pickle.EMPTY_SET[0], pickle.ADDITEMS[0], pickle.FROZENSET[0]), _load_set)

    def _encode(self, text: object, encoding: object) -> bytes:
        """Return the Latin-1 encoding of `text`. Pickle protocols 0 to 2 write the bytes of Python 3 this way."""
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1"):
            raise Refused("it encodes text in an unexpected way")
        self._encoded += len(text)
        if self._encoded > self._size:  # one text, encoded again and again
            raise Refused("it unpacks to more than its size")
        return text.encode("latin-1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _StandIn(self._encode)
        if (module, name) not in _NAMES:
            raise Refused(f"it names {module[:80]}.{name[:80]}")
        return _StandIn(_NAMES[module, name])

    def persistent_load(self, pid: object) -> Any:
        raise Refused(f"it refers to an object outside itself{f', {pid[:80]!r}' if isinstance(pid, str) else ''}")


class _Bounded(NamedTuple):
    """What an unpickler needs of a file."""

    read: Callable[[int], bytes]
    readline: Callable[[], bytes]


def _load(file: IO[bytes], size: int) -> Any:
    try:
        return _Unpickler(file, size=size).load()
    except (Refused, OSError):
        raise
    except Exception as error:  # a damaged pickle raises nearly anything: EOFError, KeyError, MemoryError, TypeError …
        raise pickle.UnpicklingError(f"truncated, or not a pickle ({error})") from error


def load_plain(file: IO[bytes], *, size: int) -> dict[str, Any]:
    """Return the dictionary in a pickle of any protocol, from Python 2 or 3, with its arrays as read-only NumPy arrays.

    `size` is that of the pickle in bytes, or more.

    Raise Refused if the pickle holds anything but arrays of plain numbers, lists, numbers and strings. Raise
    pickle.UnpicklingError if the file is truncated or no pickle. No function that the pickle names is ever executed.
    """
    content = _load(file, size)
    if not isinstance(content, dict):
        raise Refused(f"it holds a {type(content).__name__} where a dictionary was expected")
    named = {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    return {key: value.numpy() if isinstance(value, _Array) else value for key, value in named.items()}


def load_lists(file: IO[bytes], *, size: int) -> list[list[int]]:
    """Return the lists of whole numbers in a one-dimensional NumPy array of objects, as `numpy.save` pickles it.

    Raise the errors of `load_plain`, and Refused for lists of other elements than whole numbers.
    """
    content = _load(file, size)
    if not isinstance(content, _Array):
        raise Refused("it holds something other than an array of lists")
    lists = content.lists()
    if len({id(numbers) for numbers in lists}) != len(lists):  # repeats of a list let a few bytes unpack to any size
        raise Refused("it holds one list several times")
    for numbers in lists:
        if type(numbers) is not list or not all(type(number) is int for number in numbers):
            raise Refused("it holds something other than lists of whole numbers")
    return lists
