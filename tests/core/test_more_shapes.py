"""Kinds of models beyond the public rows: KV and parameters as their makers state them."""

from __future__ import annotations

from typing import Any

import pytest

from homesplit.core.gguf_config import config_from_gguf
from homesplit.core.model_config import shape_from_config
from homesplit.core.shape import ModelShape
from homesplit.errors import ProfileError
from tests.core.configs import CONFIGS
from tests.core.more_configs import MORE


def shape(name: str) -> ModelShape:
    return shape_from_config(MORE[name], name=name)


@pytest.mark.parametrize(
    ("name", "each", "beyond"),
    [
        # layers x 2 x KV heads x head width x 2 bytes; beyond the window only of those without.
        ("Qwen3-30B-A3B", 48 * 2 * 4 * 128 * 2, None),
        ("gpt-oss-120b", 36 * 2 * 8 * 64 * 2, 18 * 2 * 8 * 64 * 2),
        ("Gemma-3-27B", 62 * 2 * 16 * 128 * 2, 10 * 2 * 16 * 128 * 2),
        # The last 15 of 35 layers use others' KV; of the first 20 every fifth is global.
        ("Gemma-3n-E4B", 20 * 2 * 2 * 256 * 2, 4 * 2 * 2 * 256 * 2),
        # Sparse attention keeps an index key of 128 beside the latent.
        ("DeepSeek-V3.2", 61 * (512 + 64 + 128) * 2, None),
        ("Kimi-K2", 61 * (512 + 64) * 2, None),
        ("Kimi-Linear-48B-A3B", 7 * (512 + 64) * 2, None),
        # Three of four layers attend within chunks of 8,192.
        ("Llama-4-Scout", 48 * 2 * 8 * 128 * 2, 12 * 2 * 8 * 128 * 2),
        ("Llama-4-Maverick", 48 * 2 * 8 * 128 * 2, 12 * 2 * 8 * 128 * 2),
        # Eight layers look at an image, and keep nothing of the text.
        ("Llama-3.2-11B-Vision", 32 * 2 * 8 * 128 * 2, None),
        ("Mistral-Small-3.2-24B", 40 * 2 * 8 * 128 * 2, None),
        # Its window is longer than its context.
        ("Phi-4-mini", 32 * 2 * 8 * 128 * 2, None),
        ("GLM-4.5-Air", 46 * 2 * 8 * 128 * 2, None),
        ("Falcon-H1-7B", 44 * 2 * 2 * 128 * 2, None),
        ("Granite-4.0-H-Small", 4 * 2 * 8 * 128 * 2, None),
        ("Granite-4.0-H-Micro", 4 * 2 * 8 * 64 * 2, None),
        ("MiniMax-Text-01", 10 * 2 * 8 * 128 * 2, None),
        ("MiniMax-M2", 62 * 2 * 8 * 128 * 2, None),
        ("LFM2-1.2B", 6 * 2 * 8 * 64 * 2, None),
        ("Jamba-1.5-Mini", 4 * 2 * 8 * 128 * 2, None),
        ("RecurrentGemma-9B", 12 * 2 * 1 * 256 * 2, 0),
        ("Mamba-2.8B", 0, None),
        ("Command-A", 64 * 2 * 8 * 128 * 2, 16 * 2 * 8 * 128 * 2),
        ("EXAONE-4.0-32B", 64 * 2 * 8 * 128 * 2, 16 * 2 * 8 * 128 * 2),
        ("OLMo-3-7B", 32 * 2 * 32 * 128 * 2, 8 * 2 * 32 * 128 * 2),
        # Four layers of its kind: 8, no, 8 and 4 KV heads.
        ("Llama-3.3-Nemotron-Super-49B", (8 + 8 + 4) * 2 * 128 * 2, None),
        ("DBRX", 40 * 2 * 8 * 128 * 2, None),
        ("ERNIE-4.5-21B-A3B", 28 * 2 * 4 * 128 * 2, None),
        ("Hunyuan-A13B (lists)", 32 * 2 * 8 * 128 * 2, None),
        ("Seed-OSS-36B", 64 * 2 * 8 * 128 * 2, None),
        ("ChatGLM3-6B", 28 * 2 * 2 * 128 * 2, None),
        ("BLOOM-560M", 24 * 2 * 16 * 64 * 2, None),
        ("GPT-J-6B", 28 * 2 * 16 * 256 * 2, None),
        ("GPT-Neo-1.3B", 24 * 2 * 16 * 128 * 2, 12 * 2 * 16 * 128 * 2),
        ("XGLM-564M", 24 * 2 * 16 * 64 * 2, None),
        ("Mixtral-8x22B", 56 * 2 * 8 * 128 * 2, None),
        ("Mistral-7B-v0.1", 32 * 2 * 8 * 128 * 2, 0),
        ("Qwen3-VL-8B", 36 * 2 * 8 * 128 * 2, None),
        ("Zamba2-2.7B", 9 * 2 * 32 * 160 * 2, None),
        ("Nemotron-Nano-9B-v2", 4 * 2 * 8 * 128 * 2, None),
    ],
)
def test_kv_bytes_of_more_kinds(name: str, each: int, beyond: int | None) -> None:
    found = shape(name)
    assert found.kv_bytes_per_token() == each
    assert found.kv_bytes_per_token_beyond_windows() == (each if beyond is None else beyond)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("Qwen3-30B-A3B", 30.5e9, 3.3e9),
        ("GPT-Neo-1.3B", 1.316e9, 1.316e9),
        ("XGLM-564M", 564e6, 564e6),
        # Its makers leave the looked-up table (0.58e9) out of the 5.1e9 that they state.
        ("gpt-oss-120b", 116.8e9, 5.1e9 + 0.58e9),
        ("Gemma-3-27B", 27.0e9, 27.0e9),
        ("Gemma-3n-E4B", 6.87e9, 6.87e9),
        ("DeepSeek-V3.2", 671e9, 37e9),
        ("Kimi-K2", 1.026e12, 32e9),
        ("Kimi-Linear-48B-A3B", 49.1e9, 3.3e9),
        ("Llama-4-Scout", 107.8e9, 17e9),
        ("Llama-4-Maverick", 400.7e9, 17e9),
        ("Mistral-Small-3.2-24B", 23.6e9, 23.6e9),
        ("Phi-4-mini", 3.84e9, 3.84e9),
        ("GLM-4.5-Air", 106.8e9, 12.5e9),
        ("Falcon-H1-7B", 7.59e9, 7.59e9),
        ("Granite-4.0-H-Small", 32.2e9, 9e9),
        ("Granite-4.0-H-Micro", 3.19e9, 3.19e9),
        ("MiniMax-Text-01", 456e9, 46e9),
        ("MiniMax-M2", 229e9, 10.5e9),
        ("LFM2-1.2B", 1.17e9, 1.17e9),
        ("Jamba-1.5-Mini", 51.6e9, 12e9),
        ("RecurrentGemma-9B", 8.58e9, 8.58e9),
        ("Mamba-2.8B", 2.77e9, 2.77e9),
        ("Command-A", 111e9, 111e9),
        ("EXAONE-4.0-32B", 32.0e9, 32.0e9),
        ("DBRX", 132e9, 36e9),
        ("ERNIE-4.5-21B-A3B", 21.8e9, 3.1e9),
        ("Hunyuan-A13B (lists)", 80.4e9, 13e9),
        ("ChatGLM3-6B", 6.24e9, 6.24e9),
        ("Zamba2-2.7B", 2.69e9, 2.69e9),
        ("Nemotron-Nano-9B-v2", 8.89e9, 8.89e9),
    ],
)
def test_parameters_of_more_kinds(name: str, total: float, active: float) -> None:
    found = shape(name)
    assert found.parameters == pytest.approx(total, rel=0.02)
    assert found.active_parameters == pytest.approx(active, rel=0.09)


