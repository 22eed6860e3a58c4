"""A strict YAML loader for recipes: plain data only, without the surprises of YAML 1.1.

In YAML 1.1 aliases let a small file expand to gigabytes, tags construct objects, a duplicate key silently replaces the
first, `no` is false, `1:30` is 90, `010` is 8 and `2020-01-01` is a date. Here aliases, tags and duplicate keys are
errors, and every scalar that is not null, true, false or a decimal number is a string; the typed config converts it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.scanner import ScannerError

from saccade.untrusted_files import MAX_DEPTH, shown

NULL, TRUTH, INTEGER, FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))


class RecipeLoader(yaml.SafeLoader):
    """yaml.SafeLoader without aliases, tags, duplicate keys and YAML 1.1 scalars."""

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803 (the library's name)
        """Check the depth of a flow collection: the library is slow on thousands of brackets."""
        self.check_depth(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        """Check the depth of a block collection."""
        self.check_depth(len(self.indents))
        return bool(super().add_indent(column))

    def check_depth(self, levels: int) -> None:
        """Raise an error if collections are nested too deep."""
        if levels > MAX_DEPTH:
            raise ScannerError(None, None, f"nested more than {MAX_DEPTH} levels deep", self.get_mark())

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node; aliases and tags are errors."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise ComposerError(None, None, f"the alias *{event.anchor} is not supported: write the value out", mark)
        if event.tag is not None:
            raise ComposerError(None, None, f"the tag {shown(event.tag)} is not supported: leave it out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping; `learning-rate` and `learning_rate` are the same key."""
        values: dict[Hashable, Any] = {}
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                problem = f"the key {shown(key)} is not a string: quote it if it should be one"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            if key.replace("-", "_") in seen:
                raise ConstructorError(None, None, f"duplicate key {shown(key)}", key_node.start_mark)
            seen.add(key.replace("-", "_"))
            values[key] = self.construct_object(value_node, deep=deep)
        return values

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Construct a decimal number; a leading zero does not make it octal."""
        return int(node.value) if node.tag == INTEGER else float(node.value)


# These scalars have the same meaning in YAML 1.1, so a string that the library writes is read as the same string.
RecipeLoader.yaml_implicit_resolvers = {}
RecipeLoader.add_implicit_resolver(NULL, re.compile(r"(?:~|null|Null|NULL|)\Z"), [*"~nN", ""])
RecipeLoader.add_implicit_resolver(TRUTH, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
RecipeLoader.add_implicit_resolver(INTEGER, re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789"))
RecipeLoader.add_implicit_resolver(FLOAT, re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?\Z"), list("-+0123456789"))
RecipeLoader.add_constructor(INTEGER, RecipeLoader.construct_number)
RecipeLoader.add_constructor(FLOAT, RecipeLoader.construct_number)
