"""The experts of each token as vLLM returns them, in our form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentgym.errors import InfraError
from agentgym.routes import UNKNOWN, Routes
from agentgym.types import VersionSpan


def routes_of(
    experts: npt.NDArray[np.integer] | None,
    *,
    start: int,
    prompt_len: int,
    versions: Sequence[VersionSpan],
    layers: Sequence[int],
) -> Routes:
    """experts: [tokens, layers, choices], of the tokens from `start` on. layers: those of the model that have experts.

    An update makes vLLM compute the context again, and return what the newer weights chose. So tokens before the last
    version's first are unknown. Raises InfraError where tokens or layers are missing.
    """
    if experts is None:
        raise InfraError("vLLM returned no experts, though generator.routes asks for them")
    count = prompt_len + versions[-1].end - 1 - start  # the last token was not computed
    of_all = experts.shape[1] > max(layers)  # else they are of the layers with experts alone
    if len(experts) < count or not (of_all or experts.shape[1] == len(layers)):
        raise InfraError(
            f"vLLM returned experts of shape {experts.shape}, for {count} tokens and the layers {[*layers]}"
        )
    chosen = experts[:count, list(layers)] if of_all else experts[:count]
    ids = chosen.reshape(count, -1).astype("<u2")
    if len(versions) > 1:
        ids[: max(0, prompt_len + versions[-1].start - 1 - start)] = UNKNOWN
    return Routes(width=ids.shape[1], start=start, ids=ids.tobytes())
