"""The limits on requests beyond which the server refuses them: they bound its memory and an answer's time."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on one request."""

    length: int  # tokens of a prompt and its answer together
    max_tokens: int  # tokens of an answer
    choices: int  # answers to one request: prompts times n
    body: int = 4 * 2**20  # bytes of a request's body
    answer_seconds: float = 600.0  # for a whole answer, waiting included
