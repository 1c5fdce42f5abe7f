"""What users write by name stays as it is: tests/golden/public_surface.json."""

from __future__ import annotations

import inspect
import json

from paths import GOLDEN
from public_surface import surface

import fastload


def test_public_names_parameters_options_and_keys_are_those_of_the_golden_list() -> None:
    assert surface() == json.loads((GOLDEN / "public_surface.json").read_text())


def test_public_classes_name_the_package_as_their_module() -> None:
    public = [getattr(fastload, name) for name in (*fastload.__all__, "open")]
    assert {each.__module__ for each in public if inspect.isclass(each)} == {"fastload"}
