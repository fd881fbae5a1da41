"""The adapter for Hugging Face transformers: tiny random models compute what they compute with `eager`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracle import DEVICE

from fa_core import huggingface

transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 97
WINDOW = 8
LENGTH = 21  # beyond the window, and off every tile
IMPLS = ("naive", "tiled", "flash")
MODELS = ("llama", "mistral", "gemma2", "gpt_oss")


def cases(**models: tuple[str, ...]) -> list[tuple[str, str]]:
    """Pairs of model and implementation: those named, and all on a GPU, where they cost little."""
    everything = dict.fromkeys(IMPLS, MODELS)
    return [
        (name, impl) for impl, names in (everything if DEVICE == "cuda" else models).items() for name in names
    ]


def config_of(name: str) -> Any:
    """A tiny model's configuration: grouped KV heads everywhere, and what its family adds."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,  # attention is then far from uniform
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    if name == "llama":
        return transformers.LlamaConfig(**sizes)
    if name == "mistral":
        return transformers.MistralConfig(**sizes, sliding_window=WINDOW)
    if name == "gemma2":  # its layers have a window in turn
        return transformers.Gemma2Config(
            **sizes, sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=20
        )
    assert name == "gpt_oss"  # windows in turn, and sinks; no choice of experts that rounding could turn
    return transformers.GptOssConfig(
        **sizes, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=2
    )


def build(name: str, impl: str, dtype: torch.dtype = torch.float32) -> Any:
    """The model on `eager`, or on fa_core by one of its implementations; its weights are always the same."""
    if impl != "eager":
        huggingface.register("fa_core", impl=impl)
    torch.manual_seed(0)
    # Experts one by one: PyTorch's grouped product has no fp64, in which the oracle runs.
    options = {"experts_implementation": "eager"} if name == "gpt_oss" else {}
    model = transformers.AutoModelForCausalLM.from_config(
        config_of(name), attn_implementation="eager" if impl == "eager" else "fa_core", **options
    )
    return model.to(DEVICE, dtype).eval()


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    """Random token ids (batch, length), none of which is the padding's."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, VOCABULARY, (batch, length), generator=generator).to(DEVICE)


def left_padded(batch: int = 2, length: int = LENGTH) -> dict[str, torch.Tensor]:
    """Token ids whose first row begins with five of padding, their mask, and positions from 0."""
    ids = tokens(batch, length)
    ids[0, :5] = 0
    mask = (ids != 0).long()
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }


def backward(model: Any, rows: torch.Tensor | None = None, **inputs: Any) -> dict[str, torch.Tensor]:
    """The logits (of the rows that count), and what their log-likelihood sends to each parameter, by name."""
    logits = model(**inputs, use_cache=False).logits
    logits = logits if rows is None else logits[rows]
    logits.float().log_softmax(-1)[..., 5].sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **grads}


def assert_close(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Each tensor to four digits of its largest entry: both are fp32, and layers deep."""
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        error = (got[name] - x).abs().max().item()
        assert error <= 1e-4 * x.abs().max().item() + 1e-6, f"{name}: {error:.3e}"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every call of `fa_core.attention` by the adapter from here on."""
    seen: list[dict[str, Any]] = []
    attend = huggingface.attention

    def spy(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return attend(*args, **options)

    monkeypatch.setattr(huggingface, "attention", spy)
    return seen


# ---------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("name", "impl"), cases(naive=MODELS, tiled=("gemma2", "gpt_oss"), flash=("gemma2", "gpt_oss"))
)
def test_logits_and_gradients_are_eagers(name, impl):
    """Forward and backward beyond the window: every logit, and the gradient of every parameter."""
    ids = tokens()
    expected = backward(build(name, "eager"), input_ids=ids)
    assert len(expected) > 15
    assert name != "gpt_oss" or any("sinks" in parameter for parameter in expected)
    assert_close(backward(build(name, impl), input_ids=ids), expected)


@pytest.mark.parametrize(("name", "impl"), cases(naive=MODELS, flash=("gpt_oss",)))
def test_padding_on_the_left_is_eagers(name, impl):
    """A batch with padding: logits of the other positions and their gradients are eager's, all finite."""
    inputs = left_padded()
    rows = inputs["attention_mask"].bool()
    expected = backward(build(name, "eager"), rows, **inputs)
    got = backward(build(name, impl), rows, **inputs)
    assert all(x.isfinite().all() for x in got.values())
    assert_close(got, expected)


@pytest.mark.parametrize(("name", "impl"), cases(naive=MODELS[1:], flash=("gemma2",)))
def test_generated_tokens_are_eagers(name, impl):
    """Greedy decoding with a KV cache past the window, of a padded batch: token for token."""
    assert_generates_eagers_tokens(name, impl)