def test_a_model_without_attention_has_a_state_and_no_attention_cost() -> None:
    mamba = shape("Mamba-2.8B")
    assert mamba.attention.startswith("none")
    assert mamba.kv_bytes(1) == mamba.kv_bytes(100_000) > 1_000_000
    assert mamba.attention_flops(1000) == 0


def test_a_layer_may_keep_both_a_cache_and_a_state() -> None:
    falcon = shape("Falcon-H1-7B")
    grown = falcon.kv_bytes(2) - falcon.kv_bytes(1)
    assert grown == falcon.kv_bytes_per_token()
    assert falcon.kv_bytes(1) - grown > 10_000_000


def test_a_hand_off_takes_the_state_along_once() -> None:
    falcon, plain = shape("Falcon-H1-7B"), shape("Qwen3-30B-A3B")
    state = falcon.state_bytes()
    assert state == falcon.kv_bytes(1) - falcon.kv_bytes_per_token() > 10_000_000
    parts = falcon.handoff_bytes(60, last=False) + falcon.handoff_bytes(40)
    assert parts == falcon.handoff_bytes(100) == 100 * falcon.kv_bytes_per_token() + state
    assert plain.handoff_bytes(100) == plain.kv_bytes(100)


@pytest.mark.parametrize(
    "key", ["num_kv_heads", "n_kv_heads", "n_kv_head", "num_query_groups", "num_attention_groups"]
)
def test_kv_heads_are_found_under_their_many_names(key: str) -> None:
    config = {k: v for k, v in CONFIGS["Llama-3.1-8B"].items() if k != "num_key_value_heads"}
    assert shape_from_config({**config, key: 8}, name="m").kv_bytes_per_token() == 131_072


