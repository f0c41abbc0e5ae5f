"""Write the models of this folder with `transformers`, and what they compute: needs torch and transformers.

    python -m tests.convert.transformers_models.make

A folder per case has config.json and model.safetensors of `save_pretrained`, with random weights, and
expected.safetensors: float32 logits of TOKENS, and greedy text after them and after the same rows with
padding on the left. `tests/convert/test_transformers.py` compares ours; its slow test writes every case anew.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TOKENS = np.random.default_rng(1).integers(0, 40, (2, 24))
PADDED = np.arange(24) >= np.array([[0], [5]])
"""Which of the tokens are real, for the padded rows."""
NEW = 12

BASE: dict[str, Any] = {
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0},
}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 16},
}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 4.0},
    "original_max_position_embeddings": 64,
}
GATED_DELTA_NET = {
    **{"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "head_dim": 8},
    **{"linear_key_head_dim": 4, "linear_value_head_dim": 3, "linear_conv_kernel_dim": 3},
}
MROPE = {
    "rope_type": "default",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 0],
}
VISION = {
    **{"depth": 1, "hidden_size": 4, "intermediate_size": 4, "num_heads": 1, "out_hidden_size": 16},
    **{"patch_size": 2, "temporal_patch_size": 1, "spatial_merge_size": 1, "num_position_embeddings": 4},
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
OLMO = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 4},
    **{"linear_value_head_dim": 6, "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-3},
}
GRANITE = {
    **{"num_local_experts": 0, "shared_intermediate_size": 24, "attention_multiplier": 0.3},
    **{"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.6, "mamba_n_heads": 8},
    **{"mamba_d_state": 6, "mamba_chunk_size": 8, "num_hidden_layers": 2},
}
MAMBA = {"state_size": 5, "conv_kernel": 3, "time_step_rank": 3, "mixer_rms_eps": 0.01}
JAMBA = {
    **{"num_experts": 1, "attn_layer_period": 2, "attn_layer_offset": 1, "rms_norm_eps": 1e-3},
    **{"mamba_d_state": 5, "mamba_d_conv": 3},
}
NEMOTRON = {
    **{"layers_block_type": ["linear_attention", "mlp", "full_attention"], "head_dim": 6, "n_groups": 2},
    **{"ssm_state_size": 5, "mamba_num_heads": 6, "mamba_head_dim": 4, "conv_kernel": 3, "chunk_size": 8},
}
CASES: dict[str, dict[str, Any]] = {
    "falcon_mamba": {**MAMBA, "tie_word_embeddings": False},
    "granitemoehybrid": {**GRANITE, "layer_types": ["mamba", "attention"], "tie_word_embeddings": True},
    "jamba": {**JAMBA, "mamba_dt_rank": 3},
    "llama": {"head_dim": 8, "tie_word_embeddings": True, "rope_parameters": LLAMA3},
    "mistral": {"sliding_window": 6, "rms_norm_eps": 1e-3},
    "nemotron_h": {**NEMOTRON, "layer_norm_epsilon": 1e-3},
    "qwen2": {"rope_parameters": YARN, "num_attention_heads": 2, "tie_word_embeddings": True, **WINDOWS},
    "qwen3": {"head_dim": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "qwen3_5": {"text_config": BASE | GATED_DELTA_NET | {"rope_parameters": MROPE}, "vision_config": VISION},
    "qwen3_next": {**GATED_DELTA_NET, "num_experts": 0, "partial_rotary_factor": 0.25},
    "lfm2": {
        **{"full_attn_idxs": [1], "conv_L_cache": 4, "norm_eps": 1e-3, "block_multiple_of": 8},
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "olmo_hybrid": {
        **{**OLMO, "layer_types": ["full_attention", "linear_attention"]},
        "rope_parameters": {"rope_type": "default", "rope_theta": None},
    },
    "falcon_mamba biases": {**MAMBA, "use_bias": True, "use_conv_bias": False, "time_step_rank": "auto"},
    "granitemoehybrid biases": {
        **{**GRANITE, "num_hidden_layers": 3, "layer_types": ["attention", "mamba", "mamba"]},
        **{"attention_bias": True, "mamba_proj_bias": True, "mamba_n_groups": 2, "rope_parameters": YARN},
        "position_embedding_type": "rope",
    },
    "jamba layers": {
        **{**JAMBA, "attn_layer_period": 3, "tie_word_embeddings": True},
        **{"num_hidden_layers": 3, "mamba_expand": 1, "num_key_value_heads": 4},
    },
    "llama biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    "llama yarn": {"rope_parameters": {**YARN, "attention_factor": 1.3, "truncate": False}, "head_dim": 8},
    "lfm2 layers": {
        **{"num_hidden_layers": 3, "layer_types": ["full_attention", "conv", "conv"], "conv_bias": True},
        **{"block_auto_adjust_ff_dim": False, "rope_parameters": YARN, "tie_word_embeddings": False},
    },
    "mistral full": {"sliding_window": None, "head_dim": 6, "num_key_value_heads": 1},
    "nemotron_h biases": {
        **{**NEMOTRON, "layers_block_type": ["mlp", "full_attention", "linear_attention", "mlp"]},
        **{"use_bias": True, "mlp_bias": True, "use_conv_bias": False, "time_step_min": 0.1},
    },
    "olmo_hybrid rotary": {
        **{**OLMO, "linear_num_value_heads": 4, "linear_allow_neg_eigval": False},
        **{"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN},
    },
    "qwen2 full": {"num_key_value_heads": 4},
    "qwen3 windows": {**WINDOWS, "attention_bias": True, "tie_word_embeddings": True, "head_dim": 6},
    "qwen3_5_text biases": {**GATED_DELTA_NET, "attention_bias": True, "tie_word_embeddings": True},
    "qwen3_5_text linear": {
        **GATED_DELTA_NET,
        **{"rope_parameters": MROPE | {"rope_type": "linear", "factor": 2.0}, "linear_num_key_heads": 6},
        "layer_types": ["full_attention", "linear_attention"],
    },
    "qwen3_next dense": {**GATED_DELTA_NET, "num_experts": 4, "mlp_only_layers": [0, 1]},
    "qwen3 types": {**WINDOWS, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 4},
}
FIXTURES = [name for name in CASES if " " not in name]


def write(directory: Path, case: str, **options: Any) -> None:
    """Write one case; `options` are those of `save_pretrained`."""
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    kind, is_text = case.partition(" ")[0], "text_config" not in CASES[case]
    known = vars(AutoConfig.for_model(kind))
    base = {name: value for name, value in BASE.items() if is_text and name in known}
    config = AutoConfig.for_model(kind, **base | CASES[case])
    auto = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
    model = auto.from_config(config, attn_implementation="eager").eval().float()
    draw = torch.Generator().manual_seed(sum(map(ord, case)))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=draw)
            # Norms are 1 at first, or 0 where their factor is 1 + weight.
            tensor.copy_(tensor + 0.2 * noise if "norm" in name else 0.3 * noise)
        ids, mask = torch.tensor(TOKENS), torch.tensor(PADDED)
        settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        made = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        padded = model.generate(ids * mask, attention_mask=mask.long(), **settings)
        logits = model(ids).logits
    model.save_pretrained(directory, **options)
    found = {"logits": logits, "greedy": made[:, 24:].int(), "greedy_padded": padded[:, 24:].int()}
    save_file({name: x.numpy() for name, x in found.items()}, directory / "expected.safetensors")


def write_gradients(source: Path, target: Path) -> np.ndarray:
    """Write gradients of the mean loss on TOKENS as `transformers` writes weights; return the logits."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    is_text = getattr(AutoConfig.from_pretrained(source), "text_config", None) is None
    auto = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
    model, info = auto.from_pretrained(source, attn_implementation="eager", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model.get_input_embeddings().padding_idx = None  # otherwise token 0 has no gradient
    ids = torch.tensor(TOKENS)
    found = model.eval()(ids, labels=ids)
    found.loss.backward()
    for tensor in model.parameters():
        tensor.data = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    model.save_pretrained(target)
    return found.logits.detach().numpy()


if __name__ == "__main__":
    for case in FIXTURES:
        write(HERE / case, case)
        (HERE / case / "generation_config.json").unlink(missing_ok=True)
        print(json.dumps({case: sum(file.stat().st_size for file in (HERE / case).iterdir())}))
