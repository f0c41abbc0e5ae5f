"""The laws of other libraries' layers: `python docs/layer_laws.py` writes their table, `--check` compares it.

`--measure` first makes the numbers, layer_laws.json. It needs torch, transformers and einops, and in `--fla`
the folder of an unpacked wheel of fla-core, whose operators in plain torch need no triton. The layers are
small, with random weights.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from based_jax.markdown import between_markers, table
from based_jax.testing.layers import Layer, check_layer

HERE = Path(__file__).parent
NUMBERS, PAGE = HERE / "layer_laws.json", HERE / "concepts" / "contract.md"
WIDTH, HEADS, DIM, CHUNK = 16, 2, 8, 64
STATE, MASKS = ("state", "step"), ("mask_right", "mask_left", "mask_both")


def tensors(*arrays: np.ndarray) -> list[Any]:
    import torch

    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def torch_layer(
    forward: Callable[..., Any], init_state: Callable[[int], Any] | None, name: str, *supports: str
) -> Layer:
    """Return the layer of forward(x, state, mask, segment_ids) -> (y, state) on tensors."""
    import torch

    def call(x, state=None, mask=None, segment_ids=None):
        mask, segment_ids = (None if a is None else tensors(a)[0] for a in (mask, segment_ids))
        return forward(x, state, mask, segment_ids)

    def run(x, state=None, **context):
        with torch.no_grad():
            y, state = call(*tensors(x), state, **context)
        return y.numpy(), state

    def gradient(x, dy, **context):
        x, dy = tensors(x, dy)
        call(x.requires_grad_(), **context)[0].backward(dy)
        return x.grad.numpy()

    return Layer(run, WIDTH, supports, init_state, gradient, tolerance=1e-4, name=name)


def operators(folder: Path) -> Iterator[Layer]:
    """Yield fla's operators in plain torch, between projections of random weights."""
    import torch

    def module(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, folder / "fla" / "ops" / name / "naive.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(6, WIDTH, WIDTH, generator=draw) / math.sqrt(WIDTH)
    sigmoid, logsigmoid = torch.sigmoid, torch.nn.functional.logsigmoid

    def inputs(x, names):
        heads = [(x @ w).unflatten(2, (HEADS, DIM)) for w in weights]
        q, k, v = heads[0], torch.nn.functional.normalize(heads[1], dim=-1), heads[2]
        made = {"q": q, "k": k, "v": v, "beta": sigmoid(heads[3][..., 0]), "gk": logsigmoid(heads[4])}
        made |= {"g": logsigmoid(heads[5][..., 0]), "positive q": q.exp(), "positive k": k.exp()}
        made |= {"x": x @ weights[0], "flat g": logsigmoid(x @ weights[1]), "wide g": made["gk"]}
        return {name.split()[-1]: made[name] for name in names}

    def operator(name, function, names, has_state=True, chunk=1, normalize=False):
        options = {"normalize": True} if normalize else {}

        def forward(x, state, mask, segment_ids):
            padding = -x.shape[1] % chunk
            arguments = inputs(torch.nn.functional.pad(x, (0, 0, 0, padding)), names)
            more = {"initial_state": state, "output_final_state": state is not None} if has_state else {}
            result = function(**arguments, **more, **options)
            o, state = result if isinstance(result, tuple) else (result, None)
            return o.flatten(2)[:, : x.shape[1]], state

        def init_state(rows):
            shape = (rows, WIDTH) if "x" in names else (rows, HEADS, DIM, DIM)
            kv = torch.zeros(shape)
            return (kv, torch.zeros(rows, 1, HEADS, DIM)) if normalize else kv

        return torch_layer(forward, init_state, f"fla `{name}`", *STATE[: 2 * (has_state and chunk == 1)])

    linear, gdn, gla, simple, hgrn, kda = map(
        module, ("linear_attn", "gated_delta_rule", "gla", "simple_gla", "hgrn", "kda")
    )
    qkv, rule = ("q", "k", "v"), ("q", "k", "v", "beta", "g")
    positive = ("positive q", "positive k", "v")
    yield operator("naive_recurrent_linear_attn", linear.naive_recurrent_linear_attn, qkv)
    name = "naive_recurrent_linear_attn(normalize=True)"
    yield operator(name, linear.naive_recurrent_linear_attn, positive, normalize=True)
    yield operator("naive_chunk_linear_attn", linear.naive_chunk_linear_attn, qkv, False, CHUNK)
    yield operator("naive_recurrent_gated_delta_rule", gdn.naive_recurrent_gated_delta_rule, rule)
    yield operator("naive_chunk_gated_delta_rule", gdn.naive_chunk_gated_delta_rule, rule)
    yield operator("naive_recurrent_gla", gla.naive_recurrent_gla, (*qkv, "gk"))
    yield operator("naive_recurrent_simple_gla", simple.naive_recurrent_simple_gla, (*qkv, "g"))
    yield operator("naive_chunk_simple_gla", simple.naive_chunk_simple_gla, (*qkv, "g"))
    yield operator("naive_parallel_simple_gla", simple.naive_parallel_simple_gla, (*qkv, "g"), False)
    yield operator("naive_recurrent_hgrn", hgrn.naive_recurrent_hgrn, ("x", "flat g"))
    yield operator("naive_chunk_hgrn", hgrn.naive_chunk_hgrn, ("x", "flat g"), False, CHUNK)
    yield operator("naive_recurrent_kda", kda.naive_recurrent_kda, (*qkv, "wide g", "beta"))
    yield operator("naive_chunk_kda", kda.naive_chunk_kda, (*qkv, "wide g", "beta"), False, CHUNK)


def mixers() -> Iterator[Layer]:
    """Yield mixers of transformers, called as their decoder layers call them."""
    import torch
    import transformers as t
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
    from transformers.models.mamba.modeling_mamba import MambaMixer
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    def built(make, config):
        torch.manual_seed(0)
        module = make(config, 0).eval()
        for name, parameter in module.named_parameters():
            if (
                parameter.ndim > 1 or "recurrent" in name or "forget_gate" in name
            ):  # the latter have no values yet
                torch.nn.init.normal_(parameter, std=0.3)
        return module

    def cached(name, make, config, state_name="cache_params", packs=True):
        """A mixer with a cache, which a call changes. Packed rows are flattened into one, with seq_idx."""
        module = built(make, config)

        def forward(x, state, mask, segment_ids):
            if segment_ids is not None:
                rows = zip(x, segment_ids, strict=True)
                return torch.cat([module(row[None], **packed(ids)) for row, ids in rows]), None
            return module(x, attention_mask=mask, **{state_name: state}), state

        def packed(ids):
            ends = torch.nn.functional.pad(torch.bincount(ids).cumsum(0), (1, 0)).int()
            more = {} if make is Lfm2ShortConv else {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
            return {"seq_idx": ids[None].int(), **more}

        supports = (*STATE, *MASKS, "gradient", *["segment_ids"] * packs)
        return torch_layer(forward, lambda rows: t.DynamicCache(config=config), name, *supports)

    common = {"hidden_size": WIDTH, "num_hidden_layers": 1}
    config = t.Qwen3NextConfig(
        **common,
        layer_types=["linear_attention"],
        linear_num_value_heads=HEADS,
        linear_num_key_heads=HEADS,
        linear_key_head_dim=DIM,
        linear_value_head_dim=DIM,
    )
    yield cached("transformers `Qwen3NextGatedDeltaNet`", Qwen3NextGatedDeltaNet, config)
    config = t.KimiLinearConfig(
        **common, layer_types=["linear_attention"], linear_num_heads=HEADS, linear_head_dim=DIM
    )
    yield cached("transformers `KimiLinearDeltaAttention`", KimiLinearDeltaAttention, config)
    mamba2 = {**common, "num_heads": 4, "head_dim": DIM, "state_size": DIM, "n_groups": 1, "chunk_size": 16}
    yield cached("transformers `Mamba2Mixer`", Mamba2Mixer, t.Mamba2Config(**mamba2))
    config = t.Mamba2Config(**mamba2, time_step_limit=(0.01, 0.1))
    yield cached("transformers `Mamba2Mixer`, time_step_limit=(0.01, 0.1)", Mamba2Mixer, config)
    config = t.MambaConfig(**common, state_size=DIM)
    yield cached("transformers `MambaMixer`", MambaMixer, config, packs=False)
    config = t.Lfm2Config(
        **common, num_attention_heads=HEADS, num_key_value_heads=HEADS, layer_types=["conv"]
    )
    yield cached("transformers `Lfm2ShortConv`", Lfm2ShortConv, config, "past_key_values")

    griffin = built(
        RecurrentGemmaRecurrentBlock,
        t.RecurrentGemmaConfig(
            **common, num_attention_heads=HEADS, lru_width=WIDTH, num_key_value_heads=HEADS
        ),
    )

    def block(x, state, mask, segment_ids):
        """The state is in the module; positions are those of `generate`, and 0 where a document begins."""
        tokens = torch.ones(x.shape[:2], dtype=torch.long) if mask is None else mask.long()
        positions = (tokens.cumsum(1) - 1).clamp(min=0)
        if segment_ids is not None:
            begins = segment_ids.diff(dim=1, prepend=segment_ids[:, :1] - 1) != 0
            positions = positions - torch.where(begins, positions, 0).cummax(1).values
        if state is not None:
            griffin.conv1d_state, griffin.rg_lru.recurrent_states, count = state
            positions = positions + count[:, None]
        y, _ = griffin(x, positions, mask, use_cache=state is not None)
        state = (griffin.conv1d_state, griffin.rg_lru.recurrent_states, positions[:, -1] + 1)
        return y, state

    def start(rows):
        return torch.zeros(rows, WIDTH, 3), torch.zeros(rows, WIDTH), torch.zeros(rows, dtype=torch.long)

    name = "transformers `RecurrentGemmaRecurrentBlock`"
    yield torch_layer(block, start, name, *STATE, "mask_left", "segment_ids", "gradient")


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the date and the versions, and then each law of each layer."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    versions["fla-core"] = next(folder.glob("fla_core-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    yield {"date": datetime.date.today().isoformat(), "versions": versions}
    for layer in (*operators(folder), *mixers()):
        report = check_layer(layer)
        print(report, flush=True)
        for outcome in report.outcomes:
            error = outcome.error if math.isfinite(outcome.error) else None
            yield {"layer": layer.name, **dataclasses.asdict(outcome), "error": error}


def text(facts: dict[str, Any], *outcomes: dict[str, Any]) -> str:
    """Return the table: how many laws hold, and those that are broken with the smallest input."""
    rows = []
    for name in dict.fromkeys(outcome["layer"] for outcome in outcomes):
        laws = [outcome for outcome in outcomes if outcome["layer"] == name]
        checked = [law for law in laws if law["status"] != "not checked"]
        broken = [brief(law) for law in checked if law["status"] == "broken"]
        rows.append((name, f"{len(checked) - len(broken)} of {len(checked)}", "; ".join(broken) or "none"))
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    caption = f"Measured on {facts['date']} with {versions}, on a CPU, in float32, with `tolerance=1e-4`:"
    lines = table(("layer", "laws that hold", "laws that it breaks"), rows, (0, 1, 2))
    return "\n".join([*textwrap.wrap(caption, 120), "", *lines])


def brief(law: dict[str, Any]) -> str:
    """Return a broken law with the smallest input, and the difference, in few words."""
    size = "raises" if law["error"] is None else f"{law['error']:.2g}"
    later = ", in the next call" if "next call" in law["detail"] else ""
    return f"{law['law']} ({' + '.join(map(str, law['sizes']))}: {size}{later})"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; with `--check`, return 1 if the page is not what would be written."""
    parser = argparse.ArgumentParser(description="Write the laws of other libraries' layers into a page.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--measure", action="store_true", help="make the numbers first")
    parser.add_argument("--fla", type=Path, metavar="DIR", help="folder of an unpacked wheel of fla-core")
    args = parser.parse_args(argv)
    if args.measure:
        lines = ",\n".join(map(json.dumps, measure(args.fla)))
        NUMBERS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    new = between_markers(page, "layer laws", text(*json.loads(NUMBERS.read_text(encoding="utf-8"))))
    if new is None or (args.check and new != page):
        print(f"{PAGE.name} is not up to date: run python docs/layer_laws.py", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