def test_a_models_own_params_file_is_read_as_well() -> None:
    params = {
        "dim": 5120,
        "n_layers": 40,
        "head_dim": 128,
        "hidden_dim": 32768,
        "n_heads": 32,
        "n_kv_heads": 8,
        "vocab_size": 131072,
    }
    found, known = shape_from_config(params, name="m"), shape("Mistral-Small-3.2-24B")
    assert found.kv_bytes_per_token() == known.kv_bytes_per_token()
    assert found.parameters == known.parameters


def test_heads_that_differ_from_layer_to_layer_are_counted_layer_by_layer() -> None:
    config = {**CONFIGS["Llama-3.1-8B"], "num_key_value_heads": [8] * 31 + [4]}
    found = shape_from_config(config, name="m")
    assert found.kv_bytes_per_token() == (31 * 8 + 4) * 2 * 128 * 2
    assert found.layers == 32
    fewer = found.parameters - shape_from_config(CONFIGS["Llama-3.1-8B"], name="m").parameters
    assert fewer == -2 * 4 * 128 * 4096


def test_a_layer_without_kv_heads_keeps_nothing() -> None:
    four = {**CONFIGS["Llama-3.1-8B"], "num_hidden_layers": 4}
    # 8 KV heads of 128, K and V, 2 bytes each.
    for heads in ({"num_key_value_heads": [8, 0, 8, 8]}, {"per_layer_config": _NO_KV_IN_1}):
        found = shape_from_config({**four, **heads}, name="m")
        assert found.kv_bytes_per_token() == 3 * 8 * 2 * 128 * 2
        assert found.layers == 4


_NO_KV_IN_1 = {"1": {"num_key_value_heads": 0}, "2": {"num_key_value_heads": None}}


def test_a_list_of_too_few_layers_is_refused_by_name() -> None:
    config = {**CONFIGS["Llama-3.1-8B"], "num_key_value_heads": [8] * 3 + [4]}
    with pytest.raises(ProfileError, match="the heads of 4 layers, the model has 32"):
        shape_from_config(config, name="m")


def test_a_model_whose_every_layer_has_its_own_heads_and_widths() -> None:
    # OpenELM's kind: 4 layers of 12, 12, 16 and 16 query heads, 3 or 4 of them for KV.
    config = {
        "model_type": "openelm",
        "model_dim": 1280,
        "num_transformer_layers": 4,
        "head_dim": 64,
        "num_query_heads": [12, 12, 16, 16],
        "num_kv_heads": [3, 3, 4, 4],
        "ffn_multipliers": [0.5, 1.0, 2.0, 4.0],
        "ffn_dim_divisor": 256,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    }
    found = shape_from_config(config, name="m")
    assert found.kv_bytes_per_token() == (3 + 3 + 4 + 4) * 2 * 64 * 2
    widths = 768 + 1280 + 2560 + 5120
    heads = sum(2 * q + 2 * kv for q, kv in ((12, 3), (12, 3), (16, 4), (16, 4)))
    expected = 32000 * 1280 + 3 * 1280 * widths + 64 * 1280 * heads
    assert found.parameters == pytest.approx(expected, rel=0.001)


