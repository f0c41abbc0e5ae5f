"""Interpret the pickles that `torch.save` writes, without importing or calling anything.

Pickle is a small stack language that can import and call anything. `pickletools` decodes its instructions;
here names are only names, and "calling" one of the three allowed functions builds a checked description of a
tensor. Python's own `Unpickler` would not be safe even with a strict `find_class`: eight bytes make its memo
take gigabytes, and a deeply nested tuple as a dictionary key overflows the C stack.

The work is bounded, too. At most `MAX_INSTRUCTIONS` run, each creates at most one object, and only text is
hashed, which Python does with a secret, so that a file cannot choose the hashes. The integers k (2^61 - 1),
for example, all have the same hash, and a dictionary of n of them takes n^2 steps.
"""

import dataclasses
import enum
import io
import math
import pickletools
from collections.abc import Mapping
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

ADVICE = "re-save it with torch >= 1.6, or convert it to safetensors where it was made"
MAX_INSTRUCTIONS = 1 << 18
"""Enough for about six thousand tensors, or two thousand with an optimizer's state."""
_MAX_DIMS = 16  # torch's modules have up to 5
_MAX_EMPTY = 1 << 40  # limit of the other sizes of an empty tensor, so that NumPy cannot overflow


class CheckpointError(ValueError):
    """A weight file is missing, damaged or invalid; the message starts with its path."""


class UnsafeCheckpointError(CheckpointError):
    """A weight file contains more than plain tensors. Nothing from it was executed."""


@dataclasses.dataclass(frozen=True)
class Storage:
    """A flat array of numbers: `data/<key>` of the archive."""

    key: str
    dtype: np.dtype
    numel: int


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A strided view of a storage, checked to lie inside it; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def window(self) -> str:
        """Return a text that is equal for views of the same numbers; only text is hashed (see the module)."""
        return f"{self.offset} {self.shape} {self.stride}"

    def on(self, storage_bytes: np.ndarray) -> np.ndarray:
        """Return the view as an array over the storage's bytes."""
        dtype = self.storage.dtype
        if 0 in self.shape:
            return np.empty(self.shape, dtype)
        strides = [step * dtype.itemsize for step in self.stride]
        return np.ndarray(self.shape, dtype, storage_bytes, self.offset * dtype.itemsize, strides)


class IntegerKey(str):
    """The text "integer 7" for the key 7, as in an optimizer's state; no weight has such a name."""


class _Function(enum.Enum):
    """The only functions that a file may name; these are labels, not Python functions."""

    ORDERED_DICT = "collections.OrderedDict"
    REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
    REBUILD_PARAMETER = "torch._utils._rebuild_parameter"


