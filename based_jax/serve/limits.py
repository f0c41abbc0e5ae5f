"""The limits on requests beyond which the server refuses them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on requests and connections."""

    length: int  # tokens of a prompt and its answer together
    max_tokens: int  # tokens of an answer
    choices: int  # answers to one request: prompts times n
    body: int = 4 * 2**20  # bytes of a request's body
    connections: int = 1000  # open connections
    answer_seconds: float = 600.0  # for a whole answer, waiting included
    body_seconds: float = 30.0  # for a request's body to arrive
    head_seconds: float = 10.0  # for a request's head to arrive
    read_seconds: float = 30.0  # that a client may go without reading what was written to it
    drain_seconds: float = 30.0  # for the answers in progress when the server is asked to stop
