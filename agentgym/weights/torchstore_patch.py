"""Makes TorchStore 0.1.2 load under Monarch 0.7, which refuses actors that mix `def` and `async def` endpoints.

Import it before TorchStore is used, in every process. Where TorchStore's classes are of one kind it changes
nothing, so a fixed release needs no change here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Coroutine, Mapping

from agentgym.actors.runtime import EndpointProperty
from agentgym.errors import UserError

RDMA = "TORCHSTORE_RDMA_ENABLED"
OTHER_RDMA = "TORCHSTORE_USE_RDMA"  # torchforge's documents call it so
INSTALL = "install it with `pip install --no-deps torchstore==0.1.2 && pip install pygtrie`"


def make_endpoints_async(actor_class: type) -> bool:
    """Wrap the synchronous endpoints of a class that mixes both kinds; returns whether the class was one."""
    attributes = ((name, getattr(actor_class, name, None)) for name in dir(actor_class))
    endpoints = {name: found for name, found in attributes if isinstance(found, EndpointProperty)}
    synchronous = [n for n, found in endpoints.items() if not inspect.iscoroutinefunction(found._method)]
    if len(synchronous) in (0, len(endpoints)):
        return False
    for name in synchronous:
        found = endpoints[name]
        wrapped = type(found)(
            _as_async(found._method), found._propagator, found._explicit_response_port, found._instrument
        )
        setattr(actor_class, name, wrapped)
    return True


def apply() -> None:
    """Raises UserError when TorchStore is not installed."""
    try:
        controller = importlib.import_module("torchstore.controller")
        volume = importlib.import_module("torchstore.storage_volume")
    except ImportError as error:
        raise UserError(
            f"weights.store is 'torchstore' but it could not be imported ({error}); {INSTALL}, "
            "or use weights.store=shared_memory"
        ) from error
    make_endpoints_async(controller.Controller)
    make_endpoints_async(volume.StorageVolume)


def use_rdma(wanted: bool) -> None:
    """In this process; TorchStore reads the variable for each tensor."""
    os.environ[RDMA] = str(int(wanted))


def wants_rdma(environment: Mapping[str, str]) -> bool:
    """Whether weights shall travel by RDMA, which must be asked for. Raises UserError where that is impossible."""
    given = {name: environment[name] for name in (RDMA, OTHER_RDMA) if name in environment}
    said = " and ".join(f"{name}={value}" for name, value in given.items())
    if not {*given.values()} <= {"0", "1"} or len({*given.values()}) > 1:
        raise UserError(f"the environment has {said}: set {RDMA} to 0 or 1, and {OTHER_RDMA} to the same or not at all")
    if "1" not in given.values():
        return False
    buffers = importlib.import_module("torchstore.transport.buffers")
    with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):  # Monarch has another name for it
        available = buffers.monarch_rdma_available()
    if not available:
        raise UserError(
            f"the environment has {said}, but this machine has no RDMA device (ibverbs); unset it: weights then travel "
            "as messages. Or set weights.store to nccl"
        )
    return True


def _as_async(method: Callable[..., object]) -> Callable[..., Coroutine[None, None, object]]:
    @functools.wraps(method)
    async def wrapper(*args: object, **kwargs: object) -> object:
        return method(*args, **kwargs)

    return wrapper


apply()