def test_a_config_may_name_its_layers_in_place_of_a_number_or_a_pattern() -> None:
    letters = MORE["Nemotron-Nano-9B-v2"]["hybrid_override_pattern"]
    for words in (("mamba", "mlp", "attention"), ("linear_attention", "mlp", "full_attention")):
        named = dict(zip("M-*", words, strict=True))
        config = {**MORE["Nemotron-Nano-9B-v2"], "layers_block_type": [named[x] for x in letters]}
        del config["hybrid_override_pattern"]
        found, known = shape_from_config(config, name="m"), shape("Nemotron-Nano-9B-v2")
        assert found.groups == known.groups
        assert found.parameters == known.parameters


def test_layers_with_settings_of_their_own_by_number_are_those_named_by_kind() -> None:
    text = CONFIGS["Gemma-4-31B"]["text_config"]
    own = {"head_dim": 512, "num_key_value_heads": 4}
    numbered = {str(i): own for i, kind in enumerate(text["layer_types"]) if kind[0] == "f"}
    plain = {k: v for k, v in text.items() if "global" not in k}
    config = {**plain, "per_layer_config": numbered}
    known = shape_from_config(CONFIGS["Gemma-4-31B"], name="m")
    assert shape_from_config(config, name="m").kv_bytes(5000) == known.kv_bytes(5000)


def test_windowed_layers_may_have_more_heads_and_values_may_be_narrower() -> None:
    # MiMo-V2-Flash: 9 of 48 layers see everything, with half the KV heads of the others.
    pattern = [0 if i == 0 or (i + 1) % 6 == 0 else 1 for i in range(48)]
    config = {
        "model_type": "mimo_v2_flash",
        "hidden_size": 4096,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "hybrid_layer_pattern": pattern,
        "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "swa_v_head_dim": 128,
        "sliding_window_size": 128,
        "intermediate_size": 16384,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "mlp_layer_types": ["dense"] + ["sparse"] * 47,
        "vocab_size": 152576,
    }
    found = shape_from_config(config, name="m")
    assert found.kv_bytes_per_token_beyond_windows() == 9 * 4 * (192 + 128) * 2
    assert found.kv_bytes_per_token() == (9 * 4 + 39 * 8) * (192 + 128) * 2
    assert found.parameters == pytest.approx(309e9, rel=0.02)
    assert found.active_parameters == pytest.approx(15e9, rel=0.09)


def test_what_lies_behind_a_window_may_be_kept_as_one_entry_for_several_tokens() -> None:
    # DeepSeek V4's kinds: an entry of 512 and an index key of 128 for 4 tokens; 512 for 128.
    config = {
        "model_type": "deepseek_v4",
        "hidden_size": 4096,
        "num_hidden_layers": 3,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "q_lora_rank": 1024,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "sliding_window": 128,
        "intermediate_size": 2048,
        "compress_ratios": [128, 4, 0],
        "vocab_size": 129280,
    }
    found = shape_from_config(config, name="m")
    assert found.kv_bytes_per_token_beyond_windows() == (4 + 128 + 32) * 2
    assert found.kv_bytes(100_000) == 100_000 * (4 + 128 + 32) * 2 + found.state_bytes() + (
        128 * 2 * 512 * 2
    )
    named = ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"]
    other = {k: v for k, v in config.items() if k != "compress_ratios"} | {"layer_types": named}
    assert shape_from_config(other, name="m").groups == found.groups
    with pytest.raises(ProfileError, match="a ratio that is unknown"):
        shape_from_config({**config, "compress_ratios": [128, 4, 7]}, name="m")


