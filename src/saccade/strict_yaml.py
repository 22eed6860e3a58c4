"""The YAML of recipes: plain data only, and every word read as what it looks like.

YAML 1.1 has surprises that a recipe does not need. Aliases let a file of a few lines stand for gigabytes; tags name
types to build; a key that stands twice silently wins over the first; `no` is false, `1:30` is 90, `010` is 8 and
`2020-01-01` is a date. Here aliases, tags and doubled keys are refused, and what is not plainly null, true, false or a
number is a text; the typed config turns it into what the setting asks for, or says why it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.scanner import ScannerError

from saccade.untrusted_files import DEEPEST, shown

NULL, TRUTH, INTEGER, FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))


class RecipeLoader(yaml.SafeLoader):
    """The safe loader without aliases, tags, doubled keys and surprising words."""

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803 (the library's name)
        """A bracket; ten thousands of them would keep the library busy for seconds."""
        self.check_depth(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        """A line that stands further to the right than the one before."""
        self.check_depth(len(self.indents))
        return bool(super().add_indent(column))

    def check_depth(self, levels: int) -> None:
        """Refuse what is nested too deep."""
        if levels > DEEPEST:
            raise ScannerError(None, None, f"it is nested more than {DEEPEST} levels deep", self.get_mark())

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node, if it is written out."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        place = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise ComposerError(None, None, f"the alias *{event.anchor} is not read: write it out", place)
        if event.tag is not None:
            raise ComposerError(None, None, f"the tag {shown(event.tag)} is not read: leave it out", place)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A group of settings; `learning-rate` and `learning_rate` are one key."""
        values: dict[Hashable, Any] = {}
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                problem = f"the key {shown(key)} is no name: put it in quotes if it is one"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            if key.replace("-", "_") in seen:
                raise ConstructorError(None, None, f"the key {shown(key)} stands twice", key_node.start_mark)
            seen.add(key.replace("-", "_"))
            values[key] = self.construct_object(value_node, deep=deep)
        return values

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """A decimal number; none is octal because of a leading zero."""
        return int(node.value) if node.tag == INTEGER else float(node.value)


# All of these mean the same in YAML 1.1, so that what the library writes for a text is read as that text.
RecipeLoader.yaml_implicit_resolvers = {}
RecipeLoader.add_implicit_resolver(NULL, re.compile(r"(?:~|null|Null|NULL|)\Z"), [*"~nN", ""])
RecipeLoader.add_implicit_resolver(TRUTH, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
RecipeLoader.add_implicit_resolver(INTEGER, re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789"))
RecipeLoader.add_implicit_resolver(FLOAT, re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?\Z"), list("-+0123456789"))
RecipeLoader.add_constructor(INTEGER, RecipeLoader.construct_number)
RecipeLoader.add_constructor(FLOAT, RecipeLoader.construct_number)
