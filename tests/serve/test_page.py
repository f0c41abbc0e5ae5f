"""The page at /: nothing but its own code runs, and its form has fields that the server takes."""

import re

from based_jax.serve.completion_request import CompletionRequest
from based_jax.serve.page import page


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
    assert {*inputs} - {"key"} <= {*CompletionRequest.__struct_fields__}
