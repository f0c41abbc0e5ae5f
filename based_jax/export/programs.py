"""Write a language model as four programs on flat arrays, which `jax.export` turns into bytes.

    init      rows (B,)                                               -> state
    prefill   params, state, tokens (B, C), mask                      -> logits (B, vocab), state
    decode    params, state, token (B,), active                       -> logits (B, vocab), state
    extend    params, state, logits, sampling, active, count <= K     -> made (B, K), logits, state

Parameters, states and settings are dicts from names to arrays, so that callers of the programs need no
class of this library. B is symbolic unless a batch size is given, so any batch size works.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util
from jax import export, lax
from jax.sharding import Mesh

from based_jax.convert.layouts import expect_variables, flatten
from based_jax.generate.sampling import Counts, RowSettings, choose
from based_jax.generate.states import token_limit
from based_jax.models.language_model import LanguageModel
from based_jax.ops.core.platforms import lowering_for
from based_jax.typing import Array, Params, State
from based_jax.validate import expect, expect_choice, expect_integer

PLATFORMS = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
KEY_KIND = "threefry2x32"  # kind of the random keys that `extend` takes as integers


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings that are compiled into the programs; ValueError: a wrong value or combination."""

    platforms: tuple[str, ...] = PLATFORMS
    """platforms to run on: cpu, cuda or both"""
    batch_size: int | None = None
    """number of rows of every call; None allows any number"""
    max_length: int = 2048
    """most tokens of a row, prompt included, in models whose state grows with them"""
    prefill_chunk: int = 128
    """C, number of tokens per row that one call of `prefill` reads"""
    decode_chunk: int = 16
    """K, most tokens per row that one call of `extend` makes"""

    def __post_init__(self) -> None:
        expect(bool(self.platforms), "platforms", self.platforms, "at least one of cpu, cuda")
        for platform in self.platforms:
            expect_choice("platforms", platform, PLATFORMS)
        expect(len(set(self.platforms)) == len(self.platforms), "platforms", self.platforms, "each once")
        sizes = ("max_length", "prefill_chunk", "decode_chunk")
        for name in sizes if self.batch_size is None else (*sizes, "batch_size"):
            expect_integer(name, getattr(self, name), 1)
            object.__setattr__(self, name, int(getattr(self, name)))


class Programs(NamedTuple):
    """The programs, and their arguments and results (`SIGNATURES`)."""

    exported: dict[str, export.Exported]
    """by name, in the order of the module's docstring"""
    values: dict[str, Any]
    """name of an argument or result -> shape and dtype, or a dict of them by name"""
    params: dict[str, Array]
    """the weights by name, each of its shape in the model"""
    limit: int | None
    """most tokens of a row, prompt included; None for no limit"""


def export_programs(model: LanguageModel, params: Params, plan: Plan | None = None) -> Programs:
    """Trace a model and lower its programs; nothing is compiled and no GPU is needed.

    The mixers must be able to continue from a state; the programs take the dtypes of `params`.

    Raises:
        ValueError: a model that computes in float64; an operation that cannot be exported.
    """
    plan = plan or Plan()
    expect_choice("dtype", model.config.dtype, DTYPES)
    expect_variables(params)
    weights = {name: jnp.asarray(leaf) for name, leaf in flatten(nn.meta.unbox(params)["params"]).items()}
    functions = _Functions(model, plan)
    exported = {}
    try:
        # Ops choose their XLA form, whatever this machine has, and programs are not bound to a caller's mesh.
        with lowering_for("cpu"), jax.set_mesh(Mesh(np.empty((), object), ())):
            values = _values(functions, weights)
            for name, (arguments, _) in SIGNATURES.items():
                make = export.export(jax.jit(getattr(functions, name)), platforms=plan.platforms)
                exported[name] = make(*(values[argument] for argument in arguments))
    except (TypeError, jax.errors.InconclusiveDimensionOperation) as error:
        if plan.batch_size is not None:
            raise
        # A layer may compute with the number of rows, which then must be an integer; none of ours does.
        raise ValueError(
            "batch_size = None: expected a number (--batch-size) for this model, which cannot be traced for "
            f"any batch ({str(error).splitlines()[0]})"
        ) from error
    return Programs(exported, values, weights, token_limit(model, plan.max_length))


# program -> names of its arguments and of its results
SIGNATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "init": (("rows",), ("state",)),
    "prefill": (("params", "state", "tokens", "mask"), ("logits", "state")),
    "decode": (("params", "state", "token", "active"), ("logits", "state")),
    "extend": (("params", "state", "logits", "sampling", "active", "count"), ("made", "logits", "state")),
}


FlatState = dict[str, Array]

# Settings of `RowSettings` other than its keys and top_k.
_FLOATS = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")


