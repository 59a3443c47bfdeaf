"""The child process that renders chat templates: a template is a program, and may loop, double or never end.

Templates see what transformers gives them: the same sandbox, extensions, filters and globals (`chat_template_utils`),
which takes a second to import; a test compares both on the templates of released models.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, cast

from agentgym.types import Json

SLACK = 1 << 16
"""Characters that a template may write of its own; and it may write each that it is given SHARE times."""
SHARE = 16


def render(argument: Json) -> Json:
    """The text. argument: `template` and the mapping `given`, of its variables."""
    asked = cast("dict[str, Any]", argument)
    text = _compiled(asked["template"]).render(**asked["given"])
    most = SLACK + SHARE * len(json.dumps(asked))
    if len(text) > most:
        raise OverflowError(f"it writes {len(text):,} characters")
    return cast(str, text)


@lru_cache(8)
def _compiled(template: str) -> Any:
    import jinja2.exceptions
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what an assistant says, for training; its text is written as it is."""

        tags = {"generation"}  # noqa: RUF012  jinja's own way

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