def test_index_keys_of_sparse_attention_are_kept_whatever_its_layers_are_called() -> None:
    config = {**MORE["DeepSeek-V3.2"], "layer_types": ["indexed_attention"] * 61}
    known = shape("DeepSeek-V3.2")
    assert shape_from_config(config, name="m").kv_bytes_per_token() == known.kv_bytes_per_token()


def test_recurrent_models_without_heads_keep_a_state_alone() -> None:
    config = {
        "model_type": "rwkv7",
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "head_dim": 64,
        "intermediate_size": 8192,
        "vocab_size": 65536,
    }
    found = shape_from_config(config, name="m")
    assert found.kv_bytes_per_token() == 0
    assert found.kv_bytes(10) == found.kv_bytes(100_000) == 24 * (64 + 2) * 2048 * 2


def test_a_layer_that_attends_twice_keeps_two_caches() -> None:
    config = {
        "model_type": "longcat_flash",
        "hidden_size": 6144,
        "num_layers": 28,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "ffn_hidden_size": 12288,
        "expert_ffn_hidden_size": 2048,
        "n_routed_experts": 512,
        "moe_topk": 12,
        "vocab_size": 131072,
    }
    found = shape_from_config(config, name="m")
    assert found.kv_bytes_per_token() == 2 * 28 * (512 + 64) * 2
    assert found.parameters == pytest.approx(560e9, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, "int4"),
        ({"quantization": {"group_size": 64, "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "q3_k_m"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "int4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "fp8"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "float-quantized",
                    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
                }
            },
            "fp8",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "pack-quantized",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
                }
            },
            "int4",
        ),
        ({}, "bf16"),
    ],
)
def test_quantised_weights_are_known_by_what_each_tool_writes(
    settings: dict[str, Any], dtype: str
) -> None:
    assert shape_from_config({**CONFIGS["Qwen3-8B"], **settings}, name="m").dtype == dtype


def gguf(family: str, **keys: Any) -> ModelShape:
    """The shape of a GGUF's metadata; a key's dot is written as two underscores."""
    metadata: dict[str, Any] = {"general.architecture": family}
    metadata |= {f"{family}.{key.replace('__', '.')}": value for key, value in keys.items()}
    config = config_from_gguf(metadata, where="m.gguf", has_output_head=False)
    return shape_from_config(config, name="m")


def test_a_hybrid_gguf_keeps_kv_only_where_it_has_kv_heads() -> None:
    found = gguf(
        "granitehybrid",
        block_count=40,
        embedding_length=4096,
        attention__head_count=32,
        attention__head_count_kv=[0, 0, 0, 0, 0, 8, 0, 0, 0, 0] * 4,
        feed_forward_length=768,
        expert_count=72,
        expert_used_count=10,
        expert_shared_feed_forward_length=1536,
        ssm__conv_kernel=4,
        ssm__inner_size=8192,
        ssm__state_size=128,
        ssm__group_count=1,
        vocab_size=100352,
    )
    config = shape("Granite-4.0-H-Small")
    assert found.kv_bytes(777) == config.kv_bytes(777)
    assert found.parameters == pytest.approx(config.parameters, rel=0.01)


@pytest.mark.parametrize("absorbed", [False, True])
def test_an_mla_gguf_of_either_age_is_read(absorbed: bool) -> None:
    lengths = {"attention__key_length": 192, "attention__value_length": 128}
    if absorbed:
        lengths = {
            "attention__key_length": 576,
            "attention__value_length": 512,
            "attention__key_length_mla": 192,
            "attention__value_length_mla": 128,
        }
    found = gguf(
        "deepseek2",
        block_count=27,
        embedding_length=2048,
        attention__head_count=16,
        attention__head_count_kv=1 if absorbed else 16,
        attention__kv_lora_rank=512,
        rope__dimension_count=64,
        feed_forward_length=10944,
        expert_feed_forward_length=1408,
        expert_count=64,
        expert_used_count=6,
        expert_shared_count=2,
        leading_dense_block_count=1,
        vocab_size=102400,
        **lengths,
    )
    assert found.kv_bytes_per_token() == 31104
    # Without a head of its own here.
    assert found.parameters == pytest.approx(15.7e9 - 2048 * 102400, rel=0.01)


