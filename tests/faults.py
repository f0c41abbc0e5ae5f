"""Faults that the suite must catch; `tests/mutations.py` plants them one at a time.

Each is a mistake that a contributor could make: a dropped mask, a window that is off by one, a state that is
not reset, a missing factor in a backward pass.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """A replacement in one file."""

    what: str
    path: str
    old: str
    """text that occurs once in the file"""
    new: str
    tests: str
    """test files that cover this code, separated by spaces; only these are run"""


LAWS = "tests/mixers/test_contract.py"
CONV = "tests/ops/test_short_conv.py"
LINEAR = "tests/ops/test_linear_attention.py tests/ops/test_taylor_attention.py"
LOWERING = "tests/ops/core/test_lowering.py"
DELTA = "tests/ops/test_delta_rule.py"
SOFTMAX = "tests/ops/test_softmax_attention.py tests/ops/test_softmax_attention_cache.py"
LOOP = "tests/generate/test_loop.py"
SAMPLING = "tests/generate/test_sampling.py"
PARITY = "tests/parity/test_parity.py"
STEP = "tests/training/test_step.py"
HUB = "tests/convert/test_hub.py"

FAULTS = (
    # ops
    Fault(
        "a declared platform is forgotten", "based_jax/ops/core/platforms.py",
        "absent = is_gpu and (", "absent = False and (", LOWERING,
    ),
    Fault(
        "rows without an answer are numbers", "based_jax/ops/core/nan_isolation.py",
        "0 / good.astype(y.dtype)", "0 * good.astype(y.dtype)", LAWS,
    ),
    Fault(
        "a scan of several steps is its inputs", "based_jax/ops/diagonal_scan.py",
        "return b if b.shape[1] == 1 else", "return b if True else",
        "tests/ops/test_diagonal_scan.py",
    ),
    Fault(
        "sums survive the end of a document", "based_jax/ops/linear_attention.py",
        "new_kv = visibility.kept(kv) + jnp.einsum", "new_kv = kv + jnp.einsum", LINEAR,
    ),
    Fault(
        "the normaliser forgets the tokens before the chunk", "based_jax/ops/linear_attention.py",
        "normaliser = scores.sum(-1) + visibility.reading(phi_q @ k_sum[..., None])[..., 0]",
        "normaliser = scores.sum(-1)", LINEAR,
    ),
    Fault(
        "a fixed rate of decay is dropped", "based_jax/ops/linear_attention.py",
        "jnp.broadcast_to(log_decay.astype(dtype), (batch",
        "jnp.broadcast_to(log_decay.astype(dtype) * (log_decay.shape[1] > 1), (batch", LINEAR,
    ),
    Fault(
        "the half of Taylor's square is lost", "based_jax/ops/taylor_features.py",
        "return 1 + s + s * s / 2", "return 1 + s + s * s", LINEAR,
    ),
    Fault(
        "features are scaled as products are", "based_jax/ops/taylor_features.py",
        "x = x * width**-0.25\n    triangle", "x = x * width**-0.5\n    triangle", LINEAR,
    ),
    Fault(
        "a token of a strictly causal chunk sees itself", "based_jax/ops/core/chunks.py",
        "k=0 if diagonal else -1", "k=0", DELTA,
    ),
    Fault(
        "padding enters the state of packed rows", "based_jax/ops/core/chunks.py",
        "enters = real if enters is None else enters & real", "enters = real if enters is None else enters",
        LINEAR,
    ),
    Fault(
        "a state lives on after a document that begins with its chunk", "based_jax/ops/core/chunks.py",
        "lift(last[:, 0] < 0)", "lift(last[:, 0] <= 0)", LINEAR,
    ),
    Fault(
        "a token decays what it has itself brought", "based_jax/ops/core/decay.py",
        "jnp.flip(log_decay, -2), -2, inclusive=False", "jnp.flip(log_decay, -2), -2, inclusive=True",
        "tests/ops/core/test_decay.py tests/ops/test_linear_recurrence.py",
    ),
    Fault(
        "queries of the delta rule read before the decay", "based_jax/ops/delta_rule.py",
        "readers = jnp.stack([a, q * jnp.exp(log_decay)])", "readers = jnp.stack([a, q])", DELTA,
    ),
    Fault(
        "the delta rule erases without the decay", "based_jax/ops/delta_rule.py",
        "erased = erased * jnp.exp(log_decay.astype(dtype))[..., None]", "erased = erased * 1", DELTA,
    ),
    Fault(
        "the bonus counts for all that a token brings", "based_jax/ops/linear_recurrence.py",
        "else old + bonus[..., None] * added", "else new + bonus[..., None] * added",
        "tests/ops/test_linear_recurrence.py",
    ),
    Fault(
        "inputs of a selective scan are not scaled by the step", "based_jax/ops/diagonal_scan.py",
        "(dt * x)[..., None] * B", "x[..., None] * B", "tests/ops/test_diagonal_scan.py",
    ),
    Fault(
        "two parts of RWKV-4's sums decay by the first one's steps", "based_jax/ops/wkv.py",
        "of_new = jnp.exp(exponent1 + steps2 - top)", "of_new = jnp.exp(exponent1 + steps1 - top)",
        "tests/ops/test_wkv.py",
    ),
    Fault(
        "padding moves RWKV-4's sums", "based_jax/ops/wkv.py",
        "new = jnp.where(real, new, 0)", "pass", f"tests/ops/test_wkv.py {LAWS}",
    ),
    Fault(
        "a window is one key short", "based_jax/ops/attention_to_keys.py",
        "jnp.maximum(start, index - left)", "jnp.maximum(start, index - left + 1)", SOFTMAX,
    ),
    Fault(
        "a window is one key too wide", "based_jax/ops/attention_to_keys.py",
        "jnp.maximum(start, index - left)", "jnp.maximum(start, index - left - 1)", SOFTMAX,
    ),
    Fault(
        "a token does not see itself", "based_jax/ops/attention_to_keys.py",
        "(key_index <= index[..., None])", "(key_index < index[..., None])", SOFTMAX,
    ),
    Fault(
        "attention that is not causal sees padding", "based_jax/ops/softmax_attention.py",
        "else visible & mask[:, None, :]", "else visible",
        f"{SOFTMAX} tests/ops/test_softmax_attention_edges.py tests/models/test_classifier.py",
    ),
    Fault(
        "a cache that is just full counts as overfull", "based_jax/ops/core/kv_cache.py",
        "fits = cache.stream.length <= cache.slots", "fits = cache.stream.length < cache.slots", SOFTMAX,
    ),
    Fault(
        "slots are numbered one token ahead", "based_jax/ops/core/kv_cache.py",
        "newest = length[:, None] - 1", "newest = length[:, None]", "tests/ops/core/test_kv_cache.py",
    ),
    Fault(
        "the oldest tap of a packed convolution is lost", "based_jax/ops/short_conv.py",
        "jnp.where((age >= back)[..., None], term, 0)", "jnp.where((age > back)[..., None], term, 0)", CONV,
    ),
    Fault(
        "a convolution's state ends one token after the text", "based_jax/ops/short_conv.py",
        "after = mask.sum(axis=1, dtype=jnp.int32)[:, None] +",
        "after = 1 + mask.sum(axis=1, dtype=jnp.int32)[:, None] +", CONV,
    ),
    Fault(
        "a long convolution loses a document's first token at a cut", "based_jax/ops/long_conv.py",
        "(index >= state.stream.start[:, None])", "(index > state.stream.start[:, None])",
        f"tests/ops/test_long_conv.py {LAWS}",
    ),
    Fault(
        "rotation is no rotation", "based_jax/ops/rotary.py",
        "jnp.concatenate([one * cos - two * sin", "jnp.concatenate([one * cos + two * sin",
        "tests/ops/test_rotary.py",
    ),
    Fault(
        "positions go on through documents", "based_jax/ops/core/stream.py",
        "return self.index - self.start", "return self.index + 0 * self.start",
        f"tests/ops/core/test_stream.py {CONV}",
    ),
    Fault(
        "padding counts as read", "based_jax/ops/core/stream.py",
        "length=stream.length + count", "length=stream.length + every", "tests/ops/core/test_stream.py",
    ),
    Fault(
        "a broken document breaks the next one of its row", "based_jax/ops/core/nan_isolation.py",
        "broken |= before.broken[:, None] & (start == before.start[:, None])",
        "broken |= before.broken[:, None]", LAWS,
    ),
    Fault(
        "the backward pass of cross-entropy forgets the weights", "based_jax/ops/cross_entropy.py",
        "of_logits = p * (weights / sums_of_p)", "of_logits = p * (1.0 / sums_of_p)",
        "tests/ops/test_cross_entropy.py",
    ),
    Fault(
        "the backward pass of cross-entropy forgets the factor from above", "based_jax/ops/cross_entropy.py",
        "(g * of_hidden)", "(1.0 * of_hidden)", "tests/ops/test_cross_entropy.py",
    ),
    # kernels
    Fault(
        "the slope of Taylor's square is halved in the kernel", "pallas_kernels/taylor_attention/dq.py",
        "return (1 + scores) if plan.scales[1] == 1 else (1 + scores) * plan.scales[1]",
        "return (1 + scores / 2) if plan.scales[1] == 1 else (1 + scores / 2) * plan.scales[1]",
        "tests/kernels/test_taylor_attention.py",
    ),
    Fault(
        "gradients of keys see queries of other documents", "pallas_kernels/taylor_attention/dkv.py",
        "dscores = jnp.where(visible, dscores * slope(plan, scores), 0.0)",
        "dscores = dscores * slope(plan, scores)", "tests/kernels/test_taylor_attention.py",
    ),
    Fault(
        "streams after the loop are those before it", "based_jax/generate/layer_streams.py",
        "length=leaf.length + made, ", "", "tests/generate/test_layer_streams.py",
    ),
    Fault(
        "the fused window starts at the row, not at its document", "pallas_kernels/window_step/kernel.py",
        "jnp.maximum(start[...], 0)", "jnp.maximum(0 * start[...], 0)", "tests/kernels/test_window_step.py",
    ),
    Fault(
        "the fused step scales its linear features wrongly", "pallas_kernels/taylor_step/kernel.py",
        "np.repeat([1, width**-0.25,", "np.repeat([1, width**-0.5,", "tests/kernels/test_taylor_step.py",
    ),
    Fault(
        "the fused convolution reads inputs of the document before", "pallas_kernels/conv_step/kernel.py",
        "age[...] >= back", "age[...] >= 0", "tests/kernels/test_conv_step.py",
    ),
    Fault(
        "the fused gradient of a convolution starts a token late", "pallas_kernels/gated_conv/kernel.py",
        "token - later < chunk.first", "token - later <= chunk.first", "tests/kernels/test_gated_conv.py",
    ),
    Fault(
        "the fused gradient of a norm leaves out that of the factor", "pallas_kernels/rms_norm/kernel.py",
        "factor * factor * product", "0 * product", "tests/kernels/test_rms_norm.py",
    ),
    Fault(
        "the kernel of the loss counts padded columns", "pallas_kernels/softmax_loss/kernel.py",
        "token < vocab, LOWEST", "token < width, LOWEST", "tests/kernels/test_softmax_loss.py",
    ),
    Fault(
        "the fused gate is the values' half", "pallas_kernels/row_products/kernel.py",
        "[(0,), (1,)]", "[(1,), (0,)]", "tests/kernels/test_row_products.py",
    ),
    # mixers and models
    Fault(
        "the gate of linear attention is left out", "based_jax/mixers/linear_attention.py",
        "y = y * self.gate(x)[..., None]", "y = y * 1", f"tests/mixers/test_linear_attention.py {LAWS}",
    ),
    Fault(
        "positions count anew in a call that continues", "based_jax/mixers/context.py",
        "positions=token_positions.positions if positions is None else positions",
        "positions=token_positions.index * 0 + jnp.arange(x.shape[1]) if positions is None else positions",
        LAWS,
    ),
    Fault(
        "BaseConv loses its residual", "based_jax/mixers/base_conv.py",
        "return conv * gate + x, state", "return conv * gate, state", PARITY,
    ),
    Fault(
        "Mamba-2's gate is a sigmoid", "based_jax/mixers/mamba2.py",
        "y = self._gated(y, jax.nn.silu(z))", "y = self._gated(y, jax.nn.sigmoid(z))", PARITY,
    ),
    Fault(
        "RWKV-7 removes at the full rate", "based_jax/mixers/rwkv7.py",
        "-removal, removal * rate, log_decay", "-removal, removal, log_decay", PARITY,
    ),
    Fault(
        "value and gate of an MLP are swapped", "based_jax/ops/core/products.py",
        "return inner[..., 0, :] * ACTIVATIONS[activation](inner[..., 1, :])",
        "return inner[..., 1, :] * ACTIVATIONS[activation](inner[..., 0, :])", PARITY,
    ),
    Fault(
        "dropped attention weights are not rescaled", "based_jax/mixers/attention_dropout.py",
        "weights / (1 - rate or 1.0), 0)", "weights, 0)", "tests/models/test_noise.py",
    ),
    Fault(
        "stochastic depth drops single numbers", "based_jax/models/noise.py",
        "broadcast_dims=(1, 2)", "broadcast_dims=()", "tests/models/test_noise.py",
    ),
    Fault(
        "a branch is added to the stream twice", "based_jax/models/block.py",
        "self.norm1(residual, h)", "self.norm1(residual, 2 * h)",
        "tests/convert/test_block_options.py",
    ),
    Fault(
        "numbers that are none reach the arithmetic", "based_jax/mixers/contract.py",
        "numbers(x, context.mask)", "x", LAWS,
    ),
    # generate
    Fault(
        "prefill reads one token of padding", "based_jax/generate/loop.py",
        "mask = offset + jnp.arange(size)[None] < lengths[:, None]",
        "mask = offset + jnp.arange(size)[None] <= lengths[:, None]", LOOP,
    ),
    Fault(
        "generation continues after the token before the last", "based_jax/generate/loop.py",
        "last = lengths - 1 - offset", "last = jnp.maximum(lengths - 2, 0) - offset", LOOP,
    ),
    Fault(
        "a row that has stopped starts again", "based_jax/generate/loop.py",
        "done = done | (token", "done = (token", LOOP,
    ),
    Fault(
        "a repetition penalty makes unlikely tokens likelier", "based_jax/generate/sampling.py",
        "logits / repetition, logits * repetition", "logits / repetition, logits / repetition", SAMPLING,
    ),
    Fault(
        "biases are added to the row of the batch before", "based_jax/generate/logit_bias.py",
        "rows = jnp.arange(logits.shape[0])[:, None]", "rows = jnp.arange(logits.shape[0])[:, None] - 1",
        SAMPLING,
    ),
    Fault(
        "log-probabilities of a prompt end with each chunk", "based_jax/generate/engine/engine.py",
        "known = self._scored(tokens.shape[1]), prompt[begin + 1 : end + 1]",
        "known = self._scored(tokens.shape[1]), prompt[begin + 1 : end]",
        "tests/generate/engine/test_engine.py",
    ),
    Fault(
        "names of special tokens in messages are these tokens", "based_jax/data/chat/template.py",
        'shown = self._broken(messages)', 'shown = [*messages]',
        "tests/data/test_chat.py",
    ),
    Fault(
        "frequencies are penalised like presence", "based_jax/generate/sampling.py",
        "- frequency * counts.output", "- frequency * (counts.output > 0)", SAMPLING,
    ),
    Fault(
        "penalties count a prompt's padding", "based_jax/generate/sampling.py",
        ".add(1 if mask is None else jnp.asarray(mask, jnp.int32))", ".add(1)", f"{SAMPLING} {LOOP}",
    ),
    Fault(
        "top-p takes a share of one, not of all weights", "based_jax/generate/sampling.py",
        "column.top_p * weights.sum(axis=-1, keepdims=True)", "column.top_p", SAMPLING,
    ),
    Fault(
        "min-p compares a probability with a logarithm", "based_jax/generate/sampling.py",
        "jnp.log(column.min_p)", "column.min_p - 1", SAMPLING,
    ),
    Fault(
        "a request's state is added to that of the row before", "based_jax/generate/rows.py",
        "old.at[rows].set(leaf.astype(old.dtype)", "old.at[rows].add(leaf.astype(old.dtype)",
        "tests/generate/engine/test_slots.py tests/generate/engine/test_engine.py",
    ),
    # train
    Fault(
        "each micro-batch takes its own mean", "based_jax/training/step.py",
        'losses = {"loss": nats / total}', 'losses = {"loss": nats / jnp.maximum(targets, 1)}', STEP,
    ),
    Fault(
        "every step draws the same noise", "based_jax/training/step.py",
        "jax.random.fold_in(jax.random.key(seed), state.step)", "jax.random.key(seed)",
        STEP,
    ),
    Fault(
        "weights decay on biases too", "based_jax/training/optimizer.py",
        'endings = ("kernel",', 'endings = ("kernel", "bias",', "tests/training/test_optimizer.py",
    ),
    Fault(
        "gradients are not clipped", "based_jax/training/optimizer.py",
        "clip_by_global_norm(config.clip)", "optax.identity()", "tests/training/test_optimizer.py",
    ),
    Fault(
        "the learning rate falls over the warm-up too", "based_jax/training/optimizer.py",
        "max(horizon - warmup, 1)", "max(horizon, 1)", "tests/training/test_optimizer.py",
    ),
    Fault(
        "a checkpoint remembers the beginning of the data", "based_jax/training/loop.py",
        "checkpoints.save(step, state, data.get_state())", "checkpoints.save(step, state, position)",
        "tests/training/test_lm.py",
    ),
    Fault(
        "a resumed run reads its data from the beginning", "based_jax/training/loop.py",
        "        data.set_state(position)\n", "", "tests/training/test_lm.py",
    ),
    Fault(
        "a tracker that failed is asked again", "based_jax/training/run/trackers.py",
        "self._has_failed = True\n            self._warn", "self._warn", "tests/training/test_trackers.py",
    ),
    Fault(
        "a resumed run is tracked as another one", "based_jax/training/run/trackers.py",
        "if start and path.is_file() else {}", "if not start and path.is_file() else {}",
        "tests/training/test_trackers.py",
    ),
    # data
    Fault(
        "a window's first document counts twice", "based_jax/data/packed.py",
        "(begin + 1, begin + real)", "(begin, begin + real)", "tests/data/test_packed.py",
    ),
    Fault(
        "every host reads the first one's rows", "based_jax/data/pipeline.py",
        "slice(shard_index, None, shard_count)", "slice(0, None, shard_count)",
        "tests/data/shards/test_mixtures.py",
    ),
    Fault(
        "sources of a mixture share one order", "based_jax/data/pipeline.py",
        "(seed + n) % (1 << 32)", "seed", "tests/data/shards/test_mixtures.py",
    ),
    Fault(
        "damage of a shard goes unnoticed", "based_jax/data/shards/reader.py",
        "zlib.crc32(chunk, value), left", "zlib.crc32(chunk), left", "tests/data/shards/test_reader.py",
    ),
    Fault(
        "text that is held out beyond the bound is lost", "based_jax/data/shards/sides.py",
        "            released.append(number)\n", "", "tests/data/shards/test_sides.py",
    ),
    Fault(
        "tokens that were written after the journal stay", "based_jax/data/shards/tokenize.py",
        'file.truncate(state["files"].get(name, 0))', "pass", "tests/data/shards/test_tokenize.py",
    ),
    Fault(
        "a data set of the hub is read again from its first row", "based_jax/data/hub.py",
        "iter(rows.skip(first) if first else rows)", "iter(rows)", "tests/data/test_hub.py",
    ),
    Fault(
        "positions in a file of another encoding count its own bytes", "based_jax/data/readers.py",
        "skip = 0 if seeks else offset", "skip = offset if compression else 0",
        "tests/data/shards/test_blocks.py",
    ),
    Fault(
        "the report forgets what was read of a file before an interruption",
        "based_jax/data/shards/tokenize.py",
        '{index: asdict(own) for index, own in self._reports.items()}', "{}",
        "tests/data/shards/test_tokenize.py",
    ),
    Fault(
        "a record that is too large takes the next one with it", "based_jax/data/fasta.py",
        "header, parts, size = text, [], 0", "header, parts = text, []", "tests/data/shards/test_blocks.py",
    ),
    # convert
    Fault(
        "queries and keys of a packed projection are swapped", "based_jax/convert/weights.json",
        '["Wqkv", ["q", "k", "v"]]', '["Wqkv", ["k", "q", "v"]]', PARITY,
    ),
    Fault(
        "value and gate of the other MLP are swapped", "based_jax/convert/weights.json",
        '["fc3", "fc1"]', '["fc1", "fc3"]', PARITY,
    ),
    Fault(
        "a scale by the layer counts from the second", "based_jax/convert/authors_layers.py",
        "scale /= index + 1", "scale /= max(index, 1)", "tests/convert/test_model_options.py",
    ),
    Fault(
        "norms of older checkpoints keep their numbers", "based_jax/convert/older_names.py",
        "{layer}.norm2.{kind}", "{layer}.norm1.{kind}",
        "tests/convert/test_model_options.py",
    ),
    Fault(
        "value and gate of fla's older MLPs are swapped", "based_jax/convert/older_names.py",
        "named[key][:half], named[key][half:]", "named[key][half:], named[key][:half]",
        "tests/convert/test_fla.py",
    ),
    Fault(
        "heads of values take turns with the keys", "based_jax/mixers/delta_heads.py",
        "jnp.repeat(a, shared, axis=2)", "jnp.tile(a, (1, 1, shared, 1))", "tests/convert/test_fla.py",
    ),
    Fault(
        "taps of convolutions come in the other order", "based_jax/convert/layouts.py",
        "tensors = [tensor.squeeze(self.ones) for",
        "tensors = [tensor.squeeze(self.ones)[..., :: -1 if self.ones == (1,) else 1] for",
        "tests/convert/test_both_ways.py",
    ),
    Fault(
        "packed rows go back to torch in the wrong shape", "based_jax/convert/layouts.py",
        "[part.T if self.inputs else part[0] for", "[part.T[::-1] if self.inputs else part[0] for",
        "tests/convert/test_both_ways.py",
    ),
    Fault(
        "weights from the hub are not compared with their hash", "based_jax/convert/hub.py",
        "_expect_intact(directory, files)", "_expect_intact(directory, ())", HUB,
    ),
    Fault(
        "weights come from where the branch is by now", "based_jax/convert/hub.py",
        "_snapshot(hub, repository, directory.name, files)",
        "_snapshot(hub, repository, revision, files)", HUB,
    ),
    Fault(
        "the index of an earlier save stays beside new shards", "based_jax/convert/shards.py",
        "(directory / INDEX).unlink(missing_ok=True)", "pass", "tests/convert/test_shards.py",
    ),
    # in other frameworks
    Fault(
        "modules cannot be wrapped while tracing", "based_jax/nnx/wrapped.py",
        "jax.sharding.get_abstract_mesh()", "jax.sharding.get_mesh()", "tests/nnx/test_wrapped.py",
    ),
    # docs
    Fault(
        "the picture of the packages leaves out the kernels", "docs/architecture.py",
        "found[name] |= {KERNELS} & roots", "found[name] |= set()", "tests/docs/test_architecture.py",
    ),
)  # fmt: skip