@pytest.mark.parametrize(("name", "impl"), cases(naive=("gemma2",)))
def test_generated_tokens_are_eagers_with_a_static_cache(name, impl):
    """A cache of fixed length, whose keys past the queries must stay hidden."""
    assert_generates_eagers_tokens(name, impl, cache_implementation="static")


def assert_generates_eagers_tokens(name: str, impl: str, **options: Any) -> None:
    """The same five tokens after a prompt with padding on the left."""
    inputs = left_padded()
    inputs.pop("position_ids")  # generate finds them itself
    options = {"max_new_tokens": 5, "do_sample": False, "disable_compile": True, **options}
    expected = build(name, "eager").generate(**inputs, **options)
    assert expected.shape[1] == LENGTH + 5
    assert torch.equal(build(name, impl).generate(**inputs, **options), expected)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_packed_sequences_do_not_see_one_another(name):
    """Positions that begin anew begin a sequence: the logits are those of each sequence by itself."""
    ids = tokens(batch=1)
    model = build(name, "naive")
    positions = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)])[None].to(DEVICE)
    packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    alone = [model(input_ids=part, use_cache=False).logits for part in (ids[:, :9], ids[:, 9:])]
    assert_close({"logits": packed.detach()}, {"logits": torch.cat(alone, dim=1).detach()})


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_prompt_in_two_parts_is_one_prompt(name, calls):
    """The second part sees the first in the cache, bottom-right and without a mask, as if it came at once."""
    ids = tokens()
    model = build(name, "naive")
    whole = model(input_ids=ids, use_cache=False).logits[:, 13:]
    # The argument is past_key_values up to 5.23, and gone from 5.40 on.
    cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    past = {cache: transformers.DynamicCache(config=model.config)}
    model(input_ids=ids[:, :13], use_cache=True, **past)
    calls.clear()
    second = model(input_ids=ids[:, 13:], use_cache=True, **past).logits
    assert [call["bias"] for call in calls] == [None, None]
    assert_close({"logits": second.detach()}, {"logits": whole.detach()})


@pytest.mark.parametrize("impl", IMPLS if DEVICE == "cuda" else IMPLS[:2])
def test_a_learned_position_bias_gets_its_gradient(impl):
    """T5: encoder, causal decoder and cross-attention, whose bias is shared by the layers and learned."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=3,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        relative_attention_num_buckets=8,
    )
    huggingface.register("fa_core", impl=impl)
    grads = []
    for attn_implementation in ("eager", "fa_core"):
        torch.manual_seed(0)
        model = transformers.AutoModelForSeq2SeqLM.from_config(
            config, attn_implementation=attn_implementation
        )
        inputs = left_padded()
        inputs.pop("position_ids")
        grads.append(backward(model.to(DEVICE), **inputs, decoder_input_ids=tokens(length=11)))
    assert sum("relative_attention_bias" in name for name in grads[0]) == 2
    assert_close(grads[1], grads[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_flash_in_half_precision_is_as_good_as_eager(name, dtype):
    """Against the model in fp64, logits and all gradients together err at most twice as much as with `eager`.

    Together: a parameter of four numbers, such as a layer's sinks, errs by chance, with `eager` too.
    """
    ids = tokens(length=150)
    expected = backward(build(name, "eager", torch.float64), input_ids=ids)
    eager = backward(build(name, "eager", dtype), input_ids=ids)
    got = backward(build(name, "flash", dtype), input_ids=ids)

    def error(tensors: dict[str, torch.Tensor], names: list[str]) -> float:
        """Root mean square of the tensors' relative errors."""
        errors = [(tensors[n].double() - expected[n]).norm() / expected[n].norm() for n in names]
        return torch.stack(errors).square().mean().sqrt().item()

    gradients = [n for n in expected if n != "logits" and expected[n].norm() > 0]
    for names in (["logits"], gradients):
        assert error(got, names) <= 2 * error(eager, names) + torch.finfo(dtype).eps


def test_a_compiled_model_is_one_graph():
    """torch.compile(fullgraph=True) takes the model whole, and its logits stay."""
    ids = tokens()
    model = build("gemma2", "flash")
    expected = model(input_ids=ids, use_cache=False).logits
    backend = "inductor" if DEVICE == "cuda" else "eager"
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    got = compiled(input_ids=ids, use_cache=False).logits
    assert_close({"logits": got.detach()}, {"logits": expected.detach()})


# ------------------------------------------------------------------------------------------------ masks


