"""Manifests, by which damaged or foreign checkpoints are refused before anything starts. No torch."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

from agentgym.errors import UserError
from agentgym.families.architecture import TIED_HEAD, Architecture
from agentgym.families.quantized import Quantize
from agentgym.families.registry import read_architecture
from agentgym.models.safetensors import read_shapes
from agentgym.trainer.config import LoraConfig

Fingerprints: TypeAlias = dict[str, tuple[int, int]]
MANIFEST = "manifest.json"
FORMAT = 1
CHECKED_BYTES = 1 << 30  # of each file; all of it up to a size that takes about a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """files: name to (size in bytes, CRC-32 of its first GiB). lora: None in one of an older version.

    engine: of the trainer; empty in one of an older version. base: the digest of a quantized base; empty where none was
    quantized.
    """

    step: int
    architecture: dict[str, object]
    engine: str
    lora: dict[str, object] | None
    base: str
    files: Fingerprints


def fingerprints(paths: Iterable[Path]) -> Fingerprints:
    """Fingerprints for a manifest: name to (size in bytes, CRC-32 of the first GiB)."""
    return {path.name: _fingerprint(path) for path in paths}


def write_manifest(
    folder: Path,
    known: Fingerprints | None = None,
    *,
    step: int,
    architecture: Architecture,
    lora: LoraConfig,
    engine: str = "",
    quantize: Quantize = "none",
    base: str = "",
) -> None:
    """Describe every file in the folder; written last, so that a folder without one is an unfinished save.

    known: fingerprints of files that were read already.
    """
    files = {path.name: (known or {}).get(path.name) or _fingerprint(path) for path in sorted(folder.iterdir())}
    content: dict[str, object] = {"format": FORMAT, "step": step, "architecture": _described(architecture)}
    content |= {"engine": engine, "lora": _plain(lora, quantize), "base": base, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n")


def read_manifest(folder: str) -> Manifest:
    """Raises UserError when it is missing or damaged."""
    path = Path(folder) / MANIFEST
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise UserError(f"{path} has format {content['format']}; this version reads format {FORMAT}")
        return Manifest(
            step=int(content["step"]),
            architecture=dict(content["architecture"]),
            engine=content.get("engine", ""),
            lora=content.get("lora"),
            base=content.get("base", ""),
            files={name: (size, crc) for name, (size, crc) in content["files"].items()},
        )
    except FileNotFoundError:
        raise UserError(
            f"{folder} is not a checkpoint of the trainer, or its save was not finished: it has no {MANIFEST}"
        ) from None
    except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); use another checkpoint") from error


def is_of_quantized(folder: Path) -> bool:
    """Whether a model's folder is a checkpoint's, whose adapters were merged into a quantized base."""
    trainer = folder.parent / "trainer"
    return (trainer / MANIFEST).exists() and "quantize" in (read_manifest(str(trainer)).lora or {})


def check(folder: str, model_path: str, *, step: int | None = None) -> None:
    """Refuse a checkpoint that could not be loaded: the trainer's own, or a Hugging Face folder.

    Raises UserError when a file is missing, cut short or changed, when the sizes are not those of the model in
    model_path, or when it was not saved after `step`.
    """
    if not Path(folder).is_dir():
        raise UserError(f"no folder {folder}; give a checkpoint, for example RUN/checkpoints/step-20")
    if not (Path(folder) / MANIFEST).exists() and (Path(folder) / "config.json").exists():
        check_model(folder)
        found = _described(read_architecture(Path(folder)))
    else:
        manifest = read_manifest(folder)
        found = manifest.architecture
        if step not in (None, manifest.step):
            raise UserError(f"{folder} was saved after step {manifest.step}, not after step {step}")
        _check_files(Path(folder), manifest)
    wanted = _described(read_architecture(Path(model_path)))
    differing = [
        f"{name} is {found.get(name)}, the model's is {value}"
        for name, value in wanted.items()
        if name != "max_positions" and found.get(name, value) != value  # an older manifest lacks some
    ]
    if differing:
        raise UserError(
            f"the checkpoint {folder} is of another model than {model_path}: {'; '.join(differing)}. "
            "Resume with the model that the run was started with."
        )


def _described(architecture: Architecture) -> dict[str, object]:
    """Its sizes as JSON has them; the shapes of weights follow from these and the model's own config.json."""
    sizes: dict[str, object] = json.loads(json.dumps(asdict(replace(architecture, own_shapes=None))))
    return sizes


def check_adapters(folder: str, lora: LoraConfig, quantize: Quantize) -> None:
    """Raises UserError where the adapters of a whole checkpoint could not be loaded, or would be another policy."""
    saved, wanted = read_manifest(folder).lora, _plain(lora, quantize)
    if saved not in (None, wanted):
        raise UserError(
            f"{folder} was saved with trainer.lora {saved}; with {wanted} its weights would be another policy. "
            "Resume with the trainer.lora and model.quantize that the run was started with."
        )


def check_origin(folder: str, engine: str, base: str) -> None:
    """Raises UserError for weights of another trainer engine, and for adapters that were trained on another quantized
    base. base: the digest of the trainer's.
    """
    manifest = read_manifest(folder)
    if manifest.engine not in ("", engine):
        raise UserError(
            f"the checkpoint {folder} is of the trainer engine {manifest.engine}, and the trainer's is {engine}: "
            "resume with the trainer.engine and trainer.expert_parallel that the run was started with"
        )
    if (saved := manifest.base) not in ("", base):
        raise UserError(
            f"the adapters in {folder} were trained on another quantized base (digest {saved}, the model's is {base}): "
            "resume with the model, model.quantize and trainer.dtype that the run was started with"
        )


def _plain(lora: LoraConfig, quantize: Quantize) -> dict[str, object]:
    """The settings as JSON has them. Without adapters the others are irrelevant."""
    if not lora.rank:
        return {"rank": 0}
    found: dict[str, object] = {"rank": lora.rank, "alpha": lora.alpha, "targets": sorted(lora.targets)}
    return found if quantize == "none" else found | {"quantize": quantize}


def check_model(folder: str) -> None:
    """Refuse a Hugging Face folder whose safetensors are damaged or of other shapes than config.json says."""
    architecture, found = read_architecture(Path(folder)), read_shapes(Path(folder))
    wanted = architecture.hf_shapes()
    tied_head = {TIED_HEAD} - set(wanted)  # a tied one may be stored all the same
    problems = [
        f"{name} {'is missing' if name not in found else f'has shape {found[name]}'}, expected {shape}"
        for name, shape in wanted.items()
        if found.get(name) != shape
    ]
    problems += [
        f"{name} is not part of a {architecture.model_type} of these sizes"
        for name in set(found) - set(wanted) - tied_head
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(f"the weights in {folder} don't fit its config.json: {'; '.join(problems[:3])}{more}")


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, (size, crc) in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"the checkpoint {folder} lacks its file {name}; use another checkpoint")
        found_size, found_crc = _fingerprint(path)
        if found_size != size:
            raise UserError(f"{path} is damaged: it has {found_size} bytes, {size} were saved")
        if found_crc != crc:
            raise UserError(f"{path} is damaged: its content has changed since it was saved")


def _fingerprint(path: Path) -> tuple[int, int]:
    crc, left = 0, CHECKED_BYTES
    with path.open("rb") as file:
        while left and (block := file.read(min(left, 1 << 20))):
            crc, left = zlib.crc32(block, crc), left - len(block)
    return path.stat().st_size, crc
