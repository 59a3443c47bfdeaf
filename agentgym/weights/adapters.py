"""LoRA's adapters as a version of the weights, and the whole model that a reader makes of them and its own base.

A version has A and B of each adapted matrix beside a note: the scale, the types, and which base they belong to. They
are tensors under names, so that every store can hold them. Axes: O outputs and I inputs of a matrix, R rank.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from agentgym.families.architecture import collect
from agentgym.families.quantized import Quantize, quantized_shapes
from agentgym.families.registry import read_architecture
from agentgym.models.nf4 import plain, plain_shape, to_nf4
from agentgym.models.safetensors import read_folder
from agentgym.weights.digest import digest
from agentgym.weights.store import OtherBase, StoredWeights

A, B = "lora_A.weight", "lora_B.weight"  # in place of "weight", as PEFT names them
NOTE = "lora.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterNote:
    """scale: of B A. base_dtype: what the base is rounded to before anything else. dtype: of the merged weights.

    base: the digest of the base in base_dtype; empty for each reader's own. quantize: how its matrices are stored
    before they are rounded to that.
    """

    scale: float
    base_dtype: str
    dtype: str
    base: str
    quantize: Quantize = "none"

    def to_tensor(self, device: torch.device) -> Tensor:
        return torch.frombuffer(bytearray(json.dumps(asdict(self)).encode()), dtype=torch.uint8).to(device)

    @classmethod
    def of_tensor(cls, stored: Tensor) -> AdapterNote:
        return cls(**json.loads(bytes(stored.tolist())))


def merge(base_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
    """base + scale * B A in float32, by the trainer and by every reader, so that all have the same bits."""
    return torch.addmm(base_OI.float(), b_OR, a_RI, alpha=scale)


def has_adapters(entries: Iterable[tuple[str, Tensor]]) -> bool:
    """Whether a version is of adapters; its note comes first."""
    return next((name for name, _ in entries), "") == NOTE


def check_adapters(wanted: Mapping[str, tuple[int, ...]], entries: Iterable[tuple[str, Tensor]]) -> None:
    """wanted: the shape of each weight of the model. Raises ValueError for an adapter that fits none, or is halved."""
    shapes = {name: tuple(entry.shape) for name, entry in entries if name != NOTE}
    for name, shape in shapes.items():
        stem = name.removesuffix(A).removesuffix(B)
        a, b, own = shapes.get(stem + A, ()), shapes.get(stem + B, ()), wanted.get(f"{stem}weight", ())
        if stem == name or not len(a) == len(b) == len(own) == 2 or (b[0], a[1]) != own or a[0] != b[1]:
            raise ValueError(f"adapter {name!r} of shape {shape} fits no weight of this model; {stem}weight has {own}")


def checked(wanted: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """All of a version: the wanted weights, or adapters for some of them. Raises ValueError for what does not fit."""
    found = list(weights)
    if not has_adapters(found):
        return collect(wanted, found)
    check_adapters(wanted, found)
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What merged weights have besides the values of their adapters: versions that share it differ in `adapted` alone.

    base, base_dtype, dtype: as the note has them. adapted: names of weights with an adapter.
    """

    base: str
    base_dtype: str
    dtype: str
    adapted: frozenset[str]


class MergedWeights:
    """Weights of a model, made when they are asked for or before; those without an adapter share the base's memory."""

    def __init__(
        self, base: Mapping[str, Tensor], note: AdapterNote, adapters: Mapping[str, Tensor], device: torch.device
    ) -> None:
        """device: where weights are merged, and stay; one that it has no memory for is merged on the CPU.

        base: matrices of bytes are of `to_nf4`.
        """
        self._base, self._adapters, self._note, self._device = base, adapters, note, device
        self._made: dict[str, Tensor] = {}

    @property
    def origin(self) -> Origin:
        note, adapted = self._note, frozenset(filter(self._is_adapted, self._base))
        return Origin(base=note.base, base_dtype=note.base_dtype, dtype=note.dtype, adapted=adapted)

    def parts(self) -> tuple[MergedWeights, MergedWeights]:
        """The weights without an adapter, and those with one."""
        return self._those(lambda name: not self._is_adapted(name)), self._those(self._is_adapted)

    def on(self, device: torch.device) -> MergedWeights:
        """The same, merged there; the adapters stay where they are."""
        return MergedWeights(self._base, self._note, self._adapters, device)

    def make(self, names: Iterable[str]) -> None:
        """Make these now and keep them on the device, all or none. Raises torch.OutOfMemoryError."""
        self._made = {name: self._merged(name, self._device).to(self._device) for name in names}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._made:
            return self._made[name]
        try:
            return self._merged(name, self._device)
        except torch.OutOfMemoryError:
            return self._merged(name, torch.device("cpu"))

    def _merged(self, name: str, device: torch.device) -> Tensor:
        base_dtype, dtype = getattr(torch, self._note.base_dtype), getattr(torch, self._note.dtype)
        weight, stem = self._base[name], name.removesuffix("weight")
        if not self._is_adapted(name):
            return plain(weight, base_dtype).to(dtype)
        a_RI, b_OR = self._adapters[stem + A].to(device), self._adapters[stem + B].to(device)
        return merge(plain(weight.to(device), base_dtype), a_RI, b_OR, self._note.scale).to(dtype)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self[name]) for name in self._base)

    def entries(self) -> Iterator[tuple[str, Tensor]]:
        """Names, types and shapes alone: tensors on torch's meta device."""
        dtype = getattr(torch, self._note.dtype)
        shapes = ((name, plain_shape(weight)) for name, weight in self._base.items())
        return ((name, torch.empty(shape, dtype=dtype, device="meta")) for name, shape in shapes)

    def _is_adapted(self, name: str) -> bool:
        return name.removesuffix("weight") + A in self._adapters

    def _those(self, wanted: Callable[[str], bool]) -> MergedWeights:
        base = {name: weight for name, weight in self._base.items() if wanted(name)}
        part = MergedWeights(base, self._note, self._adapters, self._device)
        part._made = self._made
        return part