def test_no_mask_is_formed_where_causal_and_the_window_say_it_all(calls):
    """Without padding the kernels get a window of their own, also past its length, and no bias."""
    build("gemma2", "naive")(input_ids=tokens(), attention_mask=torch.ones_like(tokens()), use_cache=False)
    sliding, full = calls
    assert (sliding["window"], full["window"]) == ((WINDOW - 1, None), None)
    assert all(call["causal"] and call["bias"] is None for call in calls)
    assert all(call["softcap"] == 2.0 for call in calls)


def test_padding_is_a_bias_of_minus_infinity(calls):
    """With padding the mask says everything: 0 where a query sees a key, -inf elsewhere."""
    build("mistral", "naive")(**left_padded(), use_cache=False)
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    visible = (j <= i) & (j > i - WINDOW) & (j >= 5)
    for call in calls:
        assert not call["causal"]
        assert call["window"] is None
        assert call["bias"].dtype == torch.float32
        assert torch.equal(call["bias"][0, 0].cpu(), torch.where(visible, 0.0, float("-inf")))


def test_a_bidirectional_window_has_two_sides(calls):
    """A layer that is not causal sees as many keys on either side, as with transformers' FlashAttention."""
    x = torch.randn(1, 2, 12, 16, device=DEVICE)
    layer = torch.nn.Module()
    layer.is_causal = False
    huggingface.layer_attention(layer, x, x, x, None, sliding_window=4, impl="naive")
    huggingface.layer_attention(layer, x, x, x, None, sliding_window=12, impl="naive")
    assert [call["window"] for call in calls] == [(3, 3), None]
    assert not any(call["causal"] for call in calls)


def test_a_boolean_mask_is_what_it_hides():
    """True lets a query see a key: the result is that of attention with the pairs hidden by hand."""
    torch.manual_seed(0)
    x = torch.randn(2, 2, 12, 16, device=DEVICE)
    mask = torch.rand(2, 1, 12, 12, device=DEVICE) > 0.4
    out, nothing = huggingface.layer_attention(torch.nn.Module(), x, x, x, mask, impl="naive")
    scores = (x @ x.mT / 4).masked_fill(~mask, float("-inf"))
    torch.testing.assert_close(out, (scores.softmax(-1) @ x).transpose(1, 2))
    assert nothing is None


# --------------------------------------------------------------------------------------------- refusals


def _attend(module: Any = None, **options: Any) -> None:
    x = torch.zeros(1, 2, 12, 16, device=DEVICE)
    huggingface.layer_attention(module or torch.nn.Module(), x, x, x, None, impl="naive", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.1}, r"dropout must be 0 for fa_core, got 0\.1"),
        ({"output_attentions": True}, "output_attentions must be left out"),
        ({"sinks": torch.zeros(1, 2, 12, 1)}, "sinks must be left out"),
        ({"head_mask": torch.ones(2)}, "head_mask must be left out"),
    ],
)
def test_what_would_be_ignored_is_refused(options, message):
    """What another implementation computes and this one cannot raises, rather than giving something else."""
    with pytest.raises(NotImplementedError, match=message):
        _attend(**options)


def test_dropout_is_refused_in_training():
    """A model with attention dropout trains on another implementation, and evaluates on this one."""
    model = build("llama", "naive")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    model(input_ids=tokens(), use_cache=False)
    with pytest.raises(NotImplementedError, match="dropout must be 0"):
        model.train()(input_ids=tokens(), use_cache=False)


def test_a_window_that_a_model_keeps_to_its_mask_is_refused():
    """Where no mask is formed the layer must be told its window; a model that does not is named."""
    layer = torch.nn.Module()
    layer.config = SimpleNamespace(sliding_window=WINDOW)
    with pytest.raises(NotImplementedError, match="sliding_window must be handed to the attention of Module"):
        _attend(layer)
    _attend(layer, sliding_window=None)  # a full layer between windows
    layer.config = SimpleNamespace(sliding_window=12)  # hides nothing
    _attend(layer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"impl": "magic"}, "impl must be one of auto"),
        ({"name": "my_flash"}, "name must not be"),
        ({"name": "sdpa"}, "name must not be"),
        ({"name": "org/kernel"}, "name must not be"),
        ({"name": ""}, "name must not be"),
    ],
)
def test_a_registration_that_would_mislead_is_refused(arguments, message):
    """transformers has its own ways with names that hold `flash`, `flex`, `/` or `|`."""
    with pytest.raises(ValueError, match=message):
        huggingface.register(**arguments)


def test_a_missing_transformers_is_named(monkeypatch):
    """Without the package, registering says what to have."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"must have the transformers package, 5\.17 or newer"):
        huggingface.register()


def test_importing_the_adapter_imports_no_transformers():
    """The package is loaded when something is registered, and not before."""
    check = "import sys, fa_core.huggingface; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, timeout=120)
