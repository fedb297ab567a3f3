"""Prompt text with a wanted number of tokens, for any server, without its tokenizer.

Made of short common English words: written with a blank before it, each is one token in
the byte-pair vocabularies in use (GPT-2, Llama, SmolLM2, Qwen, Mistral). What a server
really counts is measured beforehand with two prompts, and the number of words corrected.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from msgspec import Struct

from homesplit.core.load import OfferedRequest, PromptPart
from homesplit.core.prng import Prng, mix

_TEXT = """
    the of and to in is that for it as was with be by on not he his but at are this have
    from or had an they which one you were all her she there would their we him been has when
    who will more no if out so said what up its about into than them can only other new some
    could time these two may then do first any my now such like our over man me even most made
    after also did many before must through back years where much your way well down should
    because each just those people how too little state good very make world still own see men
    work long get here between both life being under never day same another know while last
    might us great old year off come since against go came right used take three states house
    use place small home place part water high again number such city head hand
    name group line point power field later side school next door white form
"""
WORDS = tuple(dict.fromkeys(_TEXT.split()))
_BY_BYTE = tuple(WORDS[byte * len(WORDS) >> 8] for byte in range(256))


class TokenFit(Struct, frozen=True, kw_only=True):
    """How a server counts our words: tokens = `fixed` + `per_word` times words.

    `fixed` is what a chat template or a begin token adds to every prompt.
    """

    fixed: float = 0.0
    per_word: float = 1.0
    measured: bool = False

    def words_for(self, tokens: int) -> int:
        """How many words make a prompt of about `tokens` tokens, at least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


def fit_tokens(short: tuple[int, int], long: tuple[int, int]) -> TokenFit:
    """The line through two measured (words, tokens) pairs of different lengths."""
    per_word = (long[1] - short[1]) / (long[0] - short[0])
    if not per_word > 0:
        return TokenFit()
    return TokenFit(fixed=short[1] - per_word * short[0], per_word=per_word, measured=True)


def part_words(part: PromptPart, count: int, salt: int) -> list[str]:
    """`count` words fixed by the part's seed and the salt."""
    rng = Prng(mix(part.seed ^ mix(salt)) if salt else part.seed)
    # Eight words from each draw: prompts are made while a load runs and must cost little.
    raw = b"".join(rng.bits().to_bytes(8, "little") for _ in range((count + 7) // 8))
    return [_BY_BYTE[byte] for byte in raw[:count]]


def calibration_text(number: int, count: int, salt: int) -> str:
    """Calibration prompt `number`: the same `count` words in an order of the salt's own.

    So they are as many tokens every time, and no prefix cache holds them. The first one may be
    any word, other than that of another number: it is a token like the others.
    """
    body = part_words(PromptPart(seed=number, tokens=count), count - 1, 0)
    places = Prng(salt).fork(number).shuffled(len(body))
    return " ".join([WORDS[_order(salt)[number]], *(body[place] for place in places)])


def messages(request: OfferedRequest, fit: TokenFit, salt: int = 0) -> list[tuple[str, str]]:
    """The request's conversation as (role, text) pairs, ending with the user's question.

    Prompts that share nothing differ from their first word on: it is taken in turn by the
    request's number, the second by how often the list has been gone through.
    """
    counts = _word_counts(request, fit)
    texts = [
        part_words(part, count, salt)
        for part, count in zip((*request.prompt, *request.replies), counts, strict=True)
    ]
    questions, answers = texts[: len(request.prompt)], texts[len(request.prompt) :]
    if request.shared_group is None:
        questions[0] = _marked(questions[0], _stream_number(request), salt)
    first_turn = len(questions) - len(answers)
    opening = " ".join(word for words in questions[:first_turn] for word in words)
    said = [("user", opening)]
    for answer, question in zip(answers, questions[first_turn:], strict=True):
        said += [("assistant", " ".join(answer)), ("user", " ".join(question))]
    return said


def _stream_number(request: OfferedRequest) -> int:
    """What the first words count: turns of one conversation begin alike on purpose."""
    return request.id - request.turn


@functools.lru_cache(maxsize=16)
def _order(salt: int) -> tuple[int, ...]:
    return tuple(Prng(salt).shuffled(len(WORDS)))


def _marked(words: list[str], number: int, salt: int) -> list[str]:
    """The words with the first two replaced by ones that no neighbouring request has."""
    order = _order(salt)
    size = len(WORDS)
    marks = [WORDS[order[number % size]], WORDS[order[(number // size) % size]]]
    return [*marks[: len(words)], *words[2:]]


def _word_counts(request: OfferedRequest, fit: TokenFit) -> list[int]:
    """Words of every part; the fixed tokens and all rounding fall on the last question."""
    parts: Sequence[PromptPart] = (*request.prompt, *request.replies)
    counts = [max(1, round(part.tokens / fit.per_word)) for part in parts]
    last = len(request.prompt) - 1
    others = sum(counts) - counts[last]
    counts[last] = max(1, fit.words_for(request.prompt_tokens) - others)
    return counts
