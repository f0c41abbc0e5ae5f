"""The process that renders a chat template, which nobody has to trust: ``python -P child.py``.

Reads lines of JSON: a template first, then variables; answers each with a line. Jinja's sandbox keeps a
template from Python's own objects, but not from loops and texts without end: the limits below end the
process. Imports nothing of the library, so that it starts fast.
"""

import contextlib
import datetime
import json
import signal
import sys
from typing import Any, ClassVar

SECONDS = 2
"""for one rendering, and for compiling the template"""
BYTES = 512 << 20
"""of memory, Python's own included"""


def environment() -> Any:
    """Jinja's as transformers sets it up, so that the templates of its tokenizers render alike."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks answers for training; here it changes nothing."""

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
    """Bound the memory and write no files, where the system has such limits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


@contextlib.contextmanager
def limited_time() -> Any:
    """End the process, whatever it does, when it takes too long."""
    has_timer = hasattr(signal, "setitimer")
    if has_timer:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)


def answer(work: Any) -> bool:
    """Write what `work` returns, or why there is nothing; return whether there is something."""
    try:
        with limited_time():
            reply = {"text": work()}
    except Exception as error:  # whatever a template comes upon
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
