"""The default metrics of a test set, the one that fits its references first."""

from __future__ import annotations

import re
from collections.abc import Sequence

SENTENCES = ("bleu", "chrf", "ter", "exact-match")
SINGLE_WORDS = ("exact-match", "chrf", "ter", "bleu")  # BLEU counts n-grams of up to 4 words: of one word it is 0
UNSEGMENTED = ("chrf", "bleu", "ter", "exact-match")  # the default tokenizer of BLEU does not segment these scripts
NO_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


def default_metrics(references: Sequence[Sequence[str]]) -> list[str]:
    """Return the default metrics in the order of a report; the kind of text that most references have decides."""
    texts = [text for accepted in references for text in accepted]
    unsegmented = sum(bool(NO_SPACES.search(text)) for text in texts)
    if 2 * unsegmented > len(texts):
        return list(UNSEGMENTED)
    single = sum(len(text.split()) <= 1 for text in texts)
    return list(SINGLE_WORDS if 2 * single > len(texts) else SENTENCES)
