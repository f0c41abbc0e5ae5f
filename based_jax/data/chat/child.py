"""Render an untrusted chat template in a process of its own: ``python -P child.py``.

Reads lines of JSON, first a template, then variables, and writes one line for each. Jinja's sandbox protects
Python's own objects, but does not stop endless loops or huge texts: the limits below end the process.
Imports nothing else of the library, so that it starts fast.
"""

import contextlib
import datetime
import json
import signal
import sys
from typing import Any, ClassVar

SECONDS = 2
"""Time limit of one rendering, and of compiling the template."""
BYTES = 512 << 20
"""Memory limit of the process, including Python's own."""


def environment() -> Any:
    """Build Jinja's environment as transformers does, so that templates render alike."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Accept ``{% generation %}``, which marks answers for training, and render its body unchanged."""

        tags: ClassVar[set[str]] = {"generation"}

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def limit_memory() -> None:
    """Limit the memory and forbid writing files, where the system supports it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


@contextlib.contextmanager
def limited_time() -> Any:
    """End the process when the body takes longer than `SECONDS`."""
    has_timer = hasattr(signal, "setitimer")
    if has_timer:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)


def answer(work: Any) -> bool:
    """Write the result of `work`, or the reason of its failure; return whether it succeeded."""
    try:
        with limited_time():
            reply = {"text": work()}
    except Exception as error:  # a template can raise anything
        reply = {"error": f"{type(error).__name__}: {error}"[:200]}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
    return "text" in reply


def main() -> None:
    made, compiled = environment(), []
    source = json.loads(sys.stdin.readline())
    limit_memory()

    def compile_template() -> str:
        compiled.append(made.from_string(source))
        return ""

    if answer(compile_template):
        for line in sys.stdin:
            variables = json.loads(line)
            answer(lambda variables=variables: compiled[0].render(**variables))


if __name__ == "__main__":
    main()
