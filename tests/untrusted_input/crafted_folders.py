"""All crafted model folders, with the kind of tokenizer of the valid folder that each changes."""

from __future__ import annotations

from untrusted_input.case import Case
from untrusted_input.crafted_configs import CONFIGS
from untrusted_input.crafted_manifests import MANIFESTS
from untrusted_input.crafted_tokenizers import SIZED, TOKENIZERS
from untrusted_input.crafted_weights import WEIGHTS

SEPARATE = [*MANIFESTS.cases, *CONFIGS.cases, *WEIGHTS.cases, *SIZED.cases, *TOKENIZERS["separate"].cases]
JOINT = [(kind, case) for kind, catalog in TOKENIZERS.items() if kind != "separate" for case in catalog.cases]
REJECTED: list[tuple[str, Case]] = [*(("separate", case) for case in SEPARATE), *JOINT]