def test_a_gguf_with_recurrent_layers_by_interval_is_that_of_its_config() -> None:
    found = gguf(
        "qwen3next",
        block_count=48,
        embedding_length=2048,
        attention__head_count=16,
        attention__head_count_kv=2,
        attention__key_length=256,
        feed_forward_length=5120,
        expert_feed_forward_length=512,
        expert_shared_feed_forward_length=512,
        expert_count=512,
        expert_used_count=10,
        full_attention_interval=4,
        ssm__conv_kernel=4,
        ssm__inner_size=4096,
        ssm__state_size=128,
        ssm__group_count=16,
        ssm__time_step_rank=32,
        vocab_size=151936,
    )
    known = shape_from_config(CONFIGS["Qwen3-Next-80B-A3B"], name="m")
    assert found.kv_bytes(1) == known.kv_bytes(1) and found.kv_bytes(9) == known.kv_bytes(9)


def test_a_windowed_gguf_that_shares_kv_keeps_that_of_its_own_layers_only() -> None:
    found = gguf(
        "gemma3n",
        block_count=35,
        embedding_length=2048,
        attention__head_count=8,
        attention__head_count_kv=2,
        attention__key_length=256,
        feed_forward_length=[16384] * 35,
        attention__sliding_window=512,
        attention__shared_kv_layers=15,
        attention__sliding_window_pattern=[True, True, True, True, False] * 7,
        vocab_size=262144,
    )
    assert found.kv_bytes(4000) == shape("Gemma-3n-E4B").kv_bytes(4000)


def test_a_gguf_whose_layers_differ_is_read_layer_by_layer() -> None:
    # DeciLM's kind: a layer without KV heads attends to nothing and keeps nothing.
    found = gguf(
        "deci",
        block_count=4,
        embedding_length=8192,
        attention__head_count=[64, 0, 64, 64],
        attention__head_count_kv=[8, 0, 8, 4],
        attention__key_length=128,
        feed_forward_length=[14336, 28672, 28672, 7168],
        vocab_size=128256,
    )
    assert found.kv_bytes_per_token() == (8 + 8 + 4) * 2 * 128 * 2
    assert found.layers == 4


def test_a_gguf_of_layers_that_attend_or_feed_forward_or_keep_a_state() -> None:
    letters = MORE["Nemotron-Nano-9B-v2"]["hybrid_override_pattern"]
    found = gguf(
        "nemotron_h",
        block_count=len(letters),
        embedding_length=4480,
        attention__head_count=40,
        attention__head_count_kv=[8 if x == "*" else 0 for x in letters],
        attention__key_length=128,
        feed_forward_length=[15680 if x == "-" else 0 for x in letters],
        ssm__conv_kernel=4,
        ssm__inner_size=128 * 80,
        ssm__state_size=128,
        ssm__group_count=8,
        vocab_size=131072,
    )
    known = shape("Nemotron-Nano-9B-v2")
    assert found.kv_bytes(3000) == known.kv_bytes(3000)
    assert found.parameters == pytest.approx(known.parameters - 4480 * 131072, rel=0.02)


def test_a_gguf_with_wider_global_heads_keeps_each_kind_by_its_own() -> None:
    kinds = CONFIGS["Gemma-4-31B"]["text_config"]["layer_types"]
    near = [kind == "sliding_attention" for kind in kinds]
    found = gguf(
        "gemma4",
        block_count=60,
        embedding_length=5376,
        attention__head_count=32,
        attention__head_count_kv=[16 if x else 4 for x in near],
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        attention__sliding_window=1024,
        attention__sliding_window_pattern=near,
        feed_forward_length=21504,
        vocab_size=262144,
    )
    known = shape_from_config(CONFIGS["Gemma-4-31B"], name="m")
    assert found.kv_bytes(5000) == known.kv_bytes(5000)


def test_lists_of_different_length_in_a_gguf_are_refused_by_name() -> None:
    with pytest.raises(ProfileError, match="tell of different layers"):
        gguf(
            "nemotron_h",
            block_count=2,
            embedding_length=64,
            attention__head_count=4,
            attention__head_count_kv=[0, 2],
            feed_forward_length=[0, 64, 0],
            vocab_size=100,
        )
