"""torchforge's names for where processes run, read as ours: `services`, `actors`, `with_gpus`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentgym.errors import UserError, nearest

SECTIONS = ("services", "actors")
PLACES: Mapping[str, Mapping[str, str]] = {
    "generator": {
        "num_replicas": "generator.replicas",
        "procs": "generator.engine.tensor_parallel",
        "with_gpus": "generator.device",
    },
    "trainer": {"procs": "trainer.procs", "with_gpus": "trainer.device"},
}
"""By torchforge's name of a service and of its field: our field."""
IGNORED = ("hosts", "mesh_name", "num_replicas", "procs", "with_gpus")
"""Fields of a service that decide nothing here: names, one host, and the services that we place ourselves."""
OTHERS = ("ref_model", "reward_actor", "replay_buffer", "compute_advantages", "dataset")
"""Services of torchforge whose part is played without processes of its own, or beside the trainer."""


def with_our_names(
    mapping: Mapping[str, object], where: str, *, note: Callable[[str], None], replace: bool = False
) -> dict[str, object]:
    """The recipe with torchforge's fields under our names; each is reported to `note`.

    where: names the recipe in errors. replace: they win over fields under our names. Raises UserError for a service or
    field that torchforge does not have either, and, without `replace`, for one that is set otherwise under our name.
    """
    result = {key: value for key, value in mapping.items() if key not in SECTIONS}
    for section in SECTIONS:
        services = mapping.get(section)
        if services is None:
            continue
        if not isinstance(services, Mapping):
            raise UserError(f"{where}: {section} is {services!r}; it has a section for each service, as in torchforge")
        for service, fields in services.items():
            _take(result, f"{section}.{service}", str(service), fields, where, note, replace)
    return result


def _take(
    result: dict[str, object],
    path: str,
    service: str,
    fields: object,
    where: str,
    note: Callable[[str], None],
    replace: bool,
) -> None:
    if service not in (*PLACES, *OTHERS):
        raise UserError(f"{where}: there is no {path!r}.{nearest(service, (*PLACES, *OTHERS))}")
    if not isinstance(fields, Mapping):
        raise UserError(f"{where}: {path} is {fields!r}; it has fields such as procs and with_gpus")
    for name, value in fields.items():
        target = PLACES.get(service, {}).get(str(name))
        if target is not None:
            device = "cuda" if value is True else "cpu"
            ours = device if name == "with_gpus" and isinstance(value, bool) else value
            _set(result, target, ours, f"{path}.{name}", "" if replace else where)
            note(f"{path}.{name} is read as {target}: {ours}")
        elif name in IGNORED:
            note(f"{path}.{name} decides nothing here; leave it out")
        else:
            known = PLACES.get(service, dict.fromkeys(IGNORED, ""))
            raise UserError(f"{where}: there is no '{path}.{name}'.{nearest(str(name), known)}")


def _set(result: dict[str, object], key: str, value: object, alias: str, where: str) -> None:
    """where: empty replaces another value."""
    *sections, name = key.split(".")
    place = result
    for section in sections:
        given = place.get(section)
        inner: dict[str, object] = {"name": given} if isinstance(given, str) else {}
        inner |= given if isinstance(given, Mapping) else {}
        place[section] = inner
        place = inner
    if name == "tensor_parallel":
        if value == 1:
            return
        place.setdefault("name", "vllm")
    if where and place.get(name, value) != value:
        raise UserError(f"{where}: {alias} is {value!r} and {key} is {place[name]!r}, which mean the same: keep one")
    place[name] = value