class Base:
    """A reader's own model folder, which is mapped and compared with the trainer's when adapters come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[tuple[str, str, Quantize]] = set()  # digests that it has, with their types and schemes
        self._quantized: dict[str, Tensor] = {}
        self._near: dict[str, Tensor] = {}  # on the device that they are merged on
        self._reading = threading.Lock()

    def whole(self, weights: Iterable[tuple[str, Tensor]], device: torch.device) -> Iterable[tuple[str, Tensor]]:
        """The same weights; where they are adapters, all of the model with these merged into it on the device.

        Raises OtherBase where the trainer's base is another model, ValueError for adapters that do not fit.
        """
        if isinstance(weights, StoredWeights):
            if not has_adapters(weights.entries()):
                return weights
            return self.merged(weights, device)
        rest = iter(weights)
        first = next(rest, None)
        if first is None:
            return ()
        return self.merged(chain([first], rest), device) if has_adapters([first]) else chain([first], rest)

    def merged(
        self, weights: Iterable[tuple[str, Tensor]], device: torch.device, keeps: Callable[[int], bool] | None = None
    ) -> MergedWeights:
        """Merges what is known to be adapters; see `whole`.

        keeps: whether the device may keep so many bytes of what is adapted, which is then read once.
        """
        found = {name: tensor.to(device, copy=True) for name, tensor in weights}  # the store may forget the version
        note = AdapterNote.of_tensor(found.pop(NOTE))
        check_adapters({name: tuple(weight.shape) for name, weight in self._weights.items()}, found.items())
        with self._reading:
            base = self._weights if note.quantize == "none" else self._weights | self._packed(note.quantize, device)
            if keeps is not None and not self._near:
                adapted = {name: base[name] for name in base if name.removesuffix("weight") + A in found}
                if keeps(sum(weight.nbytes for weight in adapted.values())):
                    self._near = {name: weight.to(device) for name, weight in adapted.items()}
            base = base | self._near
            self._check(base, note, device)
        return MergedWeights(base, note, found, device)

    def _packed(self, scheme: Quantize, device: torch.device) -> dict[str, Tensor]:
        """The quantized matrices, made once, on the device, and kept in the host's memory."""
        if not self._quantized:
            names = quantized_shapes(read_architecture(self._folder), scheme)
            self._quantized = {name: to_nf4(self._weights[name].to(device)).cpu() for name in names}
        return self._quantized

    def _check(self, weights: Mapping[str, Tensor], note: AdapterNote, device: torch.device) -> None:
        if not note.base or (note.base, note.base_dtype, note.quantize) in self._known:
            return
        dtype = getattr(torch, note.base_dtype)
        own = digest((name, plain(weight.to(device), dtype)) for name, weight in weights.items())
        if own != note.base:
            raise OtherBase(
                f"the model in {self._folder} is not the one whose adapters the trainer trains (digest {own}, the "
                f"trainer's {note.base}): give trainer and generators the same model folder, unchanged since the start"
            )
        self._known.add((note.base, note.base_dtype, note.quantize))

    @cached_property
    def _weights(self) -> dict[str, Tensor]:
        """The weights that the trainer has too: no buffers that some folders keep, no tied head."""
        wanted = read_architecture(self._folder).hf_shapes()
        return collect(wanted, ((name, tensor) for name, tensor in read_folder(self._folder) if name in wanted))


def named(wanted: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, Tensor]]) -> Callable[[str], Tensor]:
    """Exactly the wanted weights, by name; merged ones are made when they are asked for. Raises as `collect` does."""
    if isinstance(weights, MergedWeights):
        collect(wanted, weights.entries())
        return weights.__getitem__
    return collect(wanted, weights).__getitem__
