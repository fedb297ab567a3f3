"""Tells models that do more or other than decode by their configuration. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

NotDecoder = Literal["both", "encoder", "head"]
"""An encoder before its decoder; an encoder alone; a decoder's body under a head of another use."""

_BOTH = re.compile(
    r"bart|bigbird_pegasus|blenderbot|blenderbot_small|canary|cohere_asr|dia|donut|"
    r"encoder_decoder|florence2|fsmt|led|longt5|m2m_100|marian|mbart|moonshine|"
    r"moonshine_streaming|mt5|mvp|nllb_moe|pegasus|pegasus_x|pix2struct|plbart|"
    r"pop2piano|pp_formulanet|prophetnet|rag|seamless_m4t|seamless_m4t_v2|"
    r"speech_encoder_decoder|speech_to_text|speecht5|switch_transformers|t5|t5gemma|"
    r"t5gemma2|udop|umt5|vision_encoder_decoder|whisper|xlm_prophetnet"
)
_ENCODERS = re.compile(
    r"big_bird|canine|clip|data2vec_text|dpr|electra|embedding_gemma2|ernie|esm|esmc|"
    r"fnet|funnel|gemma_embedding|gte|jina_embeddings_v3|layoutlm|layoutlmv2|"
    r"layoutlmv3|layoutxlm|lilt|longformer|luke|markuplm|mpnet|mra|neomme|"
    r"nystromformer|perceiver|roformer|siglip|siglip2|splinter|tapas|vit|xlm|xmod|"
    r"yoso"
)
_BERT = re.compile("bert(?!.*decoder)")
"""In a family's name: XLM-RoBERTa, DeBERTa, MobileBERT and those that nobody has made yet."""
_OTHER_HEAD = re.compile("For(MaskedLM|MultipleChoice|QuestionAnswering|[A-Za-z]*Classification)$")


def not_a_decoder(
    family: str,
    *,
    architectures: Iterable[str] = (),
    encoder_decoder: bool = False,
    is_decoder: bool = False,
) -> NotDecoder | None:
    """What a model of this `model_type` does beside decoding or instead; None where it decodes.

    A family of encoders decodes where its configuration says `is_decoder`.
    """
    name = family.lower().replace("-", "_")
    if encoder_decoder or _BOTH.fullmatch(name):
        return "both"
    if not is_decoder and (_ENCODERS.fullmatch(name) or _BERT.search(name)):
        return "encoder"
    made = list(architectures)
    return "head" if made and all(_OTHER_HEAD.search(each) for each in made) else None