class _Functions:
    def __init__(self, model: LanguageModel, plan: Plan) -> None:
        self.model, self.plan = model, plan
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(
            jax.eval_shape(lambda: model.init_state(1, plan.max_length))
        )
        self._names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]

    def init(self, rows: Array) -> FlatState:
        """Return the state before the first token; the length of `rows` is the batch size."""
        return self._flat(self.model.init_state(rows.shape[0], self.plan.max_length))

    def prefill(
        self, params: FlatState, state: FlatState, tokens: Array, mask: Array
    ) -> tuple[Array, FlatState]:
        """Read a chunk of each prompt; `mask` is True for real tokens, with right padding only.

        Logits are those after a row's last real token. A row without real tokens has no logits and keeps its
        state.
        """
        variables = self._variables(params)
        hidden, after = self.model.apply(variables, tokens, self._tree_of(state), mask=mask, method="hidden")
        last = jnp.maximum(mask.sum(axis=1) - 1, 0)
        hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
        return self.model.apply(variables, hidden, method="unembed"), self._flat(after)

    def decode(
        self, params: FlatState, state: FlatState, token: Array, active: Array
    ) -> tuple[Array, FlatState]:
        """Read one token per row; inactive rows keep their state, and their logits are meaningless."""
        variables, before = self._variables(params), self._tree_of(state)
        mask = active[:, None]
        hidden, after = self.model.apply(variables, token[:, None], before, mask=mask, method="hidden")
        return self.model.apply(variables, hidden[:, 0], method="unembed"), self._flat(after)

    def extend(
        self,
        params: FlatState,
        state: FlatState,
        logits: Array,
        sampling: Mapping[str, Array],
        active: Array,
        count: Array,
    ) -> tuple[Array, Array, FlatState]:
        """Make `count` <= K tokens per active row, the first from `logits`, those after the last token.

        `sampling` has the fields of `RowSettings`, with keys as integers, and the text so far of each row:
        `step` is the number of tokens made; `prompt_counts` and `made_counts` are how often each token is in
        the prompt and among the tokens made, for the penalties.
        The tokens, int32 (B, K), are 0 after `count` and in inactive rows; logits and state are those after
        the last token.
        """
        keys = jax.random.wrap_key_data(sampling["keys"], impl=KEY_KIND)
        rows = RowSettings(keys=keys, **{name: sampling[name] for name in ("top_k", *_FLOATS)})
        step = jax.jit(self.decode)  # traced once for this program and `decode`

        def body(number: Array, carry: Any) -> Any:
            counts, (made, logits, state) = carry
            size = self.model.config.vocab_size
            chosen = choose(logits, rows, sampling["step"] + number, counts, vocab_size=size).token
            token = jnp.where(active, chosen, 0)
            new = made.at[:, number].set(token), *step(params, state, token, active)
            return counts.add(token, active), new

        made = jnp.zeros((active.shape[0], self.plan.decode_chunk), jnp.int32)
        counts = Counts(sampling["prompt_counts"], sampling["made_counts"])
        return lax.fori_loop(0, count, body, (counts, (made, logits, state)))[1]

    def _variables(self, params: Mapping[str, Array]) -> Params:
        return {"params": traverse_util.unflatten_dict(dict(params), sep="/")}

    def _flat(self, state: State) -> FlatState:
        return dict(zip(self._names, jax.tree.leaves(state), strict=True))

    def _tree_of(self, state: FlatState) -> State:
        return self._tree.unflatten([state[name] for name in self._names])


def _values(functions: _Functions, params: Mapping[str, Array]) -> dict[str, Any]:
    plan, config = functions.plan, functions.model.config
    rows: Any = plan.batch_size or export.symbolic_shape("b")[0]
    shape = jax.ShapeDtypeStruct
    one, counts = shape((rows,), jnp.int32), shape((rows, config.vocab_size), jnp.int32)
    sampling = {
        "keys": shape((rows, 2), jnp.uint32),
        "step": one,
        "top_k": one,
        **{name: shape((rows,), jnp.float32) for name in _FLOATS},
        "prompt_counts": counts,
        "made_counts": counts,
    }
    return {
        "params": {name: shape(leaf.shape, leaf.dtype) for name, leaf in params.items()},
        "state": jax.eval_shape(functions.init, one),
        "rows": one,
        "tokens": shape((rows, plan.prefill_chunk), jnp.int32),
        "mask": shape((rows, plan.prefill_chunk), jnp.bool_),
        "token": one,
        "active": shape((rows,), jnp.bool_),
        "logits": shape((rows, config.padded_vocab_size), jnp.float32),
        "sampling": sampling,
        "count": shape((), jnp.int32),
        "made": shape((rows, plan.decode_chunk), jnp.int32),
    }
