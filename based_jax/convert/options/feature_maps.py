"""Arguments of Zoology's and Based's feature maps. A map accepts those of other maps too."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.rows import INITIAL, ignored, refused, renamed

_MAPS = "zoology.mixers.feature_maps"
_WIDTH = ignored("input_dim", "", "reported sizes only; the queries' width decides")
_TEMP = renamed("temp", "None", "feature_scale")
_NO_TEMP = ignored("temp", "None", "this map does not read it")
_AXIS = renamed("head_dim_idx", "-1", "", "-1 or 3, the channels: others fail there, or read later tokens")
_FLOOR = renamed("eps", "1e-12", "feature_floor")
_NO_FLOOR = ignored("eps", "1e-12", "this map does not read it")
_FULL = renamed("fullspace", "True", "feature_map", "False: the map's half, without a floor")
_UNREAD_FULL = ignored("fullspace", "True", "this map does not read it")
_UNREAD = (_WIDTH, _NO_TEMP, _AXIS, _NO_FLOOR)
_SCALE = renamed("input_dim", "", "feature_scale", "another number than the queries' width scales them")
_OWN = "the queries' width; another one fails in their code"

OPTIONS: dict[str, tuple[Option, ...]] = {
    f"{_MAPS}.base.FeatureMap": _UNREAD,
    f"{_MAPS}.base.Identity": _UNREAD,
    f"{_MAPS}.base.PosELU": (_WIDTH, _TEMP, _AXIS, _NO_FLOOR),
    f"{_MAPS}.base.ReLU": (_WIDTH, _TEMP, _AXIS, _FLOOR),
    f"{_MAPS}.base.Square": _UNREAD,
    f"{_MAPS}.all_poly.SquaredMap": _UNREAD,
    f"{_MAPS}.taylor.TaylorExp": (_SCALE, *_UNREAD[1:]),
    "based.models.mixers.linear_attention.TaylorExp": (_SCALE,),
    "based.models.mixers.linear_attention.FeatureMap": (_WIDTH,),
    f"{_MAPS}.performer.PerformerFeatureMap": (
        renamed("input_dim", "16", "feature_dim", _OWN),
        renamed("expanded_dim", "256", "num_features"),
        *_UNREAD[1:],
    ),
    f"{_MAPS}.cosformer.CosFormerFeatureMap": (
        refused("act_fun", "'relu'", "'elu', the other one, fails in their code"),
        *_UNREAD,
    ),
    f"{_MAPS}.all_poly.AllPolyMap": (
        renamed("input_dim", "", "feature_dim", _OWN),
        renamed("output_dim", "None", "num_features"),
        ignored("init", "'randn'", INITIAL),
        renamed("learnable", "True", "learned_map"),
        *_UNREAD[1:],
    ),
    f"{_MAPS}.exp_dim.FullSpaceMap": (_AXIS, _FLOOR, _WIDTH, _NO_TEMP),
    f"{_MAPS}.exp_dim.ExpDim": (_FULL, _WIDTH, _TEMP, _AXIS, _FLOOR),
    f"{_MAPS}.exp_dim.ExpMaxNorm": (_FULL, _WIDTH, _TEMP, _AXIS, _FLOOR),
    f"{_MAPS}.exp_dim.SoftmaxDim": (_UNREAD_FULL, _WIDTH, _TEMP, _AXIS, _FLOOR),
    f"{_MAPS}.exp_dim.SoftmaxDimHalfspace": (_UNREAD_FULL, _WIDTH, _TEMP, _AXIS, _FLOOR),
    f"{_MAPS}.exp_dim.ExpSumNorm": (_AXIS, _UNREAD_FULL, _WIDTH, _TEMP, _FLOOR),
    f"{_MAPS}.exp_dim.ExpSumNormHalfspace": (_AXIS, _UNREAD_FULL, _WIDTH, _NO_TEMP, _FLOOR),
}
