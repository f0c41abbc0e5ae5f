"""Arguments of generation in Based's and flash-attention's code; ours is `based_jax.generate`."""

from based_jax.convert.options.option import Option

_PARALLEL = "tensor parallelism, which a mesh provides here"
_COMPILED = "the loop is always one compiled program here"

_CHOICE: tuple[Option, ...] = (
    Option("top_k", "1", "top_k, temperature", "renamed", "1 is temperature 0 here; 0 there is None"),
    Option("top_p", "0.0", "top_p", "same", "of the tokens that top_k leaves; 0 there is None"),
    Option("temperature", "1.0", "temperature", "same", "0 takes the most likely token here"),
)

_LENGTH = Option("max_length", "", "max_new_tokens", "renamed", "includes the prompt in their code")

OPTIONS: dict[str, tuple[Option, ...]] = {
    "based.generation.decode": (
        Option("input_ids", "", "prompt", "renamed", "rows of any lengths"),
        Option("model", "", "model, params", "renamed", ""),
        _LENGTH,
        *_CHOICE,
        Option(
            "eos_token_id",
            "None",
            "stop_tokens",
            "renamed",
            "per row; in their code all rows must have it at the same step",
        ),
        Option("teacher_outputs", "None", "", "refused", "call the model on the tokens instead"),
        Option("vocab_size", "None", "", "renamed", "padded entries of the vocabulary are never made here"),
        Option("tensor_parallel", "1", "", "ignored", _PARALLEL),
        Option("cg", "False", "", "ignored", _COMPILED),
        Option("enable_timing", "False", "", "ignored", "times are those of `benchmarks`"),
        Option("stopping_criteria", "None", "", "ignored", "never read"),
    ),
    "based.generation.decode_speculative": (
        Option("input_ids", "", "prompt", "renamed", "one row in their code"),
        Option("model", "", "model, params", "renamed", ""),
        Option("model_draft", "", "draft_model, draft_params", "renamed", "any model with a state"),
        _LENGTH,
        Option("speculative_lookahead", "3", "draft_tokens", "renamed", ""),
        *_CHOICE,
        Option("eos_token_id", "None", "stop_tokens", "renamed", ""),
        Option("vocab_size", "None", "", "renamed", "padded entries of the vocabulary are never made here"),
        Option("tensor_parallel", "1", "", "ignored", _PARALLEL),
        Option("cg", "False", "", "ignored", _COMPILED),
        Option("enable_timing", "False", "", "ignored", "times are those of `benchmarks`"),
        Option("debug", "False", "", "ignored", "prints in their code"),
    ),
    "based.generation.GenerationMixin.generate": (
        Option("input_ids", "", "prompt", "renamed", ""),
        _LENGTH,
        *_CHOICE,
        Option("return_dict_in_generate", "False", "", "ignored", "shape of the result"),
        Option("output_scores", "False", "return_logprobs", "renamed", "log probabilities of what was made"),
    ),
}
"""By import path."""
