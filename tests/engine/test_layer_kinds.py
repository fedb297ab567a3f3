"""Every kind of layer that transformers has: it is computed as there, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from homesplit_engine.layer_kinds import refusal_of
from homesplit_engine.model import ModelError, load_model
from homesplit_engine.not_decoders import not_a_decoder
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from tests.engine.engine_kit import ANSWER, CHUNK, Engine
from tests.engine.tiny import CONTEXT, VOCABULARY, config_of, generate, prompt_of, write_model

pytestmark = pytest.mark.usefixtures("one_thread")

REFUSED = {
    "latent attention layers (MLA": "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 "
    "dots3_note dots3_note_text glm4_moe_lite glm_moe_dsa hy_v4 kimi_linear longcat_flash minicpm3 "
    "sarvam_mla youtu",
    "recurrent layers (": "bamba falcon_mamba granitemoehybrid jamba lara_mini mamba mamba2 "
    "minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next "
    "qwen4_exp qwen4_exp_text recurrent_gemma rwkv xlstm zamba zamba2",
    "hybrid layers (": "falcon_h1 inkling2_loop_text inkling2_text inkling_text zaya",
    "encoder-decoder model": "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp "
    "pegasus plbart prophetnet whisper",
    "layers that look both ways": "bert bert-generation camembert data2vec-text electra ernie "
    "megatron-bert rembert roberta roberta-prelayernorm roc_bert roformer xlm-roberta "
    "xlm-roberta-xl xmod",
    "cross-attention": "blt mllama musicgen musicgen_melody",
    "block-sparse": "big_bird",
    "sparse attention layers (over": "deepseek_v4",
    "relative position": "cpmant xlnet",
    "hashed attention": "reformer",
    "share another layer's KV": "gemma3n gemma3n_text gemma4_unified_assistant",
    "short convolution": "lfm3",
    "chunked attention": "llama4 llama4_text",
    "language embeddings": "xlm",
}
"""By what is said: the families whose usual configuration is refused without being loaded."""
OTHER_WORDS = {"gemma4_assistant"}
"""Their configuration can't be made without more words."""


def test_every_family_is_refused_by_its_kind_of_layer_or_not_at_all() -> None:
    words = {family: said for said, families in REFUSED.items() for family in families.split()}
    wrong: list[tuple[str, str | None]] = []
    for family in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - OTHER_WORDS:
        refusal = refusal_of(CONFIG_MAPPING[family]().get_text_config(decoder=True))
        said = words.get(family)
        right = refusal is None if said is None else refusal is not None and said in refusal
        if not right:
            wrong.append((family, refusal))
    assert wrong == []


def test_families_that_do_not_only_decode_are_known_by_name() -> None:
    """Their files don't say so: what is as usual for a family is left out of them."""
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    encoders = set(MODEL_FOR_MASKED_LM_MAPPING_NAMES) - causal
    assert {not_a_decoder(family) for family in encoders} == {"encoder"}
    others = {
        *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        *MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    }
    both = {family for family in others if CONFIG_MAPPING[family]().is_encoder_decoder}
    assert both == {family for family in others | causal if not_a_decoder(family) == "both"}


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"is_encoder_decoder": True}, "encoder-decoder"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "no head that writes text"),
    ({"kv_lora_rank": 8}, "latent attention"),
    ({"layer_types": ["full_attention", "linear_attention"]}, "recurrent layers (linear attention"),
    ({"layer_types": ["conv", "mamba"]}, "short convolution layers and recurrent layers"),
    ({"layer_types": ["new_attention"]}, "layers of kind new_attention"),
    ({"mamba_d_state": 16}, "recurrent"),
    ({"alibi": True}, "ALiBi"),
    ({"num_kv_shared_layers": 2}, "share another layer's KV"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope of type dynamic"),
    ({"rope_parameters": {"rope_type": "new"}}, "rope of type new"),
    ({"rope_parameters": {"full_attention": {"rope_type": "new"}}}, "rope of type new"),
]


@pytest.mark.parametrize(("settings", "words"), SETTINGS)
def test_a_setting_that_is_not_carried_is_refused_by_name(
    settings: dict[str, Any], words: str
) -> None:
    subject = transformers.LlamaConfig()
    for key, value in settings.items():
        setattr(subject, key, value)
    assert words in str(refusal_of(subject))
    assert refusal_of(transformers.LlamaConfig()) is None


def test_a_hybrid_family_with_attention_layers_alone_is_not_refused() -> None:
    subject: Any = transformers.LlamaConfig()
    subject.mamba_d_state, subject.layer_types = 16, ["attention"] * 32
    assert refusal_of(subject) is None


_SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "num_attention_heads": 4, "hidden_size": 32}
_TEXT: dict[str, Any] = {
    **_SMALL,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": CONTEXT,
}
_HALF: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
FOUND: list[tuple[str, dict[str, Any], str]] = [
    ("XGLMConfig", {"vocab_size": VOCABULARY, "d_model": 32, "num_layers": 2, "attention_heads": 4,
     "ffn_dim": 32, "add_cross_attention": True}, "cross-attention layers"),
    ("RoFormerConfig", {**_TEXT, "is_decoder": True}, "RoFormerAttention, RoFormerSelfAttention"),
    ("DogeConfig", {**_TEXT, "num_key_value_heads": 2}, "a mask of their own (DogeAttention)"),
    ("DiffLlamaConfig", _TEXT, "attend more than once (DiffLlamaAttention"),
    ("BartConfig", _HALF, "cross-attention layers"),
    ("WhisperConfig", {**_HALF, "pad_token_id": 0}, "cross-attention layers"),
    ("MoshiConfig", {**_TEXT, "ffn_dim": 32, "sliding_window": 12}, "tell their window"),
]  # fmt: skip
"""What only the model itself shows: a configuration, its settings, and what is said."""


