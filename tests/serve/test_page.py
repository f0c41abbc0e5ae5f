"""The page at /, in a real browser where there is one."""

import re

import pytest

from based_jax.serve.page import page
from tests.serve import browser
from tests.serve.client import serving
from tests.serve.conftest import LIMITS

PROGRAM = browser.find()
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium found")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    assert PROGRAM is not None
    with browser.browsing(PROGRAM, tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def tab(opened, client):
    """The page, freshly loaded; it must not complain."""
    opened.complaints.clear()
    opened.open(f"http://127.0.0.1:{client.port}/")
    opened.until("document.getElementById('model').textContent === 'tiny'")
    opened.type("temperature", "0")
    opened.type("top_p", "")
    yield opened
    assert opened.complaints == []


MADE = "document.getElementById('made').textContent"
SPEED = "document.getElementById('speed').textContent"
IDLE = "!document.getElementById('go').disabled"


def test_nothing_but_the_page_runs(client):
    response = client.get("/")
    assert response.status == 200
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    html = response.all.decode()
    assert html == bytes(page().body).decode()
    assert not re.findall(r"https?://|src=|<link rel=\"stylesheet", html)  # no other resource
    inputs = re.findall(r"<(?:input|textarea) id=\"(\w+)\"", html)
    assert len(inputs) >= 10
    assert all(f'<label for="{name}">' in html for name in inputs)


@needs_browser
def test_a_text_is_continued(tab, client):
    tab.type("prompt", "def main():")
    tab.type("max_tokens", "40")
    tab.click("go")
    tab.until(f"{IDLE} && {SPEED}.startsWith('40 tokens: first after')")
    assert tab.run(MADE) == client.text(prompt="def main():", max_tokens=40)
    assert re.search(r"then [\d.]+ tokens/s; as long as requested$", tab.run(SPEED))
    assert tab.run("document.getElementById('given').textContent") == "def main():"


@needs_browser
def test_stop_texts_and_the_keyboard(tab, client):
    text = client.text(prompt="a", max_tokens=40)
    stop = next(chunk for chunk in re.findall(r"[!-\[\]-~]{2}", text))
    tab.type("prompt", "a")
    tab.type("stop", stop)
    tab.press("Enter", 13)  # in a field: the form's button
    tab.until(f"{SPEED}.endsWith('; at its end')")
    assert tab.run(MADE) == text[: text.find(stop)]
    tab.type("stop", "")
    tab.type("max_tokens", "7")
    tab.run("document.getElementById('prompt').focus()")
    tab.press("Enter", 13, control=True)
    tab.until(f"{SPEED}.startsWith('7 tokens')")


@needs_browser
def test_the_stop_button(tab, client):
    tab.type("max_tokens", "200000")
    tab.click("go")
    tab.until(f"{MADE}.length > 100")
    client.wait_for("engine_running", 1)
    tab.click("end")
    tab.until(f"{IDLE} && {SPEED}.endsWith('; stopped')")
    client.wait_for("engine_running", 0)


@needs_browser
def test_refusals_are_shown(tab, client):
    tab.type("max_tokens", "300000")
    tab.click("go")
    tab.until("!document.getElementById('error').hidden")
    assert "max_tokens = 300000: expected at most 200000" in tab.run(
        "document.getElementById('error').textContent"
    )
    assert tab.run(IDLE)
    assert any("400" in complaint for complaint in tab.complaints)
    tab.complaints.clear()  # the browser's own line about the status


@needs_browser
def test_a_key_is_asked_for(opened, make_engine):
    with serving(make_engine(), LIMITS, keys=("secret",)) as client:
        opened.open(f"http://127.0.0.1:{client.port}/")
        opened.until("!document.getElementById('locked').hidden")
        opened.type("key", "secret")
        opened.type("max_tokens", "3")
        opened.click("go")
        opened.until(f"{SPEED}.startsWith('3 tokens')")
        opened.open("about:blank?")


@needs_browser
@pytest.mark.parametrize("width", [1200, 360])
def test_it_fits(tab, width):
    tab.size(width, 900)
    tab.type("prompt", "word" * 200)
    tab.type("max_tokens", "200")
    tab.click("go")
    tab.until(f"{IDLE} && {SPEED}.includes('tokens')")
    assert tab.run("document.documentElement.scrollWidth") <= width