STORAGE_DTYPES = {
    "torch.DoubleStorage": np.dtype(np.float64),
    "torch.FloatStorage": np.dtype(np.float32),
    "torch.HalfStorage": np.dtype(np.float16),
    "torch.BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch.LongStorage": np.dtype(np.int64),
    "torch.IntStorage": np.dtype(np.int32),
    "torch.ShortStorage": np.dtype(np.int16),
    "torch.CharStorage": np.dtype(np.int8),
    "torch.ByteStorage": np.dtype(np.uint8),
    "torch.BoolStorage": np.dtype(np.bool_),
}
_GLOBALS: Mapping[str, Any] = {**STORAGE_DTYPES, **{function.value: function for function in _Function}}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_ARGUMENTS = {"BININT1", "BININT2", "BININT", "BINFLOAT", "LONG1"}
"""Instructions that push their argument."""
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Interpreter:
    """Runs a pickle with the instructions that `torch.save` writes for a state dict (protocol 2)."""

    def __init__(self, code: bytes, storage_sizes: Mapping[str, int]) -> None:
        self._code = io.BytesIO(code)
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []  # the stacks below each open mark
        self._memo: dict[int, Any] = {}
        self._storage_sizes = storage_sizes
        self._storages: dict[str, Storage] = {}

    def run(self) -> Any:
        """Return the object that the pickle describes."""
        try:
            for count, (instruction, argument, _) in enumerate(pickletools.genops(self._code)):
                if count == MAX_INSTRUCTIONS:
                    self._refuse(f"a pickle of more than {MAX_INSTRUCTIONS} instructions")
                if instruction.name != "STOP":
                    self._step(instruction.name, argument)
        except UnsafeCheckpointError:
            raise
        except (ValueError, Warning) as error:  # of genops: not an instruction, or not its argument
            self._refuse(f"a pickle that is damaged or ends early ({error!s:.100})")
        if len(self._stack) != 1 or self._outer or self._code.read(1):
            self._refuse("a pickle that does not end with one object")
        return self._stack[0]

    def _step(self, instruction: str, argument: Any) -> None:
        match instruction:
            case "PROTO":
                if argument != 2:
                    self._refuse(f"pickle protocol {argument}, expected torch.save's default 2")
            case "MARK":
                self._outer.append(self._stack)
                self._stack = []
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._top()
            case "APPEND":
                self._append(self._pop(1))
            case "APPENDS":
                self._append(self._pop_to_mark())
            case "SETITEM":
                self._set_items(self._pop(2))
            case "SETITEMS":
                self._set_items(self._pop_to_mark())
            case "BUILD":
                self._pop(1)  # of a state dict: the version numbers of the modules
                if not isinstance(self._top(), dict):
                    self._refuse(f"attributes on {show(self._top())}")
            case _:
                value = self._value(instruction, argument)  # before the append: it may replace the stack
                self._stack.append(value)

    def _value(self, instruction: str, argument: Any) -> Any:
        match instruction:
            case name if name in _CONSTANTS:
                return _CONSTANTS[name]
            case name if name in _ARGUMENTS:
                return argument
            case name if name in _TUPLES:
                return tuple(self._pop(_TUPLES[name]))
            case "BINUNICODE":
                argument.encode()  # half a character, which genops lets through, is a ValueError
                return argument
            case "TUPLE":
                return tuple(self._pop_to_mark())
            case "EMPTY_LIST":
                return []
            case "EMPTY_DICT":
                return {}
            case "BINGET" | "LONG_BINGET":
                known = argument in self._memo
                return self._memo[argument] if known else self._refuse(f"memo index {argument}")
            case "GLOBAL":
                name = ".".join(argument.split(" "))  # module, attribute
                return _GLOBALS[name] if name in _GLOBALS else self._refuse(f"the global {show(name)}")
            case "BINPERSID":
                return self._storage(*self._pop(1))
            case "REDUCE":
                return self._call(*self._pop(2))
        self._refuse(f"the pickle instruction {instruction}")

    def _storage(self, identity: Any) -> Storage:
        """Parse a persistent id: ("storage", type, key, location, number of elements)."""
        kinds = [str, str, str, int]
        if not isinstance(identity, tuple) or list(map(type, identity[:1] + identity[2:])) != kinds:
            self._refuse("a persistent id that is not a storage")
        what, dtype, key, _, numel = identity
        if what != "storage" or not isinstance(dtype, np.dtype):
            self._refuse("a persistent id that is not a storage")
        storage = self._storages.setdefault(key, Storage(key, dtype, numel))
        if (storage.dtype, storage.numel) != (dtype, numel):
            self._refuse(f"two descriptions of storage {show(key)}")
        if self._storage_sizes.get(key) != numel * dtype.itemsize:
            has = f"{self._storage_sizes[key]} bytes" if key in self._storage_sizes else "no such entry"
            self._refuse(f"storage {show(key)} of {show(numel)} {dtype} elements: the archive has {has}")
        return storage

    def _call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(arguments, tuple):
            self._refuse(f"a call with {show(arguments)} in place of arguments")
        if function is _Function.ORDERED_DICT and not arguments:
            return {}
        if function is _Function.REBUILD_TENSOR and len(arguments) in (6, 7):
            return self._tensor(*arguments)
        if function is _Function.REBUILD_PARAMETER and len(arguments) == 3:
            tensor, requires_grad, hooks = arguments
            if isinstance(tensor, Tensor) and isinstance(requires_grad, bool) and _is_empty(hooks):
                return tensor
        self._refuse(f"a call of {show(function)} with unexpected arguments")

    def _tensor(
        self, storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, metadata: Any = None
    ) -> Tensor:
        """Check that a tensor lies inside its storage and return it; Python's integers cannot overflow."""
        if not isinstance(storage, Storage) or not _is_size(offset) or not isinstance(grad, bool):
            self._refuse("a tensor with arguments of the wrong type")
        if not _is_empty(hooks) or not _is_empty(metadata):
            self._refuse("a tensor with hooks or metadata")
        for sizes in (shape, stride):
            if not isinstance(sizes, tuple) or len(sizes) > _MAX_DIMS or not all(map(_is_size, sizes)):
                self._refuse("a tensor whose shape or strides are not tuples of sizes")
        if len(shape) != len(stride):
            self._refuse("a tensor with another number of strides than axes")
        if 0 in shape:
            end, capacity = offset, _MAX_EMPTY
        else:
            end = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            capacity = storage.numel
        if end > storage.numel or math.prod(size for size in shape if size) > capacity:
            self._refuse(f"a tensor that reaches outside its storage {show(storage.key)}")
        # An axis of size 1 may have any stride in torch, even one too large for NumPy.
        steps = (0 if size < 2 else step for size, step in zip(shape, stride, strict=True))
        return Tensor(storage, offset, shape, tuple(steps))

    def _append(self, values: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, list):
            self._refuse(f"an append to {show(target)}")
        target.extend(values)

    def _set_items(self, keys_and_values: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(keys_and_values) % 2:
            self._refuse(f"an item of {show(target)}, or a key without a value")
        for key, value in zip(keys_and_values[::2], keys_and_values[1::2], strict=True):
            # Nothing else may be hashed: nested tuples recurse without limit, integers can collide.
            if type(key) is int:
                key = IntegerKey(f"integer {key}")
            if not isinstance(key, str):
                self._refuse(f"{show(key)} as a key")
            if key in target:
                self._refuse(f"the key {show(key)} twice")
            target[key] = value

    def _top(self) -> Any:
        return self._stack[-1] if self._stack else self._refuse("an instruction without its operands")

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            self._refuse("an instruction without its operands")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        if not self._outer:
            self._refuse("an instruction without its mark")
        values, self._stack = self._stack, self._outer.pop()
        return values

    def _refuse(self, what: str) -> NoReturn:
        raise UnsafeCheckpointError(
            f"refused {what} (byte {self._code.tell()} of data.pkl); nothing was executed; "
            f"if you trust the file, {ADVICE}"
        )


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and not value)


def show(value: Any) -> str:
    """Describe a value from a file; for containers, which may be deep or cyclic, only the type."""
    if isinstance(value, _Function):
        return value.value
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__.lstrip('_').lower()}"
    text = repr(value[:100] if type(value) is str else value)
    return text if len(text) <= 100 else f"{text[:97]}..."