@pytest.mark.parametrize(("config", "settings", "words"), FOUND, ids=[case[0] for case in FOUND])
def test_what_only_the_model_shows_is_refused_by_name_too(
    config: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_model(tmp_path, getattr(transformers, config)(**settings))
    with pytest.raises(ModelError) as refused:
        load_model(tmp_path, device="cpu", dtype="float32")
    assert words in str(refused.value)


_USUAL: dict[str, Any] = {
    **_TEXT,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
_PATCHES = {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
OTHERS: dict[str, dict[str, Any]] = {
    "GemmaConfig": {},
    "Cohere2Config": {"sliding_window": 12},
    "Glm4Config": {},
    "Olmo3Config": {"sliding_window": 12},
    "SmolLM3Config": {"no_rope_layers": [1, 0]},
    "Exaone4Config": {"sliding_window": 12},
    "StableLmConfig": {},
    "Starcoder2Config": {"sliding_window": 12},
    "PhiConfig": {"num_key_value_heads": 4},
    "OlmoeConfig": {"num_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoeHybridConfig": {
        "layer_types": ["attention"] * 2,
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "position_embedding_type": "rope",
        "mamba_n_heads": 4,
    },
    # Keys are wider than values, and layers have sinks.
    "MiMoV2FlashConfig": {
        "v_head_dim": 4,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"],
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    },
    # Its code tells no window, but this one is as long as the context.
    "MoshiConfig": {"ffn_dim": 32, "sliding_window": CONTEXT},
    "MegatronBertConfig": {"is_decoder": True},
    "RemBertConfig": {"is_decoder": True, "input_embedding_size": 16, "output_embedding_size": 16},
    "GitConfig": {"vision_config": {**_VISION, **_PATCHES}},
    "Gemma3Config": {
        "text_config": {**_USUAL, "sliding_window": 12},
        "vision_config": {**_VISION, **_PATCHES},
        "mm_tokens_per_image": 4,
    },
}
"""Families beside those that every test goes through, and what is special about them."""


@pytest.mark.parametrize("config", list(OTHERS))
def test_other_families_give_transformers_own_text_too(config: str, tmp_path: Path) -> None:
    settings = OTHERS[config] if "text_config" in OTHERS[config] else _USUAL | OTHERS[config]
    write_model(tmp_path, getattr(transformers, config)(**settings))
    engine = Engine(load_model(tmp_path, device="cpu", dtype="float32"))
    for length in (1, CHUNK + 1, 45):
        engine.add(str(length), prompt_of(length))
    answers = {str(n): generate(tmp_path, prompt_of(n), ANSWER) for n in (1, CHUNK + 1, 45)}
    assert engine.run() == answers


def test_layers_that_fail_under_this_engines_attention_are_refused_with_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.olmo2.modeling_olmo2 import Olmo2MLP

    whole = Olmo2MLP.forward

    def picky(self: Any, rows: torch.Tensor) -> torch.Tensor:
        """As a layer that knows the ways of attending by name."""
        ways = {"eager": whole}
        return ways[self.config._attn_implementation](self, rows)

    monkeypatch.setattr(Olmo2MLP, "forward", picky)
    write_model(tmp_path, config_of("olmo2"))
    with pytest.raises(
        ModelError, match=r"\(Olmo2Attention\).* can't compute: KeyError: 'homesplit"
    ):
        load_model(tmp_path, device="cpu", dtype="float32")


UNMADE: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "ministral", "head_dim": None}, "the model can't be loaded: TypeError: "),
    ({"layer_types": ["full_attention"]}, "the configuration can't be read: "),
    ({"hidden_size": "32"}, "the configuration can't be read: "),
    ({"hidden_act": "new"}, "the model can't be loaded: KeyError: "),
    ({"hidden_size": 40}, "the model can't be loaded: "),
]


@pytest.mark.parametrize(("settings", "words"), UNMADE)
def test_settings_that_transformers_itself_can_make_nothing_of_are_told(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = write_model(tmp_path, config_of("qwen3")) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(ModelError) as refused:
        load_model(tmp_path, device="cpu", dtype="float32")
    assert words in str(refused.value)


def test_layers_that_pass_on_more_than_keys_and_values_are_found_by_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.olmo2.modeling_olmo2 import Olmo2MLP

    whole = Olmo2MLP.forward

    def shifted(self: Any, rows: torch.Tensor) -> torch.Tensor:
        """Each token's row with half of the one before, as a short convolution has it."""
        return whole(self, rows + 0.5 * torch.nn.functional.pad(rows, (0, 0, 1, 0))[:, :-1])

    monkeypatch.setattr(Olmo2MLP, "forward", shifted)
    write_model(tmp_path, config_of("olmo2"))
    with pytest.raises(ModelError, match="pass more on from token to token"):
        load_model(tmp_path, device="cpu", dtype="float32")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(tmp_path, device="cpu", dtype="float32")
